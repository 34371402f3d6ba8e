"""What a user may hand in by mistake: one line that says what came, or it works."""

import os
import pathlib
import signal
import threading

import nets
import numpy as np
import pytest
from nets import CPUS, one_line

import mxloop
from mxloop import FeedForward, model
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import DataError, DivergedError, MXLoopError
from mxloop.executor_manager import DataParallelExecutorManager

N, CLASSES = 24, 3
X = np.random.RandomState(0).randn(N, 4).astype(np.float32)
Y = (np.arange(N) % CLASSES).astype(np.float32)


def net():
    return nets.mlp((5,), CLASSES)


def regression():
    out = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1, name="fc")
    return mx.sym.LinearRegressionOutput(out, mx.sym.var("label"), name="lr")


def ff(symbol=None, **more):
    more = {"num_epoch": 1, "numpy_batch_size": 8, **more}
    return FeedForward(net() if symbol is None else symbol, **more)


def fit(x=X, y=Y, of=None, **more):
    """Fit with settings of the constructor in `of`."""
    return ff(**(of or {})).fit(x, y, **more)


def fitted():
    return ff().fit(X, Y)


def with_value(array, value, place=(3,)):
    array = array.copy()
    array[place] = value
    return array


def batch(x=X, y=Y, n=8, **more):
    label = None if y is None else [mx.nd.array(y[:n])]
    return mx.io.DataBatch([mx.nd.array(x[:n])], label, **more)


def bare():
    made = batch()
    made.data = made.data[0]
    return made


def mended(**more):
    given = {f"{name}_params": values for name, values in zip(("arg", "aux"), params())}
    return {**given, **more}


def params(symbol=None, n=8):
    return nets.params(symbol or net(), data=(n, 4))


def damaged(name, value):
    return {**params()[0], name: value}


class Iter(mx.io.DataIter):
    """An iterator whose batches and descriptions a test chooses."""

    def __init__(self, batches=None, data=(("data", (8, 4)),), label=(("softmax_label", (8,)),)):
        super().__init__(8)
        self.batches = [batch()] * 3 if batches is None else batches
        self.provide_data, self.provide_label = data, label
        self.place = 0

    def reset(self):
        self.place = 0

    def next(self):
        if self.place == len(self.batches):
            raise StopIteration
        self.place += 1
        return self.batches[self.place - 1]


class Once(Iter):
    """One that cannot start over."""

    def reset(self):
        pass


class OnlyNext:
    """One without ``__iter__``."""

    def __init__(self):
        self._own = Iter()
        self.provide_data, self.provide_label = self._own.provide_data, self._own.provide_label
        self.reset, self.next = self._own.reset, self._own.next


def manager(devices=1, **more):
    made = DataParallelExecutorManager(net(), CPUS[:devices], nets.described(8, (4,)), **more)
    made.set_params(*params())
    return made


def stock(x=X, y=Y):
    return mx.io.NDArrayIter(x, y, 8)


def half(layer, x=X):
    """Train a network with a layer in float16, on the CPU."""
    out = layer(mx.sym.cast(mx.sym.var("data"), dtype="float16"))
    out = mx.sym.cast(mx.sym.FullyConnected(out, num_hidden=CLASSES, name="fc"), dtype="float32")
    return ff(mx.sym.SoftmaxOutput(out, name="softmax")).fit(x, Y)


def half_label():
    out = mx.sym.FullyConnected(mx.sym.cast(mx.sym.var("data"), dtype="float16"), num_hidden=3)
    return mx.sym.SoftmaxOutput(out, name="softmax")


def ready(devices=1):
    made = manager(devices)
    made.load_data_batch(batch())
    made.forward(is_train=True)
    made.backward()
    return made


def grads(n, devices):
    return [[mx.nd.ones((2,), CPUS[d]) for d in range(devices)] for _ in range(n)]


def updater():
    return mx.optimizer.get_updater(mx.optimizer.SGD())


class WithLine(mx.metric.EvalMetric):
    def __init__(self):
        super().__init__("fussy")

    def update(self, labels, preds):
        raise ValueError("shapes do not\nmatch " + "x" * 400)


