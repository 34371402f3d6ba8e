"""Exports: onnxruntime and Gluon predict what mxloop does."""

import importlib
import subprocess
import sys
from pathlib import Path

import nets
import numpy as np
import pytest
from nets import one_line

from mxloop import FeedForward, cli, export, mx, save_checkpoint
from mxloop.errors import ArgumentError, DataError, InstallError, MXLoopError

SYMBOLS = Path(__file__).resolve().parent.parent / "example" / "image-classification"
EXAMPLES = {"mlp": (1, 28, 28), "lenet": (1, 28, 28), "resnet": (3, 32, 32)}


def example(name, monkeypatch):
    monkeypatch.syspath_prepend(str(SYMBOLS))
    return importlib.import_module(f"symbols.{name}").get_symbol(num_classes=10)


def trained(symbol, shape=(10,), epochs=2, **settings):
    """A model after some steps, so that BatchNorm's statistics are not those it began with."""
    x, y = nets.samples(24, shape)
    model = FeedForward(
        symbol, num_epoch=epochs, numpy_batch_size=8, initializer=mx.init.Xavier(), **settings
    )
    return model.fit(x, y, seed=3), x


def in_onnxruntime(path, **inputs):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == list(inputs)
    return session.run(None, inputs)


# --- ONNX ---------------------------------------------------------------------------------------


@pytest.fixture
def onnx():
    pytest.importorskip("onnxruntime")
    return pytest.importorskip("onnx")


@pytest.mark.parametrize("name", EXAMPLES)
def test_onnxruntime_predicts_what_mxloop_does(onnx, monkeypatch, tmp_path, name):
    model, x = trained(example(name, monkeypatch), EXAMPLES[name], epochs=1)
    difference = export.to_onnx(model, tmp_path / "model.onnx")
    expected = model.predict(x)
    assert np.ptp(expected) > 0.01
    (found,) = in_onnxruntime(tmp_path / "model.onnx", data=x)
    assert np.abs(found - expected).max() < 1e-4
    assert 0 <= difference < 1e-4


def two_inputs():
    left = mx.sym.FullyConnected(mx.sym.var("left"), num_hidden=3, name="fc_left")
    right = mx.sym.FullyConnected(mx.sym.var("right"), num_hidden=3, name="fc_right")
    return mx.sym.SoftmaxOutput(mx.sym.concat(left, right), name="softmax")


def test_several_inputs_and_outputs(onnx, tmp_path):
    one = two_inputs()
    two = mx.sym.LogisticRegressionOutput(one.get_internals()["fc_left_output"], name="logistic")
    args, aux = nets.params(mx.sym.Group([one, two]), left=(2, 4), right=(2, 5))
    model = FeedForward(mx.sym.Group([one, two]), arg_params=args, aux_params=aux)
    x = {"left": nets.samples(6, (4,))[0], "right": nets.samples(6, (5,))[0]}
    export.to_onnx(model, tmp_path / "m.onnx", {"left": (4,), "right": (5,)})
    for found, expected in zip(in_onnxruntime(tmp_path / "m.onnx", **x), model.predict(x)):
        np.testing.assert_allclose(found, expected, atol=1e-4)


def fully_connected(data):
    return mx.sym.FullyConnected(data, num_hidden=3, name="fc")


DEFAULTS = {
    "flatten": (fully_connected(mx.sym.var("data")), (2, 3)),
    "fix_gamma": (fully_connected(mx.sym.BatchNorm(mx.sym.var("data"))), (2, 4, 4)),
    "count_include_pad": (
        mx.sym.Pooling(mx.sym.var("data"), kernel=(3, 3), pad=(1, 1), pool_type="avg"),
        (2, 4, 4),
    ),
    "no_bias": (
        mx.sym.Deconvolution(data=mx.sym.var("data"), kernel=(2, 2), num_filter=3),
        (2, 4, 4),
    ),
    "layer_norm": (mx.sym.LayerNorm(mx.sym.var("data")), (6,)),
    "not flat": (mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=4, flatten=False), (5, 3)),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_a_network_leaves_unsaid_is_what_mxnet_takes_it_for(onnx, tmp_path, name):
    net, shape = DEFAULTS[name]
    heads = {"no_bias": {"multi_output": True}, "not flat": {"preserve_shape": True}}
    net = mx.sym.SoftmaxOutput(net, name="softmax", **heads.get(name, {}))
    args, aux = nets.params(net, data=(2, *shape))
    model = FeedForward(net, arg_params=args, aux_params=aux)
    export.to_onnx(model, tmp_path / "m.onnx", {"data": shape})
    x, _ = nets.samples(5, shape)
    (found,) = in_onnxruntime(tmp_path / "m.onnx", data=x)
    np.testing.assert_allclose(found, model.predict(x), atol=1e-5)


