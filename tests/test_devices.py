"""Which devices a machine has."""

import argparse
import sys
from pathlib import Path

import pytest

import mxloop
from mxloop import cpu, mx

EXAMPLES = Path(__file__).resolve().parent.parent / "example" / "image-classification"


@pytest.mark.parametrize(
    "gpus, cores, devices",
    [(0, 3, [mx.cpu(0), mx.cpu(1), mx.cpu(2)]), (2, 8, [mx.gpu(0), mx.gpu(1)])],
)
def test_gpus_come_first_else_a_context_a_core(monkeypatch, gpus, cores, devices):
    monkeypatch.setattr(mx.context, "num_gpus", lambda: gpus)
    monkeypatch.setattr(cpu, "usable_cores", lambda: cores)
    assert mxloop.available_devices() == devices


@pytest.mark.parametrize("flags, number", [([], 1), (["--cpus", "2"], 2), (["--cpus", "0"], 3)])
def test_the_examples_take_all_with_cpus_0(monkeypatch, flags, number):
    monkeypatch.setattr(cpu, "usable_cores", lambda: 3)
    monkeypatch.setattr(mx.context, "num_gpus", lambda: 0)
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from common import devices

    parser = argparse.ArgumentParser()
    devices.add_device_args(parser)
    assert devices.chosen(parser.parse_args(flags)) == [mx.cpu(i) for i in range(number)]
    for name in [name for name in sys.modules if name.split(".")[0] == "common"]:
        monkeypatch.delitem(sys.modules, name)