REFUSED = {
    "shape": {
        "other features in the second fit": (lambda: fitted().fit(X[:, :3], Y), "(5, 4)"),
        "label count": (lambda: fit(y=Y[:-1]), "23"),
        "label of two columns": (lambda: fit(y=np.stack([Y, Y], 1)), "shape"),
        "one-hot labels": (lambda: fit(y=np.eye(CLASSES)[Y.astype(int)]), "class numbers"),
        "one-hot labels of an iterator": (
            lambda: fit(ArrayIter(X, np.eye(CLASSES)[Y.astype(int)], 8), None),
            "class numbers",
        ),
        "label of one column": (lambda: fit(y=Y[:, None]), "reshape(-1)"),
        "label missing": (lambda: fit(y=None), "y is missing"),
        "label name": (lambda: fit(ArrayIter(X, Y, 8, label_name="other"), None), "other"),
        "negative batch": (lambda: ff(numpy_batch_size=-1), "numpy_batch_size is -1"),
        "float batch": (lambda: ff(numpy_batch_size=2.5), "2.5"),
        "discard leaves nothing": (
            lambda: fit(mx.io.NDArrayIter(X, Y, 2 * N, last_batch_handle="discard"), None),
            "",
        ),
        "batch without label": (lambda: fit(Iter([batch(y=None)]), None), "0 labels"),
        "batch of other columns": (lambda: fit(Iter([batch(x=X[:, :3])]), None), "(5, 4)"),
    },
    "work_load": {
        f"work_load_list={given!r}": (lambda given=given: fit(work_load_list=given), "work_load_")
        for given in (
            [1, 2],
            [1, 1, 1],
            [-1],
            [np.inf],
            ["a"],
            "abc",
            [],
            (),
            0,
            "",
            {},
            {0: 1},
            [0],
            [np.nan],
            [None],
        )
    },
    "iter": {
        "no rows": (lambda: fit(X[:0], Y[:0]), "rows"),
        "no reset": (lambda: fit(Once(), None, of={"num_epoch": 2}), "start over"),
        "a bare array in a batch": (lambda: fit(Iter([bare()]), None), "list"),
        "provide_data a string": (lambda: fit(Iter(data="data"), None), "provide_data"),
        "provide_data a number": (lambda: fit(Iter(data=5), None), "provide_data"),
        "provide_data without shape": (lambda: fit(Iter(data=[("data", None)]), None), "data"),
        "provide_label a string": (lambda: fit(Iter(label="abc"), None), "provide_label"),
        "score without labels": (lambda: fitted().score(Iter(label=[])), "label"),
        "score of an ArrayIter without labels": (lambda: fitted().score(ArrayIter(X)), "label"),
        "eval_data without labels": (lambda: fit(eval_data=X), "(X, y)"),
        "eval_data a list of three": (lambda: fit(eval_data=(X, Y, Y)), "(X, y)"),
    },
    "value": {
        "nan data": (lambda: fit(with_value(X, np.nan)), "NaN"),
        "inf data": (lambda: fit(with_value(X, np.inf)), "infinite"),
        "nan label": (lambda: fit(y=with_value(Y, np.nan)), "NaN"),
        "nan data of MXNet's iterator": (lambda: fit(stock(with_value(X, np.nan)), None), "NaN"),
        "inf data of MXNet's iterator": (lambda: fit(stock(with_value(X, np.inf)), None), "NaN"),
        "nan label of MXNet's iterator": (lambda: fit(stock(y=with_value(Y, np.nan)), None), "nan"),
        "nan in predict": (lambda: fitted().predict(with_value(X, np.nan)), "row 3"),
        "label between two classes": (lambda: fit(y=with_value(Y, 0.5)), "0.5"),
        "negative label": (lambda: fit(y=with_value(Y, -1)), "-1"),
        "huge label": (lambda: fit(y=with_value(Y, 1e9)), "1e+09"),
        "negative learning rate": (lambda: ff(learning_rate=-1), "learning_rate is -1"),
        "learning rate a string": (lambda: ff(learning_rate="0.1"), "learning_rate is '0.1'"),
        "momentum a string": (lambda: ff(momentum="a"), "momentum"),
        "wd None": (lambda: ff(wd=None), "wd is None"),
        "lr_scheduler a string": (lambda: ff(lr_scheduler="abc"), "lr_scheduler"),
        "object, negative rate": (
            lambda: ff(optimizer=mx.optimizer.SGD(learning_rate=-1)),
            "learning_rate is -1",
        ),
        "object, nan momentum": (
            lambda: ff(optimizer=mx.optimizer.SGD(momentum=np.nan)),
            "momentum is nan",
        ),
        "parameter sparse": (
            lambda: fit(
                of={"arg_params": damaged("fc1_weight", mx.nd.ones((5, 4)).tostype("csr"))}
            ),
            "csr",
        ),
        "parameter a list": (lambda: fit(of={"arg_params": {"fc1_weight": [[1]]}}), "fc1_weight"),
        "parameter None": (lambda: fit(of={"arg_params": {"fc1_weight": None}}), "fc1_weight"),
        "parameters a string": (lambda: fit(of={"arg_params": "abc"}), "arg_params"),
        "parameters a list": (lambda: fit(of={"arg_params": [1]}), "arg_params"),
        "states a string": (lambda: fit(of={"aux_params": "abc"}), "aux_params"),
        "nan parameter": (
            lambda: fit(of=mended(arg_params=damaged("fc1_bias", mx.nd.ones(5) * np.nan))),
            "fc1_bias",
        ),
        "inf parameter in predict": (
            lambda: ff(**mended(arg_params=damaged("fc1_bias", mx.nd.ones(5) * np.inf))).predict(X),
            "fc1_bias",
        ),
        "training diverges": (
            lambda: fit(
                X,
                10 * Y,
                of={"symbol": regression(), "num_epoch": 30, "learning_rate": 100.0},
                eval_metric="mse",
            ),
            "learning rate",
        ),
    },
    "dtype": {
        "float16 layer": (lambda: half(mx.sym.Flatten), "float16"),
        "float16 convolution": (
            lambda: half(
                lambda x: mx.sym.Convolution(x, kernel=(2, 2), num_filter=2, name="conv"),
                np.ones((N, 1, 4, 4), "float32"),
            ),
            "float16",
        ),
        "float16 into a loss": (lambda: fit(of={"symbol": half_label()}), "mx.sym.cast"),
        "complex numbers": (lambda: fit(X.astype(complex)), "complex"),
        "too large for float32": (lambda: fit(X.astype(float) * 1e300), "too large"),
        "ragged list": (lambda: fit([[1, 2], [3]], [0, 1]), "rows differ"),
        "objects": (lambda: fit(np.array([[object()] * 4] * N)), "real"),
        "strings": (lambda: fit(np.array([["a"] * 4] * N)), "real"),
        **{
            f"ArrayIter of {dtype}": (
                lambda dtype=dtype: fit(ArrayIter(np.abs(X), Y, 8, dtype={"data": dtype}), None),
                "float32",
            )
            for dtype in ("uint8", "int8", "int32", "int64", "float16", "bool")
        },
    },
    "arg": {
        "gpu on a CPU build": (lambda: ff(ctx=mx.gpu(63)), "gpu(63)"),
        "mixed contexts": (lambda: ff(ctx=[mx.cpu(0), mx.gpu(63)]), "mixes"),
        "ctx a string": (lambda: ff(ctx="cpu"), "'cpu'"),
        "unknown kvstore": (lambda: fit(kvstore="locl"), "'local'"),
        "kvstore a number": (lambda: fit(kvstore=5), "kvstore is 5"),
        "unknown optimizer": (lambda: ff(optimizer="sdg"), "'sgd'"),
        "unknown metric": (lambda: fit(eval_metric="acccc"), "'acc'"),
        "metric class": (lambda: fit(eval_metric=mx.metric.Accuracy), "Accuracy()"),
        "f1 of three classes": (lambda: fit(eval_metric="f1"), "f1"),
        "metric that complains": (lambda: fit(eval_metric=WithLine()), "fussy"),
        "callback class": (
            lambda: fit(batch_end_callback=mxloop.callback.Speedometer),
            "Speedometer(",
        ),
        "Callback class": (lambda: fit(callbacks=[mxloop.callback.Callback]), "Callback("),
        "monitor": (lambda: fit(monitor="x"), "monitor is 'x'"),
        "logger": (lambda: fit(logger="x"), "logger is 'x'"),
        **{
            f"seed={seed!r}": (lambda seed=seed: fit(seed=seed), "seed is")
            for seed in (1.5, "a", 2**40, -1)
        },
        **{
            f"seed={seed!r} with an iterator": (
                lambda seed=seed: fit(Iter(), None, seed=seed),
                "seed is",
            )
            for seed in (1.5, "a", 2**40, -1)
        },
        "no epochs": (lambda: fit(of={"num_epoch": None}), "num_epoch"),
        "negative epochs": (lambda: ff(num_epoch=-1), "num_epoch is -1"),
        "predict before fit": (lambda: ff().predict(X), "no parameters"),
        "save before fit": (lambda: ff().save("x"), "no parameters"),
        "initializer a class": (lambda: ff(initializer=mx.init.Xavier), "mx.init.Xavier()"),
        "initializer a string": (lambda: ff(initializer="xavier"), "'xavier'"),
        "no symbol": (lambda: FeedForward(None), "symbol is None"),
        "symbol without loss": (lambda: fit(of={"symbol": nets.mlp((5,), 3, head=False)}), ""),
    },
    "save": {
        "None": (lambda: fitted().save(None), "None"),
        "number": (lambda: fitted().save(5), "5"),
        "NUL": (lambda: fitted().save("a\0b"), "NUL"),
        "URI": (lambda: fitted().save("foo://bar/x"), "folder"),
        "load None": (lambda: FeedForward.load(None, 1), "None"),
        "load NUL": (lambda: FeedForward.load("a\0b", 1), "NUL"),
        "load a missing file": (lambda: FeedForward.load("/nowhere/x", 1), "no file"),
        "load an epoch string": (lambda: FeedForward.load("x", "1"), "epoch is '1'"),
    },
    "manager": {
        "metric by name": (lambda: ready().update_metric("acb", [mx.nd.array(Y[:8])]), "'acb'"),
        "no arg_params": (lambda: manager().set_params(None, {}), "arg_params is None"),
        "initialize_kvstore": (
            lambda: model.initialize_kvstore(mx.kv.create("local"), grads(1, 2), {}, ["w"], False),
            "'w'",
        ),
        "create_kvstore": (lambda: model.create_kvstore("local", 2, None), "arg_params is None"),
        "init_params": (
            lambda: model.init_params(net(), None, mx.init.Uniform()),
            "inputs is None",
        ),
        "update_params for one device": (
            lambda: model.update_params(grads(1, 2), grads(1, 2), updater(), 1),
            "num_device is 1",
        ),
        "update_params without gradients": (
            lambda: model.update_params(grads(2, 1), [], updater(), 1),
            "grad",
        ),
    },
}
CASES = [
    pytest.param(call, said, id=f"{section}: {case}")
    for section, cases in REFUSED.items()
    for case, (call, said) in cases.items()
]


