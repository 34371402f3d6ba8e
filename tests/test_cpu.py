"""The cores of made-up machines: files as Linux shows them, in a temporary folder."""

import pytest

from mxloop.cpu import set_defaults, usable_cores


def machine(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return str(root)


def siblings(*groups):
    folder = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    return {folder.format(cpu): ",".join(map(str, group)) for group in groups for cpu in group}


def v2(path, **limits):
    files = {f"sys/fs/cgroup/{group.strip('_')}/cpu.max": text for group, text in limits.items()}
    return {"proc/self/cgroup": f"0::{path}", **files}


def v1(path, quota, folder=""):
    group = f"sys/fs/cgroup/cpu/{folder}"
    return {
        "proc/self/cgroup": f"11:memory:{path}\n4:cpu,cpuacct:{path}\n3:cpuset:/elsewhere",
        f"{group}/cpu.cfs_quota_us": quota,
        f"{group}/cpu.cfs_period_us": "100000",
    }


@pytest.mark.parametrize(
    "cpus, files, cores",
    [
        pytest.param(range(4), {}, 4, id="nothing is known of the machine"),
        pytest.param(range(4), siblings((0, 2), (1, 3)), 2, id="two threads a core"),
        pytest.param([0, 2], siblings((0, 2), (1, 3)), 1, id="bound to one core's threads"),
        pytest.param([1, 2], siblings((0, 2), (1, 3)), 2, id="bound to threads of two cores"),
        pytest.param(range(8), v2("/", _="200000 100000"), 2, id="container of two"),
        pytest.param(range(8), v2("/", _="250000 100000"), 2, id="container of two and a half"),
        pytest.param(range(8), v2("/", _="50000 100000"), 1, id="container of half a core"),
        pytest.param(range(8), v2("/", _="max 100000"), 8, id="container without a limit"),
        pytest.param(range(2), v2("/", _="600000 100000"), 2, id="limit above the machine"),
        pytest.param(range(8), v2("/a/b", a="300000 100000"), 3, id="the parent group's limit"),
        pytest.param(range(8), v1("/job", "400000", "job"), 4, id="version 1"),
        pytest.param(range(8), v1("/docker/1f", "400000"), 4, id="version 1 in a container"),
        pytest.param(range(8), v1("/job", "-1", "job"), 8, id="version 1 without a limit"),
    ],
)
def test_usable_cores_are_physical_allowed_and_within_the_limit(tmp_path, cpus, files, cores):
    assert usable_cores(cpus, machine(tmp_path, files)) == cores


def test_this_machine_has_usable_cores():
    assert usable_cores() >= 1


def test_all_cores_and_enough_scratch_buffers_are_asked_for():
    environ = {}
    set_defaults(environ)
    assert environ["OMP_NUM_THREADS"] == str(usable_cores())
    assert int(environ["MXNET_CPU_TEMP_COPY"]) >= 16


def test_what_the_user_set_stays():
    chosen = {"OMP_NUM_THREADS": "3", "MXNET_CPU_TEMP_COPY": "5"}
    environ = dict(chosen)
    set_defaults(environ)
    assert environ == chosen
