"""The benchmark runs, and gives every peer the same work; nothing here looks at times."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mxloop import amp

ROOT = Path(__file__).resolve().parent.parent
BENCHMARK = ROOT / "benchmark"
SMALL = ["--rounds", "1", "--samples", "64", "--batch", "32", "--patience", "0"]
# Rounding makes a relu of ResNet-20 fall on its other side now and then.
TOLERANCE = {
    "mlp": {"rel": 1e-4, "abs": 1e-6},
    "lenet": {"rel": 1e-4, "abs": 1e-6},
    "resnet20": {"rel": 1e-3, "abs": 5e-4},
}
PARAMETERS = {"mlp": 109_386, "lenet": 431_080, "resnet20": 272_474}


def throughput(folder, *arguments):
    """Run the command; return what it printed, and what it wrote."""
    written = folder / "out.json"
    done = subprocess.run(
        [sys.executable, str(BENCHMARK / "throughput.py"), *arguments, "--json", str(written)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout, json.loads(written.read_text())


def trained(peer, **settings):
    """Train in the worker's own way, all epochs in a row; return its answers."""
    work = {"samples": 64, "batch": 32, "shuffle": False, "epochs": 2, "threads": 1, **settings}
    done = subprocess.run(
        [sys.executable, str(BENCHMARK / "worker.py"), peer, json.dumps(work)],
        input="\n" * work["epochs"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()][1:]


@pytest.mark.slow
@pytest.mark.parametrize("net", ["mlp", "lenet", "resnet20"])
def test_all_peers_come_to_the_same_parameters_where_the_order_is_the_same(net):
    peers = {
        "mxloop_fit": "iterator",
        "feedforward": "iterator",
        "module": "memory",
        "gluon_trainer": "memory",
    }
    if _has_torch():
        peers["torch_loop"] = "memory"
    ends = {peer: trained(peer, net=net, source=source) for peer, source in peers.items()}
    *epochs, reference = ends["module"]
    assert reference["parameters"] == PARAMETERS[net]
    for peer, (*own, last) in ends.items():
        assert [epoch["samples"] for epoch in own] == [64, 64], peer
        assert own[-1]["metric"] == pytest.approx(epochs[-1]["metric"], abs=2 / 64), peer
        assert last["parameters"] == reference["parameters"], peer
        assert last["norms"] == pytest.approx(reference["norms"], **TOLERANCE[net]), peer


def _has_torch():
    return (
        subprocess.run([sys.executable, "-c", "import torch"], capture_output=True).returncode == 0
    )


@pytest.mark.slow
def test_a_comparison_has_all_peers_ratios_and_targets(tmp_path):
    output, written = throughput(tmp_path, "mlp", *SMALL)
    runs, targets = written["results"]["mlp"]["runs"], written["results"]["mlp"]["targets"]
    assert {run["peer"] for run in runs.values()} >= {"bare", "mxloop_fit", "feedforward", "module"}
    for run in runs.values():
        (epoch,) = run["epochs"]
        assert {"seconds", "cpu", "main", "others", "samples", "metric"} <= epoch.keys()
        assert epoch["samples"] == 64
        assert run["parameters"] == PARAMETERS["mlp"]
    for target in targets:
        assert {"target", "ours", "theirs", "ratio", "holds"} <= target.keys()
    for name in runs:
        assert name in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "mode", ["devices", "batches", "memory", "overhead", "parts", "softmax", "guard", "startup"]
)
def test_every_further_mode_runs(mode, tmp_path):
    output, written = throughput(tmp_path, mode, "--net", "mlp", *SMALL)
    assert written["results"][mode]
    assert f"=== {mode} ===" in output
    assert {"cores", "machine", "python"} <= written["machine"].keys()


@pytest.mark.slow
@pytest.mark.skipif(not amp.is_there(), reason="MXNet computes in bfloat16 with AVX-512 alone")
def test_mixed_precision_is_compared_with_float32(tmp_path):
    _, written = throughput(tmp_path, "amp", "--net", "mlp", *SMALL)
    assert set(written["results"]["amp"]["mlp"]) == {"bfloat16", "float32"}


@pytest.mark.slow
def test_a_checkpoint_is_compared_with_what_mxnet_saves(tmp_path):
    _, written = throughput(tmp_path, "checkpoint", "--rounds", "1")
    taken = written["results"]["checkpoint"]
    assert len(taken["mxloop.save_checkpoint"]) == len(taken["mx.nd.save"]) > 0


@pytest.mark.slow
def test_workers_of_a_cluster_run_together(tmp_path):
    _, written = throughput(tmp_path, "dist", "--net", "mlp", *SMALL)
    runs = written["results"]["dist"]["mlp"]
    assert set(runs) == {"mxloop", "mx Module"}
    assert all(run["epochs"][0]["samples"] == 64 for run in runs.values())


def test_a_name_that_nobody_knows_is_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, str(BENCHMARK / "throughput.py"), "mpl"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "'mpl' is none of mlp, lenet" in done.stderr
