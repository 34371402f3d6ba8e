"""In which order the stages of a pipeline work on the micro-batches of a step."""

from typing import Dict, List, NamedTuple, Set

from mxloop.validation import check_known, count

SCHEDULES = ("gpipe", "1f1b")


class Task(NamedTuple):
    """One stage, forward or backward on one micro-batch."""

    stage: int
    is_forward: bool
    micro: int


def in_flight(kind: str, stages: int, micro_batches: int, stage: int) -> int:
    """How many micro-batches a stage holds at the same time, having gone forward only.

    GPipe (Huang et al., 2019) takes all of them forward before the first goes back. 1F1B
    (PipeDream-flush, Narayanan et al., 2021) goes back as soon as the last stage can, which takes
    as long, and holds one micro-batch for each stage that is left.
    """
    return micro_batches if kind == "gpipe" else min(micro_batches, stages - stage)


def schedule(kind: str, stages: int, micro_batches: int) -> List[Task]:
    """All tasks of a step, in an order in which each finds its input made.

    A process that does its own stages' tasks in this order, and waits for what other processes
    give, never waits in a circle.

    Parameters
    ----------
    kind : {'gpipe', '1f1b'}
    stages, micro_batches : int

    Raises
    ------
    ArgumentError
        If the kind is not known, or there are none of something.
    """
    check_known(kind, SCHEDULES, "schedule")
    count("stages", stages)
    count("micro_batches", micro_batches)
    held = [in_flight(kind, stages, micro_batches, stage) for stage in range(stages)]
    return _merged([_of_stage(s, held[s], micro_batches) for s in range(stages)], stages)


def forward_only(stages: int, micro_batches: int) -> List[Task]:
    """The tasks of an evaluation."""
    return [Task(stage, True, m) for m in range(micro_batches) for stage in range(stages)]


def _of_stage(stage: int, held: int, micro_batches: int) -> List[Task]:
    forward = [Task(stage, True, m) for m in range(micro_batches)]
    backward = [Task(stage, False, m) for m in range(micro_batches)]
    tasks = forward[:held]
    for i, task in enumerate(backward):
        tasks += [task, *forward[held + i : held + i + 1]]
    return tasks


def _merged(of_stages: List[List[Task]], stages: int) -> List[Task]:
    """Let each stage do its next task as soon as it can, in steps of equal length."""
    done: List[Task] = []
    waiting: Dict[int, List[Task]] = dict(enumerate(of_stages))
    while any(waiting.values()):
        made = set(done)
        ready = [tasks[0] for tasks in waiting.values() if tasks and _can(tasks[0], made, stages)]
        for task in ready:
            waiting[task.stage].pop(0)
        done += ready
    return done


def _can(task: Task, made: Set[Task], stages: int) -> bool:
    if task.is_forward:
        return task.stage == 0 or task._replace(stage=task.stage - 1) in made
    after = task._replace(stage=task.stage + 1)
    return task.stage == stages - 1 or after in made
