"""Manifests: one spelling, every field in range, nothing taken on trust."""

import json

import fuzz_files
import numpy as np
import pytest
from nets import one_line

from mxloop import errors
from mxloop.manifest_format import MOST_BYTES, _spelt, decode, encode

FILES = {kind: {"name": kind, "size": 3, "sha256": "0" * 64} for kind in ("symbol", "params")}
BARE = {"format": 1, "epoch": 2, "batch": 0, "files": FILES, "versions": {"mxloop": "1"}}


def whole():
    """The content of a manifest with a training state."""
    return decode(fuzz_files.sound_files("manifest")[0])


def test_what_is_written_is_read():
    content = {**BARE, "more": {"a": [1, 2.5, None, True, "ü\udcff"], "b": {}}}
    assert decode(encode(content)) == content


@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_infinity_is_kept(value):
    assert decode(encode({**BARE, "best": [value, np.float32(value)]}))["best"] == [value, value]


def test_nan_and_numpys_numbers_are_kept():
    found = decode(encode({**BARE, "a": float("nan"), "b": np.int64(3), "c": np.arange(2)}))
    assert np.isnan(found["a"]) and found["b"] == 3 and found["c"] == [0, 1]


@pytest.mark.parametrize("value", [object(), {1, 2}, {(1, 2): 3}, 2**70, b"bytes", 1j])
def test_what_could_not_be_read_back_is_not_written(value):
    with pytest.raises(errors.ArgumentTypeError, match="state_dict") as told:
        encode({**BARE, "callbacks": value})
    one_line(told)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"null",
        b"{}",
        b'{"sha256": 3}',
        b"\xff",
        b"[" * 10**5,
        b'{"a": 1e400, "sha256": ""}',
        b" " * (MOST_BYTES + 1),
        encode(BARE) + b"\n",
        encode(BARE)[:-1],
        encode(BARE).replace(b'"epoch": 2', b'"epoch": 3'),
        json.dumps(json.loads(encode(BARE)), indent=1).encode(),
    ],
    ids=lambda data: repr(data[:24]),
)
def test_anything_else_is_one_line(data):
    with pytest.raises(errors.DataError, match="^m.json is damaged") as told:
        decode(data, "m.json")
    one_line(told)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("format", 2),
        ("epoch", -1),
        ("epoch", True),
        ("batch", 1.0),
        ("files", {}),
        ("files", {**FILES, "../../x": FILES["params"]}),
        ("files", {**FILES, "params": {**FILES["params"], "size": -1}}),
        ("files", {**FILES, "params": {**FILES["params"], "sha256": "x" * 64}}),
        ("versions", {"a": 1}),
        ("input_shapes", {"data": [-1]}),
        ("optimizer", None),
        ("iterator", []),
        ("history", [{"epoch": 1}, {"epoch": 1}]),
        ("history", [{}]),
        ("callbacks", [["Checkpoint"]]),
        ("metrics", [[["acc"], None]]),
        ("stepped", [-1]),
        ("random", {"seed": 1}),
        ("random", None),
    ],
)
def test_a_field_out_of_range_is_named(name, value):
    with pytest.raises(errors.DataError, match=repr(name)) as told:
        decode(_spelt({**json.loads(json.dumps(whole())), name: value}))
    one_line(told)


@pytest.mark.parametrize("name", sorted(BARE))
def test_a_missing_field_is_named(name):
    with pytest.raises(errors.DataError, match=name):
        decode(_spelt({key: value for key, value in BARE.items() if key != name}))


def test_mutations_come_to_a_resumed_run_or_one_line():
    counts, bad = fuzz_files.fuzz("manifest", 300, seed=1)
    assert not bad and sum(counts.values()) == 300 and counts["refused"] > 100


def test_single_bits_of_a_checkpoint_are_noticed():
    assert set(fuzz_files.flip_bits(50).values()) == {0}