@pytest.mark.parametrize("operator", [mx.sym.LRN, mx.sym.LeakyReLU])
def test_a_network_that_the_converter_gets_wrong_is_one_line(onnx, tmp_path, operator):
    settings = {"nsize": 3} if operator is mx.sym.LRN else {"act_type": "prelu"}
    net = mx.sym.SoftmaxOutput(fully_connected(operator(mx.sym.var("data"), **settings)))
    args, _ = nets.params(net, data=(2, 5, 4, 4))
    with pytest.raises(MXLoopError) as caught:
        export.to_onnx(FeedForward(net, arg_params=args), tmp_path / "m", {"data": (5, 4, 4)})
    assert "converter" in one_line(caught)


def test_a_file_that_predicts_otherwise_is_an_error_and_is_not_written(onnx, monkeypatch, tmp_path):
    model, _ = trained(nets.mlp())
    whole = model.predict
    monkeypatch.setattr(model, "predict", lambda x: whole(x) + 1e-3)
    with pytest.raises(DataError) as caught:
        export.to_onnx(model, tmp_path / "m.onnx")
    assert "by up to 0.001" in one_line(caught)
    assert list(tmp_path.iterdir()) == []


def test_an_operator_without_a_counterpart_is_one_line(onnx, tmp_path):
    net = mx.sym.SoftmaxOutput(
        mx.sym.FullyConnected(mx.sym.erfinv(mx.sym.var("data")), num_hidden=4)
    )
    args, _ = nets.params(net, data=(2, 3))
    with pytest.raises(ArgumentError) as caught:
        export.to_onnx(FeedForward(net, arg_params=args), tmp_path / "m.onnx", {"data": (3,)})
    assert "erfinv" in one_line(caught)


def test_what_cannot_be_exported_is_one_line(onnx, tmp_path):
    model, _ = trained(nets.mlp())
    args = model.arg_params
    prediction = mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=1)
    loss = mx.sym.MakeLoss(prediction - mx.sym.var("label"))
    blind = FeedForward(loss, arg_params=nets.params(loss, data=(1, 2), label=(1, 1))[0])
    cases = {
        "no parameters": (FeedForward(nets.mlp()), None),
        "--shape data=1,28,28": (FeedForward(nets.mlp(), arg_params=args), None),
        "a side of 'data' is 0": (model, {"data": (0,)}),
        "pass a dict": (model, (1, 28, 28)),
        "pass a FeedForward": (nets.mlp(), None),
        "needs the labels label": (blind, {"data": (2,)}),
    }
    for text, (given, shapes) in cases.items():
        with pytest.raises(MXLoopError) as caught:
            export.to_onnx(given, tmp_path / "m.onnx", shapes)
        assert text in one_line(caught)
    with pytest.raises(DataError) as caught:
        export.to_onnx(model, tmp_path / "absent" / "m.onnx")
    one_line(caught)