@pytest.mark.parametrize("call, said", CASES)
def test_a_mistake_is_told_in_one_line(call, said):
    with pytest.raises(MXLoopError) as caught:
        call()
    assert said in one_line(caught)


WORKS = {
    "learning rate None, MXNet's default": lambda: fit(of={"learning_rate": None}),
    "soft labels with a metric for them": lambda: fit(
        y=np.eye(CLASSES)[Y.astype(int)] * 0.9, eval_metric="mse"
    ),
    "batch smaller than devices": lambda: fit(X[:1], Y[:1], of={"ctx": CPUS[:2]}),
    "batch of 5 on 2 devices": lambda: fit(of={"ctx": CPUS[:2], "numpy_batch_size": 5}),
    "batch of 3 on 2 devices": lambda: fit(of={"ctx": CPUS[:2], "numpy_batch_size": 3}),
    "batches of other rows": lambda: fit(Iter([batch(), batch(n=5)]), None),
    "loads as an array": lambda: fit(of={"ctx": CPUS[:2]}, work_load_list=np.array([3, 1])),
    "loads as a tuple": lambda: fit(of={"ctx": CPUS[:2]}, work_load_list=(3, 1)),
    "eval data of fewer rows than a batch": lambda: fit(eval_data=(X[:3], Y[:3])),
    "int64": lambda: fit(X.astype(np.int64)),
    "int32": lambda: fit(X.astype(np.int32)),
    "float64": lambda: fit(X.astype(np.float64)),
    "float16": lambda: fit(X.astype(np.float16)),
    "not contiguous": lambda: fit(np.repeat(X, 2, 1)[:, ::2]),
    "Fortran order": lambda: fit(np.asfortranarray(X)),
    "big-endian": lambda: fit(X.astype(">f4")),
    "list": lambda: fit(X.tolist(), Y.tolist()),
    "kvstore None on two devices": lambda: fit(of={"ctx": CPUS[:2]}, kvstore=None),
    "iterator with next alone": lambda: fit(OnlyNext(), None),
    "metric by name in update_metric": lambda: ready().update_metric(mx.metric.Accuracy(), [Y[:8]]),
    "eval data with next alone": lambda: fit(OnlyNext(), None, eval_data=OnlyNext()),
    "bare arrays in a batch": lambda: fit(
        Iter([mx.io.DataBatch([mx.nd.array(X[:8])], [mx.nd.array(Y[:8])])]), None
    ),
    "NumPy seed": lambda: fit(seed=np.int64(3)),
}


