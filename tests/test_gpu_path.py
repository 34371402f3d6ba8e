"""Contexts on GPUs take the same way as CPUs, up to the bind; nothing here needs a card."""

import nets
import pytest

from mxloop import FeedForward, executor_manager
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, MXLoopError

TWO = [mx.gpu(0), mx.gpu(1)]

pytestmark = pytest.mark.skipif(mx.context.num_gpus() > 0, reason="this machine has GPUs")


@pytest.fixture
def two_gpus(monkeypatch):
    """MXNet says that there are two cards."""
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 2)


def train_data():
    return ArrayIter(*nets.samples(48), batch_size=16)


def test_fit_on_two_gpus_reaches_the_bind_and_says_in_one_line_what_failed(two_gpus):
    with pytest.raises(MXLoopError) as caught:
        FeedForward(nets.mlp(), ctx=TWO, num_epoch=1).fit(train_data())
    assert "bind the network" in nets.one_line(caught)
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert "MXNetError" in repr(caught.value.__cause__) or "CUDA" in str(caught.value.__cause__)


def test_an_executor_is_bound_on_each_gpu_for_its_slice(two_gpus, monkeypatch):
    asked = []

    class Enough(Exception):
        """The second device has been reached."""

    def simple_bind(symbol, ctx, grad_req, **shapes):
        asked.append((ctx, shapes["data"]))
        if len(asked) == 2:
            raise Enough
        return nets.mlp().simple_bind(mx.cpu(0), data=(8, 10))

    original = mx.sym.Symbol.simple_bind

    def on_gpu(symbol, ctx, *args, **keywords):
        if ctx.device_type == "gpu":
            return simple_bind(symbol, ctx, **keywords)
        return original(symbol, ctx, *args, **keywords)

    monkeypatch.setattr(mx.sym.Symbol, "simple_bind", on_gpu)
    with pytest.raises(Enough):
        FeedForward(nets.mlp(), ctx=TWO, num_epoch=1).fit(
            train_data(), kvstore="device", work_load_list=[3, 1]
        )
    assert asked == [(mx.gpu(0), (12, 10)), (mx.gpu(1), (4, 10))]


@pytest.mark.parametrize("ctx", [mx.gpu(0), TWO], ids=["one", "two"])
def test_without_gpus_one_line_says_how_many_there_are_and_what_to_do(ctx):
    with pytest.raises(ArgumentError) as caught:
        FeedForward(nets.mlp(), ctx=ctx, num_epoch=1).fit(train_data())
    message = nets.one_line(caught)
    assert "gpu(0)" in message and "0 GPUs" in message and "mx.cpu()" in message


def test_a_gpu_too_many_is_named(two_gpus):
    with pytest.raises(ArgumentError) as caught:
        FeedForward(nets.mlp(), ctx=[*TWO, mx.gpu(2)])
    message = nets.one_line(caught)
    assert "gpu(2)" in message and "gpu(1)" not in message


def test_cpus_and_gpus_together_are_one_line(two_gpus):
    with pytest.raises(ArgumentError) as caught:
        FeedForward(nets.mlp(), ctx=[mx.cpu(0), mx.gpu(0)])
    nets.one_line(caught)


def test_the_manager_alone_asks_for_gpus_as_well():
    with pytest.raises(ArgumentError) as caught:
        executor_manager.DataParallelExecutorManager(nets.mlp(), TWO, train_data())
    assert "0 GPUs" in nets.one_line(caught)
