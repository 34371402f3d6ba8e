"""Checkpoints: MXNet's files with a manifest; the old generation or the new, never a mix."""

import errno
import json
import os

import numpy as np
import pytest

from mxloop import checkpoint, errors, mx, storage

CALLS = ("open", "write", "fsync", "replace")


def network(hidden=3):
    net = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=hidden, name="fc")
    return mx.sym.SoftmaxOutput(mx.sym.BatchNorm(net, name="bn"), name="softmax")


def params(value, hidden=3):
    args = {"fc_weight": mx.nd.full((hidden, 4), value), "fc_bias": mx.nd.full((hidden,), value)}
    return args, {"bn_moving_mean": mx.nd.full((hidden,), value)}


def save(prefix, value, epoch=1, hidden=3, batch=0):
    args, auxs = params(value, hidden)
    states = str(value).encode()
    checkpoint.save(prefix, epoch, network(hidden), args, auxs, states, {"value": value}, batch)


def value_of(found):
    """The one value that all parts of a generation must agree on."""
    values = {float(array.asnumpy().min()) for array in found.arg_params.values()}
    values |= {float(array.asnumpy().max()) for array in found.aux_params.values()}
    values |= {float(found.states), float(found.manifest["value"])}
    (value,) = values
    return value


def test_stock_mxnet_reads_what_is_saved(tmp_path):
    args, auxs = params(2.0)
    checkpoint.save_checkpoint(tmp_path / "m", 7, network(), args, auxs)
    symbol, stock_args, stock_auxs = mx.model.load_checkpoint(str(tmp_path / "m"), 7)
    assert symbol.tojson() == network().tojson()
    assert np.array_equal(stock_args["fc_weight"].asnumpy(), args["fc_weight"].asnumpy())
    assert set(stock_auxs) == {"bn_moving_mean"}


def test_the_params_file_is_mxnets_to_the_byte(tmp_path):
    args, auxs = params(2.0)
    checkpoint.save_checkpoint(tmp_path / "m", 7, network(), args, auxs)
    named = {f"arg:{n}": v for n, v in args.items()}
    named.update({f"aux:{n}": v for n, v in auxs.items()})
    mx.nd.save(str(tmp_path / "stock"), named)
    assert (tmp_path / "m-0007.params").read_bytes() == (tmp_path / "stock").read_bytes()


def test_what_stock_mxnet_saves_is_read(tmp_path):
    args, auxs = params(2.0)
    mx.model.save_checkpoint(str(tmp_path / "m"), 3, network(), args, auxs)
    symbol, own_args, own_auxs = checkpoint.load_checkpoint(tmp_path / "m", 3)
    assert symbol.list_arguments() == network().list_arguments()
    assert np.array_equal(own_args["fc_bias"].asnumpy(), args["fc_bias"].asnumpy())
    assert set(own_auxs) == set(auxs)


def test_the_manifest_names_each_file_with_its_checksum(tmp_path):
    save(tmp_path / "m", 1.0)
    manifest = json.loads((tmp_path / "m-0001.json").read_text())
    assert manifest["epoch"] == 1
    assert {f["name"] for f in manifest["files"].values()} == {
        "m-symbol.json",
        "m-0001.params",
        "m-0001.states",
    }


@pytest.mark.parametrize("name", ["m-0001.params", "m-0001.states", "m-symbol.json", "m-0001.json"])
def test_every_single_bit_counts(tmp_path, name):
    save(tmp_path / "m", 1.0)
    path = tmp_path / name
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 13):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        path.write_bytes(broken)
        with pytest.raises(errors.DataError) as told:
            checkpoint.load(tmp_path / "m", 1)
        assert len(str(told.value)) <= 250
        assert "\n" not in str(told.value)


def test_the_newest_valid_generation_wins_and_a_broken_one_is_told_of_once(tmp_path, caplog):
    for epoch, batch in ((1, 0), (2, 0), (2, 40), (10, 0)):
        save(tmp_path / "m", float(epoch + batch), epoch, batch=batch)
    assert checkpoint.generations(tmp_path / "m") == [(10, 0), (2, 40), (2, 0), (1, 0)]
    (tmp_path / "m-0010.params").write_bytes(b"")
    found = checkpoint.newest(tmp_path / "m")
    assert (found.epoch, found.batch, value_of(found)) == (2, 40, 42.0)
    assert len(caplog.records) == 1
    assert "m-0010.params" in caplog.text


def test_no_generation_is_none(tmp_path):
    assert checkpoint.newest(tmp_path / "m") is None
    assert checkpoint.newest(tmp_path / "nowhere" / "m") is None


def test_a_prefix_may_look_like_a_generation(tmp_path):
    save(tmp_path / "m-0001", 1.0, 1, batch=4)
    save(tmp_path / "m", 2.0, 1, batch=4)
    assert checkpoint.generations(tmp_path / "m-0001") == [(1, 4)]
    assert checkpoint.generations(tmp_path / "m") == [(1, 4)]


