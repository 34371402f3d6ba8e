"""MXNet imports and works here; where it cannot, one line says why and what to do."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from mxloop import cuda
from mxloop.compat import mx
from mxloop.cpu import usable_cores

ROOT = Path(__file__).resolve().parents[1]


def run(code, *folders, **environ):
    """Run `code` in a new Python that finds `folders` before all others; return what it prints."""
    # What importing mxloop set here would pass for the user's choice there.
    defaults = ("OMP_NUM_THREADS", "MXNET_CPU_TEMP_COPY")
    inherited = {name: value for name, value in os.environ.items() if name not in defaults}
    path = os.pathsep.join(map(str, [*folders, ROOT]))
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**inherited, "PYTHONPATH": path, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        cwd=str(ROOT),
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# The import


def test_mxnet_by_itself_is_the_same_module_afterwards():
    code = (
        "import mxloop.compat as c, mxnet; print(mxnet is c.mx, mxnet.nd.ones(2).asnumpy().sum())"
    )
    assert run(code) == "True 2.0"


def test_numpy_is_left_as_it_was_but_for_the_two_names_that_mxnet_reads_later():
    code = """
import numpy as np
before = dict(vars(np))
import mxloop.compat
changed = [name for name in before if vars(np)[name] is not before[name]]
assert not changed, changed
submodule = type(np)  # NumPy and others import more of them, as they like
added = {k: v for k, v in vars(np).items() if k not in before and not isinstance(v, submodule)}
new = np.lib.NumpyVersion(np.__version__) >= "1.24.0"
kept = {"bool": np.bool_, "Inf": np.inf} if new else {}
assert added == {name: kept[name] for name in kept if name not in before}, added
"""
    run(code)


def test_numbers_print_as_without_mxloop():
    show = "import numpy as np; print([np.float64(1.5), np.int64(3)], np.get_printoptions())"
    assert run("import mxloop.compat; " + show) == run(show)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="this Python has distutils")
def test_the_python_that_lacks_distutils_still_lacks_it_afterwards():
    code = """
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("distutils", "setuptools"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nowhere())
import mxloop.compat
print([name for name in sys.modules if name.startswith("distutils")])
"""
    assert run(code) == "[]"


def test_mxnet_may_have_been_imported_first_with_a_shim_of_the_users_own():
    code = """
import os, sys, types
import numpy as np
names = ("PZERO NZERO NINF PINF NAN NaN Inf alltrue sometrue product round_ msort "
         "mirr npv pmt ppmt pv rate in1d trapz")
if np.lib.NumpyVersion(np.__version__) >= "1.24.0":
    vars(np).setdefault("bool", np.bool_)
if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
    for name in names.split():
        vars(np).setdefault(name, np.nan)
if sys.version_info >= (3, 12):
    version = types.ModuleType("distutils.version")
    version.LooseVersion = version.StrictVersion = str
    sys.modules["distutils.version"] = version
import mxnet
environ = dict(os.environ)
from mxloop.compat import mx
assert mx is mxnet
assert os.environ == environ, "too late to set anything"
print(mx.nd.zeros((np.int64(2), 3)).shape)
"""
    assert run(code) == "(2, 3)"


SHOW_THREADS_WHEN_LOADED = """
import ctypes, os
class CDLL(ctypes.CDLL):
    def __init__(self, name, *args, **kwargs):
        if "libmxnet" in str(name):
            print(os.environ.get("OMP_NUM_THREADS"))
        super().__init__(name, *args, **kwargs)
