"""Two processes on this machine: gradients, messages and pipelines, against what they stand on.

    python benchmark/multi_node.py [--rounds 3]

Each comparison takes turns, in one run, and gives the ratio of medians. The exit code is 1 where a
ratio misses its target.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

GRADIENT = 10_000_000  # elements of float32: 40 MB
MESSAGE = 4_000_000  # 16 MB
HIDDEN, ROWS = 1024, 64
REPEATS = 9
SECONDS = 150
# (what, its measure, the other's, the ratio's bound, whether the bound is the highest or lowest)
TARGETS = [
    ("40 MB gradient: kvstore mpi / bare Allreduce", "mpi", "allreduce", 1.3, max),
    ("40 MB gradient: kvstore mpi / dist_sync", "mpi", "dist_sync", 0.6, max),
    ("16 MB message: speed of communicator / mpi4py", "mpi4py", "communicator", 0.8, min),
    ("16 MB message: speed of functions / mpi4py", "mpi4py", "functions", 0.8, min),
    ("the same, NumPy: communicator / mpi4py", "mpi4py_numpy", "communicator_numpy", 0.8, min),
    ("hidden 1024: speed of Pipeline / autograd form", "autograd", "pipeline", 1.5, min),
]


# --- On the ranks -------------------------------------------------------------------------------


def take_turns(barrier, **works):
    """Time works one after the other, again and again; milliseconds by name."""
    found = {name: [] for name in works}
    for number in range(REPEATS + 2):
        for name, work in works.items():
            barrier()
            began = time.perf_counter()
            work()
            if number > 1:  # the first ones warm up
                found[name].append(1e3 * (time.perf_counter() - began))
    return found


def on_rank():
    from mxloop.multi_node import create_communicator

    communicator = create_communicator(seconds=60)
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    measures = {}
    for measure in (gradients, messages, networks):
        measures.update(measure(communicator, world, MPI))
    slowest = communicator.allreduce_obj(
        measures, lambda a, b: {k: list(map(max, a[k], b[k])) for k in a}
    )
    if communicator.rank == 0:
        print(json.dumps(slowest), flush=True)


def gradients(communicator, world, MPI):
    from mxloop.compat import mx
    from mxloop.model import create_kvstore
    from mxloop.multi_node.arrays import view

    store, _ = create_kvstore("mpi", 1, {})
    array, bare = (mx.nd.ones((GRADIENT,)) for _ in range(2))
    memory = view(bare)

    def by_store():
        array[:] = 1
        store.pushpull("w", array)
        array.wait_to_read()

    def by_mpi():
        bare[:] = 1
        bare.wait_to_read()
        world.Allreduce(MPI.IN_PLACE, memory)

    found = take_turns(world.Barrier, mpi=by_store, allreduce=by_mpi)
    assert (array.asnumpy() == world.size).all()
    return found


def messages(communicator, world, MPI):
    """A message there and one back; memory of NumPy is faster for MPI than that of MXNet."""
    from mxloop.compat import mx
    from mxloop.multi_node import functions
    from mxloop.multi_node.arrays import view

    array, place = mx.nd.ones((MESSAGE,)), mx.nd.ones((MESSAGE,))
    of_numpy, other_of_numpy = array.asnumpy(), place.asnumpy()
    other = 1 - world.rank

    def turns(send, receive):
        def work():
            for step in (send, receive) if world.rank == 0 else (receive, send):
                step()

        return work

    def by_mpi(memory, place):
        return turns(lambda: world.Send(memory, other), lambda: world.Recv(place, other))

    def by_us(array):
        return turns(lambda: communicator.send(array, other), lambda: communicator.recv(other))

    def receive():
        functions.recv(communicator, other).wait_to_read()

    return take_turns(
        world.Barrier,
        mpi4py=by_mpi(view(array), view(place)),
        communicator=by_us(array),
        functions=turns(lambda: functions.send(array, communicator, other), receive),
        mpi4py_numpy=by_mpi(of_numpy, other_of_numpy),
        communicator_numpy=by_us(of_numpy),
    )


def networks(communicator, world, MPI):
    """One step of an MLP in two stages, with the update."""
    pipeline, autograd = pipeline_step(communicator), autograd_step(communicator)
    return take_turns(world.Barrier, pipeline=pipeline, autograd=autograd)


def data():
    import numpy as np

    random = np.random.RandomState(0)
    x = random.normal(size=(ROWS, 784)).astype("float32")
    return x, random.randint(0, 10, ROWS).astype("float32")


def pipeline_step(communicator):
    from mxloop.compat import mx
    from mxloop.data import ArrayIter
    from mxloop.model import Update, init_params
    from mxloop.multi_node import Pipeline

    net = mx.sym.var("data")
    for number in (1, 2, 3):
        net = mx.sym.FullyConnected(net, num_hidden=HIDDEN, name=f"fc{number}")
        net = mx.sym.Activation(net, act_type="relu", name=f"relu{number}")
    net = mx.sym.FullyConnected(net, num_hidden=10, name="out")
    symbol = mx.sym.SoftmaxOutput(net, name="softmax")
    batches = ArrayIter(*data(), ROWS)
    manager = Pipeline(symbol, ["relu2"], batches, communicator=communicator)
    inputs = batches.provide_data + batches.provide_label
    manager.set_params(*init_params(symbol, inputs, mx.init.Xavier()))
    update = Update(manager, mx.optimizer.SGD(learning_rate=0.01))
    batch = next(batches)

    def step():
        manager.load_data_batch(batch)
        manager.forward(is_train=True)
        manager.backward()
        update()
        mx.nd.waitall()

    return step


def autograd_step(communicator):
    from mxloop.compat import mx
    from mxloop.multi_node import MultiNodeChainList

    def dense(units, inputs, act):
        return mx.gluon.nn.Dense(units, activation=act, in_units=inputs)

    net, half = MultiNodeChainList(communicator), mx.gluon.nn.Sequential()
    if communicator.rank == 0:
        half.add(dense(HIDDEN, 784, "relu"), dense(HIDDEN, HIDDEN, "relu"))
        net.add_link(half, rank_out=1)
    else:
        half.add(dense(HIDDEN, HIDDEN, "relu"), dense(10, HIDDEN, None))
        net.add_link(half, rank_in=0)
    net.initialize(mx.init.Xavier())
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.01}, kvstore=None)
    loss_of = mx.gluon.loss.SoftmaxCrossEntropyLoss()
    x, y = map(mx.nd.array, data())

    def step():
        with mx.autograd.record():
            head = net(x) if communicator.rank == 0 else loss_of(net(), y)
        head.backward()
        trainer.step(ROWS)
        mx.nd.waitall()

    return step


# --- dist_sync ----------------------------------------------------------------------------------


def dist_worker():
    from mxloop.compat import mx
    from mxloop.model import create_kvstore

    store, _ = create_kvstore("dist_sync", 1, {})
    array = mx.nd.ones((GRADIENT,))
    store.init("w", array)
    out = mx.nd.zeros((GRADIENT,))

    def step():
        array[:] = 1
        store.pushpull("w", array, out=out)
        out.wait_to_read()

    found = take_turns(store._barrier, dist_sync=step)
    if store.rank == 0:
        print(json.dumps(found), flush=True)


# --- Processes ----------------------------------------------------------------------------------


def start(arguments, **environment):
    return subprocess.Popen(
        arguments,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )


def answer(process):
    output, _ = process.communicate(timeout=SECONDS)
    if process.returncode:
        sys.exit(f"error: {process.args} ended with code {process.returncode}")
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[0]) if lines else {}


def run_ranks():
    folder = os.path.dirname(sys.executable)
    mpiexec = shutil.which("mpiexec", path=os.pathsep.join([folder, os.environ["PATH"]]))
    if mpiexec is None:
        sys.exit('error: there is no mpiexec; run pip install "mxloop[mpi]"')
    return answer(start([mpiexec, "-n", "2", sys.executable, __file__, "--role", "rank"]))


def run_dist():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    cluster = {
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(port),
        "DMLC_NUM_WORKER": "2",
        "DMLC_NUM_SERVER": "1",
    }
    roles = ("scheduler", "server", "worker", "worker")
    command = [sys.executable, __file__, "--role", "dist"]
    processes = [start(command, **cluster, DMLC_ROLE=role) for role in roles]
    try:
        answers = [answer(process) for process in processes[2:]]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return next(filter(None, answers))


def judge(measures):
    """Print what was found, and return whether all targets hold."""
    medians = {name: statistics.median(values) for name, values in measures.items()}
    for name, values in measures.items():
        low, *_, high = sorted(values)
        print(f"{name:18} {medians[name]:8.2f} ms   ({low:.2f} to {high:.2f})")
    print()
    holds = []
    for text, one, other, bound, limit in TARGETS:
        ratio = medians[one] / medians[other]
        holds.append(limit(ratio, bound) == bound)
        sign, verdict = ("<=" if limit is max else ">="), ("holds" if holds[-1] else "MISSED")
        print(f"{text:50} {ratio:6.2f}   {sign} {bound}   {verdict}")
    return all(holds)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="starts of all processes")
    parser.add_argument("--role", choices=("rank", "dist"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role:
        return {"rank": on_rank, "dist": dist_worker}[options.role]()
    measures = {}
    for _ in range(options.rounds):
        for found in (run_ranks(), run_dist()):
            for name, values in found.items():
                measures.setdefault(name, []).extend(values)
    return 0 if judge(measures) else 1


if __name__ == "__main__":
    sys.exit(main())
