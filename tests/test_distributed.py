"""distributed.py: real workers on MXNet's parameter server take every step together.

The oracle is one process in stock MXNet and NumPy that takes the same joint steps.
"""

import contextlib
import glob
import json
import os
import re
import time

import dist
import nets
import numpy as np
import pytest
from dist_worker import BATCH, SETTINGS, first_params

from mxloop import FeedForward, distributed, training
from mxloop.compat import mx
from mxloop.data import ArrayIter
from mxloop.errors import ArgumentError, StateError

UNEQUAL = (35, 53)  # rows: 5 batches that end in one of 3, and 7 that end in one of 5
WORKER = os.path.join(dist.HERE, "dist_worker.py")

pytestmark = pytest.mark.skipif(
    not mx.runtime.Features().is_enabled("DIST_KVSTORE"),
    reason="this build of MXNet has no distributed store",
)


def run_jobs(directory, jobs, rows=UNEQUAL, seconds=dist.DEADLINE, **environment):
    """Run jobs, one after the other, on each worker; return how they and the services ended."""
    scripts = []
    for seed, n in enumerate(rows):
        own = {k: (job, {"rows": n, "seed": seed, **more}) for k, (job, more) in jobs.items()}
        (directory / str(seed)).mkdir()
        scripts.append([WORKER, str(directory / str(seed)), json.dumps(own)])
    return dist.run(directory, scripts, seconds, **environment)


def results_of(directory, jobs, rows=UNEQUAL):
    """Run jobs to their clean end; return name -> (each worker's parameters, what it told)."""
    workers, services = run_jobs(directory, jobs, rows)
    assert [worker.code for worker in workers] == [0, 0], workers
    assert [service.code for service in services] == [0, 0], services
    assert all("returned from the import" not in service.output for service in services)
    return {name: _loaded(directory, name) for name in jobs}


def _loaded(directory, name):
    found = [dict(np.load(str(directory / seed / f"{name}.npz"))) for seed in "01"]
    return found, [json.loads(str(arrays.pop("told"))) for arrays in found]


def batches_of(rows, seed):
    return list(nets.batches(*nets.samples(rows, seed=seed), BATCH))


def one_epoch(rows):
    """Each step of one epoch: the batches of those workers that still have one."""
    of_workers = [batches_of(n, seed) for seed, n in enumerate(rows)]
    longest = max(len(own) for own in of_workers)
    return [[own[i] for own in of_workers if i < len(own)] for i in range(longest)]


def joint_steps(steps, params, rescale=None, settings=SETTINGS):
    """Momentum and weight decay in NumPy, on gradients of a stock executor over all workers."""
    params = nets.numpy_of(params)
    moments = {name: np.zeros_like(value) for name, value in params.items()}
    for step in steps:
        x = np.concatenate([batch.data[0].asnumpy() for batch in step])
        y = np.concatenate([batch.label[0].asnumpy() for batch in step])
        scale = 1.0 / len(x) if rescale is None else rescale
        for name, grad in gradients(params, x, y).items():
            decay = settings["wd"] if name.endswith("weight") else 0.0
            direction = scale * grad + decay * params[name]
            moments[name] = 0.9 * moments[name] - settings["learning_rate"] * direction
            params[name] = params[name] + moments[name]
    return params


def gradients(params, x, y):
    executor = nets.mlp().simple_bind(mx.cpu(0), data=x.shape, softmax_label=y.shape)
    executor.copy_params_from({name: mx.nd.array(value) for name, value in params.items()})
    executor.forward(is_train=True, data=mx.nd.array(x), softmax_label=mx.nd.array(y))
    executor.backward()
    return {name: executor.grad_dict[name].asnumpy() for name in params}


def assert_joint(found, wanted):
    """Workers agree to the bit, and with the oracle to 1e-6."""
    nets.assert_equal(found[0], found[1])
    nets.assert_close(found[0], wanted)
    start = nets.numpy_of(first_params())
    assert all(np.abs(found[0][name] - start[name]).max() > 0.01 for name in start)


# --- Workers in step ----------------------------------------------------------------------------

JOBS = {
    "fit": ("fit", {}),
    "two devices": ("fit", {"devices": 2}),
    "epoch_size": ("fit", {"epoch_size": 3}),
    "rescale_grad": ("fit", {"rescale_grad": 0.05}),
    "own params": ("fit_from_own_params", {}),
    "fit twice": ("fit_twice", {}),
    "accumulated": ("fit", {"accumulate": 2}),
}