ctypes.CDLL = CDLL
import mxloop.compat
"""


def test_all_cores_are_asked_for_before_mxnets_library_is_loaded():
    assert run(SHOW_THREADS_WHEN_LOADED) == str(usable_cores())


def test_the_users_number_of_threads_stays():
    assert run(SHOW_THREADS_WHEN_LOADED, OMP_NUM_THREADS="7") == "7"


# What stands in the way


def fake_mxnet(folder, code):
    (folder / "mxnet").mkdir()
    (folder / "mxnet" / "__init__.py").write_text(code)


def fake_distribution(folder, name):
    info = folder / f"{name.replace('-', '_')}-1.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.9.1\n")


def refusal(*folders, before=""):
    """Return the one line with which mxloop refuses to be imported."""
    code = f"""
{before}
try:
    import mxloop.compat
except ImportError as error:
    print(type(error).__name__, error, sep=": ")
"""
    name, _, line = run(code, *folders).partition(": ")
    assert name == "InstallError"
    assert len(line) <= 250
    assert "\n" not in line
    return line


def test_without_mxnet_the_line_names_the_install_command():
    line = refusal(before="import sys; sys.modules['mxnet'] = None")
    assert line.startswith("MXNet is not installed: run pip install ")
    assert ("mxnet==1.9.1" if sys.version_info >= (3, 13) else '"mxloop[cpu]"') in line


def test_a_cuda_build_without_a_driver_names_the_driver_and_the_cpu_build(tmp_path):
    missing = "libcuda.so.1: cannot open shared object file: No such file or directory"
    fake_mxnet(tmp_path, f"raise OSError({missing!r})")
    fake_distribution(tmp_path, "mxnet-cu117")
    line = refusal(tmp_path)
    assert line.startswith(
        "mxnet-cu117 is built for CUDA and finds no NVIDIA driver (libcuda.so.1)"
    )
    assert "install the driver, or uninstall mxnet-cu117 and run pip install" in line


def test_a_missing_cuda_library_names_the_extra_that_brings_it(tmp_path):
    missing = "libcudnn.so.8: cannot open shared object file: No such file or directory"
    fake_mxnet(tmp_path, f"raise OSError({missing!r})")
    fake_distribution(tmp_path, "mxnet-cu112")
    line = refusal(tmp_path)
    assert "libcudnn.so.8" in line
    assert line.endswith('run pip install "mxloop[cu112]"')


def test_any_other_missing_library_is_named_as_the_loader_names_it(tmp_path):
    fake_mxnet(tmp_path, "import ctypes; ctypes.CDLL('libmxloop-has-none.so.3')")
    line = refusal(tmp_path)
    assert line.startswith("MXNet does not find the library libmxloop-has-none.so.3: install")


def test_a_missing_package_is_named(tmp_path):
    fake_mxnet(tmp_path, "import package_that_is_not_there")
    line = refusal(tmp_path)
    assert line.endswith("'package_that_is_not_there': run pip install package_that_is_not_there")


@pytest.mark.parametrize(
    "code",
    [
        "raise RuntimeError('Cannot find the MXNet library.\\nList of candidates:\\n' + 'x' * 999)",
        "raise OSError('y' * 999)",
        "import numpy; numpy.a_name_that_a_later_numpy_removed",
        "import mxnet.a_part_that_is_not_there",
    ],
)
def test_a_broken_mxnet_is_one_line_with_the_versions_and_the_reason(tmp_path, code):
    fake_mxnet(tmp_path, code)
    line = refusal(tmp_path)
    assert f"NumPy {np.__version__} (" in line
    assert "reinstall it" in line


@pytest.mark.parametrize("code", ["__version__ = '2.0.0'", ""])
def test_an_mxnet_of_another_age_is_refused(tmp_path, code):
    fake_mxnet(tmp_path, code)
    assert "mxloop needs 1.9" in refusal(tmp_path)


def test_cuda_libraries_from_wheels_are_in_memory_before_mxnet_is_imported(tmp_path):
    fake_mxnet(tmp_path, "import ctypes; print(*ctypes.loaded); raise OSError('stop here')")
    fake_distribution(tmp_path, "mxnet-cu117")
    for library in cuda.LIBRARIES:
        path = tmp_path / "nvidia" / library.partition(".")[0] / "lib" / library
        path.parent.mkdir(parents=True)
        path.touch()
    code = """