@pytest.mark.parametrize("call", list(WORKS.values()), ids=list(WORKS))
def test_an_odd_input_works(call):
    call()


NAMES = [
    "with space",
    "umlaut \u00fc",
    os.fsdecode(b"latin \xe9"),
    "back\\slash",
    "per%cent%s",
    "a:b",
]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
@pytest.mark.parametrize("kind", [str, pathlib.Path, os.fsencode])
def test_a_model_is_saved_and_loaded_under_any_file_name(tmp_path, name, kind):
    path = kind(os.path.join(str(tmp_path), name))
    net = fitted()
    net.save(path, 12345)
    nets.assert_equal(FeedForward.load(path, 12345).arg_params, net.arg_params)


HEADER = (0x112).to_bytes(8, "little") + bytes(8)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 64,
        HEADER,
        HEADER + b"\xff" * 8,
        HEADER + (1).to_bytes(8, "little") + b"\xff" * 40,
    ],
    ids=["empty", "bad magic", "truncated", "huge count", "huge shape"],
)
def test_a_damaged_parameter_file_is_told_in_one_line(tmp_path, content):
    check_damaged(tmp_path, "x-0001.params", content)


@pytest.mark.parametrize(
    "content", [b"", b"abc", b'{"nodes": [', b"null", b"{}", b'{"nodes": 5}', b"[[[[", b"\xff\xfe"]
)
def test_a_damaged_symbol_file_is_told_in_one_line(tmp_path, content):
    check_damaged(tmp_path, "x-symbol.json", content)