@pytest.fixture(scope="module")
def joint(tmp_path_factory):
    """All jobs in one pair of workers, so through one store; the first finds it new."""
    return results_of(tmp_path_factory.mktemp("joint"), JOBS)


@pytest.mark.parametrize("job", ["fit", "two devices"])
def test_workers_with_5_and_7_batches_end_with_the_parameters_of_one_process(joint, job):
    """#9611, #7888, #17651: unequal numbers of batches hung dist_sync."""
    found, told = joint[job]
    assert_joint(found, joint_steps(one_epoch(UNEQUAL) * 2, first_params()))
    assert [each["epochs"] for each in told] == [[0, 1], [0, 1]]


def test_epoch_size_counts_for_every_worker_and_wraps_the_one_with_fewer_batches(joint):
    """#6970 on several workers: three steps, and three more where the data go on."""
    few, many = batches_of(35, 0), batches_of(53, 1)
    steps = [[(few * 2)[i], many[i]] for i in range(6)]
    assert_joint(joint["epoch_size"][0], joint_steps(steps, first_params()))


def test_an_explicit_rescale_grad_is_obeyed_by_workers(joint):
    wanted = joint_steps(one_epoch(UNEQUAL) * 2, first_params(), rescale=0.05)
    assert_joint(joint["rescale_grad"][0], wanted)


def test_all_workers_begin_with_the_parameters_of_rank_0_in_a_store_used_before(joint):
    found, told = joint["own params"]
    first = [each["rank"] for each in told].index(0)
    assert_joint(found, joint_steps(one_epoch(UNEQUAL) * 2, first_params(100 + first)))


def test_fitting_for_an_epoch_more_on_workers_equals_fitting_on(joint):
    """#1520: a second fit found the servers gone."""
    found, told = joint["fit twice"]
    assert_joint(found, joint_steps(one_epoch(UNEQUAL) * 2, first_params()))
    assert told[0]["epochs"] == [0, 1]


def test_workers_that_add_up_two_batches_each_step_by_all_of_them(joint):
    """Seven joint batches an epoch, of which the last two are one worker's alone: four steps."""
    steps = one_epoch(UNEQUAL)
    steps = [sum(steps[i : i + 2], []) for i in range(0, len(steps), 2)]
    assert_joint(joint["accumulated"][0], joint_steps(steps * 2, first_params()))


def test_train_with_an_update_of_ones_own_keeps_workers_in_step(tmp_path):
    found, _ = results_of(tmp_path, {"update": ("own_update", {})})["update"]
    assert_joint(found, joint_steps(one_epoch(UNEQUAL) * 2, first_params()))


@pytest.mark.slow
def test_all_workers_begin_with_the_parameters_of_rank_0(tmp_path):
    job = {"new": ("fit_from_own_params", {})}
    found, told = results_of(tmp_path, job)["new"]
    first = [each["rank"] for each in told].index(0)
    assert_joint(found, joint_steps(one_epoch(UNEQUAL) * 2, first_params(100 + first)))


def test_a_hand_written_loop_with_the_optimizer_on_the_server_takes_the_same_steps(tmp_path):
    found, told = results_of(tmp_path, {"loop": ("own_loop", {})}, rows=(40, 40))["loop"]
    assert [each["on_store"] for each in told] == [True, True]
    assert_joint(found, joint_steps(one_epoch((40, 40)) * 2, first_params()))


def test_dist_async_workers_with_unequal_batches_end(tmp_path):
    jobs = {f"by {k}": ("fit", {"kvstore": "dist_async", "accumulate": k}) for k in (1, 3)}
    start = nets.numpy_of(first_params())
    for found, told in results_of(tmp_path, jobs).values():
        assert [each["epochs"] for each in told] == [[0, 1], [0, 1]]
        for params in found:
            assert all(np.isfinite(value).all() for value in params.values())
            assert all(np.abs(params[name] - start[name]).max() > 0.01 for name in start)


# --- Nobody waits for ever ----------------------------------------------------------------------

SOON = {"MXLOOP_PEER_SECONDS": "3"}


def test_a_killed_worker_does_not_keep_the_other_waiting_for_ever(tmp_path):
    (survivor, killed), _ = run_jobs(tmp_path, {"die": ("die", {})}, seconds=40, **SOON)
    assert killed.code == -9
    assert survivor.code == 1
    last = survivor.output.strip().splitlines()[-1]
    assert re.match(r"mxloop\.errors\.PeerError: not all workers came to this step in 3 s", last)


