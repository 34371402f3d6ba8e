"""A small run with checkpoints, for tests that change its files and take it up again."""

import tempfile
from pathlib import Path

import resume_run

from mxloop import (
    DataParallelExecutorManager,
    checkpoint,
    manifest_format,
    meter,
    metric,
    model,
    mx,
    resume,
    training,
)
from mxloop.callback import Checkpoint, State

CPUS = [mx.cpu(0), mx.cpu(1)]
WITHIN = (1, 4)  # epoch and batch of one of its checkpoints


def optimizer():
    schedule = mx.lr_scheduler.MultiFactorScheduler(step=[3, 9], factor=0.5, base_lr=0.05)
    return mx.optimizer.SGD(learning_rate=0.05, momentum=0.9, lr_scheduler=schedule)


class Resumable:
    """The run, done; `load` takes it up again, from a manifest that a test gives."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.prefix = Path(self.folder.name) / "m"
        self.manager = DataParallelExecutorManager(
            resume_run.network(), CPUS, resume_run.data("keep")
        )
        shapes = resume_run.data("keep")
        inputs = shapes.provide_data + shapes.provide_label
        self.manager.set_params(*model.init_params(self.manager.symbol, inputs, mx.init.Xavier()))
        state = self.state()
        state.seed = 7
        keeper = Checkpoint(self.prefix, every_n_batches=4)
        state.callbacks = [keeper]
        data = state.train_data, 2, state.eval_data, ["acc", "ce"]
        training.train(self.manager, state.update, *data, callbacks=[keeper], state=state)

    def path(self, ending, place=WITHIN):
        return Path(f"{checkpoint.stem(str(self.prefix), *place)}.{ending}")

    def paths(self):
        """All files of one checkpoint."""
        symbol = Path(f"{self.prefix}-symbol.json")
        return [symbol, *(self.path(ending) for ending in ("params", "states", "json"))]

    def files(self):
        """All its manifests."""
        places = checkpoint.generations(self.prefix)
        return [self.path("json", place).read_bytes() for place in places]

    def reload(self):
        return checkpoint.load(self.prefix, *WITHIN)

    def load(self, data):
        """Take the run up where a manifest says, as far as its first step."""
        told = manifest_format.decode(data)
        place = told["epoch"], told["batch"]
        if place not in checkpoint.generations(self.prefix):
            place = WITHIN
        path = self.path("json", place)
        before = path.read_bytes()
        try:
            path.write_bytes(data)
            found = checkpoint.load(self.prefix, *place)
        finally:
            path.write_bytes(before)
        state = self.state()
        resume.restore(state, found)
        stream = training._Epochs(state.train_data, None)
        stream.go_on(found, True)
        resume.restore_random(found)
        next(stream.epoch(), None)
        return state

    def state(self):
        """A run like this one that has not begun."""
        own = optimizer()
        state = State(self.manager, 0, 2, own)
        state.update = model.Update(self.manager, own)
        state.meter = meter.Meter(metric.create(["acc", "ce"]), True)
        state.train_data, state.eval_data = resume_run.data("keep"), resume_run.data("keep")
        state.callbacks = [Checkpoint(self.prefix)]
        return state