def check_damaged(folder, name, content):
    """Without a manifest, whose checksums would tell all."""
    fitted().save(folder / "x", 1)
    os.remove(str(folder / "x-0001.json"))
    (folder / name).write_bytes(content)
    with pytest.raises(MXLoopError) as caught:
        FeedForward.load(folder / "x", 1)
    assert name in one_line(caught)


def test_two_metrics_of_one_name_have_a_key_each():
    net = fit(eval_metric=["acc", "acc", mx.metric.Accuracy()], eval_data=(X, Y))
    row = net.history[0]
    for kind in ("train", "val"):
        assert {f"{kind}_accuracy", f"{kind}_accuracy_2", f"{kind}_accuracy_3"} <= set(row)


def test_a_divergence_keeps_the_epoch_before():
    net = ff(regression(), num_epoch=30, learning_rate=100.0)
    with pytest.raises(DivergedError, match="epoch"):
        net.fit(X, 10 * Y, eval_metric="mse")
    assert all(np.isfinite(value.asnumpy()).all() for value in net.arg_params.values())
    assert net.history and net.history[-1]["epoch"] + 1 == net._epoch


def test_the_cause_of_a_metric_s_complaint_is_kept():
    with pytest.raises(DataError) as caught:
        fit(eval_metric=WithLine())
    assert isinstance(caught.value.__cause__, ValueError)


class Broken(Iter):
    def next(self):
        if self.place == 2:
            raise OSError("the disk is gone")
        return super().next()


def test_an_iterator_s_own_error_is_unchanged_and_what_was_learned_stays():
    net = ff()
    with pytest.raises(OSError, match="^the disk is gone$"):
        net.fit(Broken())
    assert net.predict(X).shape == (N, CLASSES)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_in_the_first_epoch_keeps_the_parameters(number):
    net = ff()
    with pytest.raises(KeyboardInterrupt):
        net.fit(X, Y, batch_end_callback=lambda _: os.kill(os.getpid(), number))
    assert net.predict(X).shape == (N, CLASSES)


def test_two_fits_in_two_threads_are_as_each_alone():
    made = {}

    def work(key):
        made[key] = fit(of={"arg_params": params()[0], "num_epoch": 3}, seed=key)

    threads = [threading.Thread(target=work, args=(key,)) for key in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for key in (1, 2):
        together = made[key].arg_params
        work(key)
        nets.assert_equal(together, made[key].arg_params)


def test_one_hot_labels_are_refused_before_a_step():
    net = fitted()
    before = net.predict(X)
    with pytest.raises(DataError, match="class numbers"):
        net.fit(X, np.eye(CLASSES)[Y.astype(int)])
    assert np.array_equal(net.predict(X), before)