import ctypes, os
ctypes.loaded = []
ctypes.CDLL = lambda path, mode: ctypes.loaded.append(os.path.basename(path))
try:
    import mxloop.compat
except ImportError:
    pass
"""
    assert run(code, tmp_path).split() == list(cuda.LIBRARIES)


# NumPy's numbers as operator attributes


def shapes_and_kernels():
    """Compute with NumPy integers in every tuple that MXNet turns into text."""
    two, three = np.int64(2), np.int32(3)
    ones = mx.nd.ones((two, three, np.int64(4), np.int64(4)))
    pooled = mx.nd.Pooling(ones, kernel=(two, two), stride=(two, two), pool_type="sum")
    data = mx.sym.Variable("data", shape=(two, three))
    flat = mx.sym.reshape(data, shape=(three, two))
    shape = flat.infer_shape()[1][0]
    return pooled.asnumpy().sum(), shape


def test_numpy_integers_in_shapes_and_kernels():
    assert shapes_and_kernels() == (2 * 3 * 4 * 4, (3, 2))


def test_numpy_integers_in_other_threads_too():
    results = []
    thread = threading.Thread(target=lambda: results.append(shapes_and_kernels()))
    thread.start()
    thread.join()
    assert results == [(2 * 3 * 4 * 4, (3, 2))]


def test_numpy_learning_rates_in_an_update_of_several_arrays():
    weights = [mx.nd.ones(3), mx.nd.ones(2)]
    grads = [mx.nd.ones(3), mx.nd.ones(2)]
    arrays = [array for pair in zip(weights, grads) for array in pair]
    rates = [np.float32(0.1), np.float64(0.5)]
    decays = [np.float64(0), np.float64(0)]
    mx.nd.multi_sgd_update(*arrays, out=weights, lrs=rates, wds=decays, num_weights=2)
    np.testing.assert_allclose(weights[0].asnumpy(), 0.9, rtol=1e-6)
    np.testing.assert_allclose(weights[1].asnumpy(), 0.5, rtol=1e-6)


def test_numpy_integers_in_a_file_iterators_shape(tmp_path):
    table = np.arange(12, dtype="float32").reshape(4, 3)
    np.savetxt(str(tmp_path / "data.csv"), table, delimiter=",")
    data = mx.io.CSVIter(
        data_csv=str(tmp_path / "data.csv"), data_shape=(np.int64(3),), batch_size=2
    )
    np.testing.assert_array_equal(np.vstack([b.data[0].asnumpy() for b in data]), table)


def test_the_orthogonal_initializer_gives_orthogonal_rows():
    weight = mx.nd.zeros((4, 6))
    mx.init.Orthogonal(scale=1.0)(mx.init.InitDesc("some_weight"), weight)
    np.testing.assert_allclose((weight.asnumpy() @ weight.asnumpy().T), np.eye(4), atol=1e-5)


def test_text_attributes_pass_through_unchanged():
    variable = mx.sym.Variable("x", attr={"note": "np.int64(3) and more"})
    assert variable.attr("note") == "np.int64(3) and more"
    with pytest.raises(AssertionError):
        variable.optimize_for(3)  # MXNet asks isinstance(backend, str)
    assert mx.sym.Variable("x").optimize_for("MKLDNN").name == "x"


# What else MXNet does, under whichever NumPy is here


def test_operators_and_gradients_equal_numpys():
    rng = np.random.RandomState(0)
    a, b = rng.rand(3, 4).astype("float32"), rng.rand(4, 2).astype("float32")
    x, y = mx.nd.array(a), mx.nd.array(b)
    x.attach_grad()
    with mx.autograd.record():
        z = mx.nd.dot(x, y).square().sum()
    z.backward()
    np.testing.assert_allclose(x.grad.asnumpy(), 2 * a @ b @ b.T, rtol=1e-5)


def test_a_module_step_equals_the_same_step_in_numpy():
    data = mx.sym.Variable("data")
    label = mx.sym.Variable("label")
    out = mx.sym.FullyConnected(data, num_hidden=1, no_bias=True, name="fc")
    net = mx.sym.LinearRegressionOutput(out, label)
    x, y = np.float32([[1, 2], [3, 4]]), np.float32([[1], [2]])
    module = mx.mod.Module(net, label_names=["label"])
    batches = mx.io.NDArrayIter(x, y, batch_size=2, label_name="label")
    module.bind(batches.provide_data, batches.provide_label)
    module.init_params(mx.init.Constant(0.5))
    module.init_optimizer(kvstore="local", optimizer_params={"learning_rate": np.float64(0.1)})
    module.forward_backward(next(batches))
    module.update()
    w = np.full((1, 2), 0.5)
    expected = w - 0.1 * (x @ w.T - y).T @ x / 2
    np.testing.assert_allclose(module.get_params()[0]["fc_weight"].asnumpy(), expected, rtol=1e-6)


def test_a_gluon_net_learns_a_line():
    net = mx.gluon.nn.Dense(1)
    net.initialize()
    net.hybridize()
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.1})
    x = mx.nd.array(np.linspace(-1, 1, 16).reshape(16, 1))
    loss_of = mx.gluon.loss.L2Loss()
    for _ in range(200):
        with mx.autograd.record():
            loss = loss_of(net(x), 3 * x + 1)
        loss.backward()
        trainer.step(16)
    np.testing.assert_allclose(net.weight.data().asnumpy(), [[3]], atol=0.02)
    np.testing.assert_allclose(net.bias.data().asnumpy(), [1], atol=0.02)


def test_early_stopping_of_gluons_estimator_starts():
    from mxnet.gluon.contrib.estimator import EarlyStoppingHandler

    handler = EarlyStoppingHandler(mx.metric.Accuracy())
    handler.train_begin(None)  # reads a NumPy name that NumPy 2 removed
    assert handler.best == -np.inf


def test_metrics_equal_numpys():
    labels = np.array([0, 1, 1, 0, 1])
    scores = np.float32([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]])
    args = [mx.nd.array(labels)], [mx.nd.array(scores)]
    expected = {
        "acc": np.mean(scores.argmax(axis=1) == labels),
        "ce": -np.log(scores[np.arange(5), labels]).mean(),
        "f1": 2 * 2 / (2 * 2 + 1 + 1),
    }
    for name, value in expected.items():
        metric = mx.metric.create(name)
        metric.update(*args)
        assert metric.get()[1] == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize("name", ["sgd", "nag", "adam", "rmsprop", "adagrad", "ftrl", "lamb"])
def test_every_optimizer_goes_downhill(name):
    optimizer = mx.optimizer.create(name, learning_rate=0.01)
    weight, update = mx.nd.ones(3), mx.optimizer.get_updater(optimizer)
    for _ in range(3):
        update(0, 2 * weight, weight)
    assert (weight.asnumpy() < 1).all()


def test_a_kvstore_sums_over_devices():
    store = mx.kv.create("device")
    store.init("w", mx.nd.zeros(3))
    store.push("w", [mx.nd.ones(3, mx.cpu(0)), 2 * mx.nd.ones(3, mx.cpu(1))])
    out = mx.nd.zeros(3)
    store.pull("w", out)
    np.testing.assert_array_equal(out.asnumpy(), [3, 3, 3])


def test_records_with_one_and_with_several_labels_come_back(tmp_path):
    path = str(tmp_path / "some.rec")
    records = [
        (3.0, b"one label"),
        ([1.0, 2.0, 4.0], b"three labels"),
        (np.float32([7, 8]), b"two"),
    ]
    writer = mx.recordio.MXRecordIO(path, "w")
    for index, (label, content) in enumerate(records):
        writer.write(mx.recordio.pack((0, label, index, 0), content))
    writer.close()
    reader = mx.recordio.MXRecordIO(path, "r")
    for index, (label, content) in enumerate(records):
        header, read = mx.recordio.unpack(reader.read())
        assert (header.id, read) == (index, content)
        np.testing.assert_array_equal(header.label, label)
    assert reader.read() is None


@pytest.mark.parametrize("name, option", [(".jpg", "quality"), (".PNG", "compression")])
def test_images_are_packed_with_their_option(monkeypatch, name, option):
    class FakeCV2:
        IMWRITE_JPEG_QUALITY, IMWRITE_PNG_COMPRESSION = "quality", "compression"

        @staticmethod
        def imencode(fmt, img, options):
            assert (fmt, options) == (name, [option, 5])
            return True, _Encoded(img)

    class _Encoded(np.ndarray):
        def __new__(cls, img):
            return np.asarray(img, dtype=np.uint8).view(cls)

        def tostring(self):  # as on every NumPy before 2.3
            return self.tobytes()

    monkeypatch.setattr(mx.recordio, "cv2", FakeCV2)
    packed = mx.recordio.pack_img((0, 6.0, 1, 0), [1, 2, 3], quality=5, img_fmt=name)
    header, content = mx.recordio.unpack(packed)
    assert (header.label, content) == (6.0, b"\x01\x02\x03")


def test_sparse_arrays_equal_their_dense_ones():
    dense = np.float32([[0, 0, 1], [0, 0, 0], [2, 0, 3]])
    for stype in ("csr", "row_sparse"):
        sparse = mx.nd.array(dense).tostype(stype)
        np.testing.assert_array_equal(sparse.asnumpy(), dense)
        np.testing.assert_array_equal(sparse.tostype("default").asnumpy(), dense)


class _Shapes(mx.operator.CustomOp):
    def forward(self, is_train, req, in_data, out_data, aux):
        # Runs in a thread of MXNet's, and asks for a shape of NumPy integers.
        twos = mx.nd.full(tuple(np.array(in_data[0].shape)), 2)
        self.assign(out_data[0], req[0], in_data[0] * twos)

    def backward(self, req, out_grad, in_data, out_data, in_grad, aux):
        self.assign(in_grad[0], req[0], 2 * out_grad[0])


@mx.operator.register("mxloop_test_shapes")
class _ShapesProp(mx.operator.CustomOpProp):
    def __init__(self):
        super().__init__(need_top_grad=True)

    def create_operator(self, ctx, in_shapes, in_dtypes):
        return _Shapes()


def test_a_custom_operator_computes_and_differentiates():
    x = mx.nd.array([[1, 2, 3]])
    x.attach_grad()
    with mx.autograd.record():
        y = mx.nd.Custom(x, op_type="mxloop_test_shapes")
    y.backward()
    np.testing.assert_array_equal(y.asnumpy(), [[2, 4, 6]])
    np.testing.assert_array_equal(x.grad.asnumpy(), [[2, 2, 2]])


@pytest.mark.filterwarnings("ignore:.*(trapz|in1d|msort|alltrue|sometrue)")
def test_mxnets_numpy_equals_numpy():
    values = np.float32([[3, 1], [2, 5]])
    array = mx.np.array(values)
    np.testing.assert_array_equal(array[array > 2].asnumpy(), values[values > 2])
    np.testing.assert_array_equal(mx.np.in1d(array, mx.np.array([1, 5])).asnumpy(), [0, 1, 0, 1])
    np.testing.assert_array_equal(mx.np.msort(array).asnumpy(), np.sort(values, axis=0))
    assert float(mx.np.trapz(mx.np.array([1.0, 2.0, 3.0]))) == 4.0
    assert bool(mx.np.alltrue(array > 0)) and bool(mx.np.sometrue(array > 4))
    assert mx.np.isnan(mx.np.array([mx.np.NaN])).asnumpy().all()