def test_a_worker_with_an_error_shows_it_and_both_end(tmp_path):
    (waiting, failed), _ = run_jobs(tmp_path, {"fail": ("fail", {})}, seconds=40, **SOON)
    assert "RuntimeError: a user's own error" in failed.output
    assert (waiting.code, failed.code) == (1, 1)
    assert "PeerError" in waiting.output


# --- A user's mistakes --------------------------------------------------------------------------


def fit_here(kvstore):
    x, y = nets.samples(16)
    FeedForward(nets.mlp(), ctx=mx.cpu(0), num_epoch=1).fit(ArrayIter(x, y), kvstore=kvstore)


@pytest.mark.parametrize("name", ["dist_sync", "dist_async", "dist_device_sync"])
def test_a_missing_environment_is_one_line_at_once(monkeypatch, name):
    for key in distributed.NEEDED:
        monkeypatch.delenv(key, raising=False)
    monkeypatch.setenv("DMLC_ROLE", "worker")
    with pytest.raises(StateError) as caught:
        fit_here(name)
    message = nets.one_line(caught)
    assert name in message and "DMLC_PS_ROOT_URI" in message and "DMLC_ROLE," not in message


def set_environment(monkeypatch, **more):
    for key, value in dist.cluster_environment("worker", 1, dist.free_port(), **more).items():
        if key.startswith(("DMLC_", "MXLOOP_")):
            monkeypatch.setenv(key, value)


def test_no_scheduler_is_one_line_after_the_wait(monkeypatch):
    set_environment(monkeypatch, MXLOOP_SCHEDULER_SECONDS="0.2")
    with pytest.raises(StateError) as caught:
        fit_here("dist_sync")
    message = nets.one_line(caught)
    assert os.environ["DMLC_PS_ROOT_PORT"] in message and "for 0.2 s" in message


@pytest.mark.parametrize("seconds", ["soon", "-1", "nan", "1e300"])
def test_a_wait_that_is_no_number_is_one_line(monkeypatch, seconds):
    set_environment(monkeypatch, MXLOOP_SCHEDULER_SECONDS=seconds)
    with pytest.raises(ArgumentError) as caught:
        fit_here("dist_sync")
    assert "MXLOOP_SCHEDULER_SECONDS" in nets.one_line(caught) and seconds in str(caught.value)


def test_a_port_that_is_no_number_is_one_line(monkeypatch):
    set_environment(monkeypatch, MXLOOP_SCHEDULER_SECONDS="0")
    monkeypatch.setenv("DMLC_PS_ROOT_PORT", "none " * 100)
    with pytest.raises(StateError) as caught:
        fit_here("dist_sync")
    nets.one_line(caught)


def test_an_asynchronous_store_without_updates_on_the_servers_is_one_line(monkeypatch):
    """MXNet's server would end, and the workers would wait for it."""
    monkeypatch.setenv("MXNET_UPDATE_ON_KVSTORE", "0")
    with pytest.raises(ArgumentError) as caught:
        fit_here("dist_async")
    assert "MXNET_UPDATE_ON_KVSTORE" in nets.one_line(caught)


def test_two_kinds_of_distributed_stores_in_one_process_are_one_line(monkeypatch):
    monkeypatch.setattr(distributed, "_stores", {"dist_sync": object()})
    with pytest.raises(ArgumentError) as caught:
        fit_here("dist_async")
    assert "'dist_sync'" in nets.one_line(caught)


def test_workers_in_step_need_an_update_that_knows_them():
    data = ArrayIter(*nets.samples(16))
    with pytest.raises(TypeError) as caught:
        training._InStep(None, data, None, lambda: None)
    assert "Update" in nets.one_line(caught)


def processes():
    """State and process group of all processes here."""
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError), open(path) as stat:
            state, _, group = stat.read().rsplit(")", 1)[1].split()[:3]
            yield state, int(group)


def alive_in(group):
    return [state for state, of_group in processes() if of_group == group and state != "Z"]


def soon(condition):
    """Whether it becomes true within seconds; killed processes take a moment to go."""
    until = time.monotonic() + 30
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)
    return condition()


def test_no_process_of_a_cluster_outlives_its_block(tmp_path):
    with dist.Cluster(tmp_path) as cluster:
        script = "import subprocess; subprocess.run(['sleep', '300'])"
        group = cluster.start(["-c", script], dist.environment()).pid
        assert soon(lambda: len(alive_in(group)) == 2)
    assert soon(lambda: not alive_in(group))