def test_a_manifest_under_the_name_of_another_epoch_is_one_line(tmp_path):
    save(tmp_path / "m", 1.0)
    for path in tmp_path.glob("m-0001*"):
        path.rename(str(path).replace("0001", "0002"))
    with pytest.raises(errors.DataError, match="manifest of epoch 1") as told:
        checkpoint.load(tmp_path / "m", 2)
    assert len(str(told.value)) <= 250


def test_files_of_another_prefix_load(tmp_path):
    save(tmp_path / "m", 1.0)
    for path in tmp_path.glob("m-*"):
        path.rename(str(path).replace("m-", "n-"))
    assert value_of(checkpoint.load(tmp_path / "n", 1)) == 1.0


def test_the_networks_file_is_rewritten_only_when_it_differs(tmp_path):
    save(tmp_path / "m", 1.0)
    before = os.stat(tmp_path / "m-symbol.json")
    save(tmp_path / "m", 2.0, epoch=2)
    assert os.stat(tmp_path / "m-symbol.json").st_ino == before.st_ino


def test_removing_a_generation_leaves_the_others(tmp_path):
    for epoch in (1, 2):
        save(tmp_path / "m", float(epoch), epoch)
    checkpoint.remove(tmp_path / "m", 2)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "m-0001.json",
        "m-0001.params",
        "m-0001.states",
        "m-symbol.json",
    ]
    assert value_of(checkpoint.newest(tmp_path / "m")) == 1.0


class Script:
    """Counts the calls that reach the disk, and acts at the n-th."""

    def __init__(self, monkeypatch, act_at=None, act=None):
        self.count = 0
        self._at, self._act = act_at, act
        for name in CALLS:
            monkeypatch.setattr(storage.os, name, self._watched(getattr(os, name)))

    def _watched(self, call):
        def watched(*args, **kwargs):
            self.count += 1
            if self.count == self._at:
                self._act()
            return call(*args, **kwargs)

        return watched


def rewrite(prefix, same_network):
    save(prefix, 2.0, hidden=3 if same_network else 5)


def fresh(prefix, _):
    save(prefix, 2.0, epoch=2)


def number_of_calls(tmp_path, job, same_network):
    save(tmp_path / "dry", 1.0)
    with pytest.MonkeyPatch.context() as patch:
        script = Script(patch)
        job(tmp_path / "dry", same_network)
    return script.count


def old_or_new(prefix):
    found = checkpoint.newest(prefix)
    return value_of(found)


JOBS = [(rewrite, True), (rewrite, False), (fresh, True)]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EACCES])
@pytest.mark.parametrize(("job", "same_network"), JOBS)
def test_a_failing_disk_leaves_the_old_generation_or_the_new(tmp_path, job, same_network, number):
    def fail():
        raise OSError(number, os.strerror(number))

    for n in range(1, number_of_calls(tmp_path, job, same_network) + 1):
        prefix = tmp_path / f"run{n}"
        save(prefix, 1.0)
        with pytest.MonkeyPatch.context() as patch:
            Script(patch, n, fail)
            with pytest.raises(errors.DataError) as told:
                job(prefix, same_network)
        assert os.strerror(number) in str(told.value)
        assert old_or_new(prefix) in (1.0, 2.0)
        job(prefix, same_network)
        assert old_or_new(prefix) == 2.0


# The child only writes files, which it may do beside threads that it does not have.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize(("job", "same_network"), JOBS)
def test_a_kill_leaves_the_old_generation_or_the_new(tmp_path, job, same_network):
    seen = set()
    for n in range(1, number_of_calls(tmp_path, job, same_network) + 1):
        prefix = tmp_path / f"run{n}"
        save(prefix, 1.0)
        child = os.fork()
        if not child:
            with pytest.MonkeyPatch.context() as patch:
                Script(patch, n, lambda: os._exit(9))
                job(prefix, same_network)
            os._exit(0)
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 9
        seen.add(old_or_new(prefix))
        job(prefix, same_network)
        assert old_or_new(prefix) == 2.0
    assert seen == {1.0, 2.0}


@pytest.mark.parametrize("prefix", ["no/such/folder/m", "nul\0byte", "foo://bar/m"])
def test_a_path_that_cannot_be_is_one_line(tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.DataError) as told:
        save(prefix, 1.0)
    assert len(str(told.value)) <= 250


@pytest.mark.parametrize("name", ["a b", "ü", "50%", "back\\slash", "co:lon", "\udcff"])
def test_odd_file_names_work(tmp_path, name):
    save(tmp_path / name, 1.0, epoch=12345)
    assert value_of(checkpoint.load(tmp_path / name, 12345)) == 1.0


@pytest.mark.parametrize("epoch", ["1", 1.0, -1, None])
def test_an_epoch_is_a_whole_number(tmp_path, epoch):
    with pytest.raises(errors.MXLoopError, match="epoch"):
        checkpoint.load_checkpoint(tmp_path / "m", epoch)