def test_without_onnx_the_extra_is_named(monkeypatch, tmp_path):
    model, _ = trained(nets.mlp())
    for name in ("onnx", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(InstallError) as caught:
            export.to_onnx(model, tmp_path / "m.onnx")
        assert "mxloop[onnx]" in one_line(caught)
        monkeypatch.undo()


def test_an_onnx_that_the_converter_does_not_work_with_is_one_line(onnx, monkeypatch, tmp_path):
    model, _ = trained(nets.mlp())
    monkeypatch.setitem(sys.modules, "mxnet.onnx", None)
    with pytest.raises(InstallError) as caught:
        export.to_onnx(model, tmp_path / "m.onnx")
    assert "onnx<1.19" in one_line(caught)


# --- Inference form, Gluon ----------------------------------------------------------------------

HEADS = {
    "SoftmaxOutput": (mx.sym.SoftmaxOutput, {}),
    "Softmax": (mx.sym.Softmax, {}),
    "LinearRegressionOutput": (mx.sym.LinearRegressionOutput, {}),
    "LogisticRegressionOutput": (mx.sym.LogisticRegressionOutput, {}),
    "MAERegressionOutput": (mx.sym.MAERegressionOutput, {}),
    "SVMOutput": (mx.sym.SVMOutput, {}),
}


@pytest.mark.parametrize("name", HEADS)
def test_each_loss_head_has_an_inference_form_that_gives_its_output(name):
    head, settings = HEADS[name]
    net = head(nets.mlp(head=False), name="head", **settings)
    args, aux = nets.params(net, data=(5, 10))
    x, _ = nets.samples(5)
    form = export.inference_form(net)
    assert set(form.list_arguments()) == {"data", *args}
    (found,) = nets.fresh_outputs(form, args, aux, {"data": x})
    (expected,) = nets.fresh_outputs(net, args, aux, {"data": x})
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_softmax_over_channels_stays_one():
    net = mx.sym.Convolution(mx.sym.var("data"), kernel=(1, 1), num_filter=3, name="conv")
    net = mx.sym.SoftmaxOutput(net, multi_output=True, name="softmax")
    args, aux = nets.params(net, data=(2, 2, 4, 4))
    x, _ = nets.samples(2, (2, 4, 4))
    (found,) = nets.fresh_outputs(export.inference_form(net), args, aux, {"data": x})
    np.testing.assert_allclose(found, nets.fresh_outputs(net, args, aux, {"data": x})[0], atol=1e-6)


def test_a_loss_that_needs_labels_is_left_out_beside_a_prediction():
    prediction = nets.mlp(head=False)
    loss = mx.sym.MakeLoss(mx.sym.mean(mx.sym.square(prediction - mx.sym.var("label"))))
    form = export.inference_form(mx.sym.Group([loss, mx.sym.BlockGrad(prediction)]))
    assert form.list_outputs() == ["out_output"]


@pytest.mark.parametrize("symbol", [nets.mlp(), nets.conv_bn()], ids=["mlp", "conv_bn"])
def test_a_gluon_block_predicts_the_same_and_can_be_saved_and_loaded(tmp_path, symbol):
    shape = (10,) if "conv1_weight" not in symbol.list_arguments() else (1, 12, 12)
    model, x = trained(symbol, shape)
    expected = model.predict(x)
    block = export.to_gluon(model)
    np.testing.assert_allclose(block(mx.nd.array(x)).asnumpy(), expected, atol=1e-6)
    block.hybridize()
    block(mx.nd.array(x))
    block.export(str(tmp_path / "block"))
    again = mx.gluon.SymbolBlock.imports(
        str(tmp_path / "block-symbol.json"), ["data"], str(tmp_path / "block-0000.params")
    )
    np.testing.assert_allclose(again(mx.nd.array(x)).asnumpy(), expected, atol=1e-6)


def test_a_gluon_block_can_be_trained_further_on_several_devices():
    model, x = trained(nets.conv_bn(), (1, 12, 12))
    devices = [mx.cpu(0), mx.cpu(1)]
    block = export.to_gluon(model, devices)
    trainer = mx.gluon.Trainer(block.collect_params(), "sgd", {"learning_rate": 0.1})
    with mx.autograd.record():
        losses = [-block(mx.nd.array(x[:4], device)).log()[:, 0].mean() for device in devices]
    for loss in losses:
        loss.backward()
    trainer.step(2)
    after = block.collect_params()["fc_weight"].data(devices[0]).asnumpy()
    assert (after != model.arg_params["fc_weight"].asnumpy()).any()


# --- The command --------------------------------------------------------------------------------


def test_the_command_writes_what_onnxruntime_reads(onnx, tmp_path):
    model, x = trained(nets.lenet(), (1, 12, 12))
    model.save(tmp_path / "m")
    words = [sys.executable, "-m", "mxloop", "export", tmp_path / "m", "2", tmp_path / "m.onnx"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "onnxruntime predicts the same" in done.stdout
    found = in_onnxruntime(tmp_path / "m.onnx", data=x)[0]
    assert np.abs(found - model.predict(x)).max() < 1e-4


def test_a_checkpoint_of_a_run_tells_its_shapes_and_a_stock_one_needs_them(onnx, tmp_path, capsys):
    x, y = nets.samples(24)
    run = str(tmp_path / "run")
    model = FeedForward(nets.mlp(), num_epoch=1).fit(x, y, checkpoint=run)
    assert model.input_shapes == FeedForward.load(run, 1).input_shapes == {"data": (10,)}
    assert cli.main(["export", run, "1", str(tmp_path / "run.onnx")]) == 0
    stock = str(tmp_path / "stock")
    mx.model.save_checkpoint(stock, 1, model.symbol, model.arg_params, model.aux_params)
    words = ["export", stock, "1", str(tmp_path / "stock.onnx")]
    assert cli.main(words) == 1
    assert "--shape" in capsys.readouterr().err
    assert cli.main([*words, "--shape", "data=10"]) == 0
    assert (tmp_path / "stock.onnx").read_bytes() == (tmp_path / "run.onnx").read_bytes()


def test_shapes_survive_loading_and_saving_again(tmp_path):
    model, _ = trained(nets.mlp())
    model.save(tmp_path / "a")
    FeedForward.load(tmp_path / "a", 2).save(tmp_path / "b")
    assert FeedForward.load(tmp_path / "b", 2).input_shapes == {"data": (10,)}
    save_checkpoint(tmp_path / "c", 2, model.symbol, model.arg_params, model.aux_params)
    assert FeedForward.load(tmp_path / "c", 2).input_shapes == {}
