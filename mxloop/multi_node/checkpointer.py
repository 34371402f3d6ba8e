"""Checkpoints of several ranks, which go on together from one that all of them have."""

import os
import re
from typing import Any, List, NamedTuple, Optional

from mxloop import checkpoint
from mxloop.callback.base import State
from mxloop.callback.checkpointing import Checkpoint
from mxloop.checkpoint import Generation
from mxloop.errors import DataError
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.validation import path_of, shown


class Place(NamedTuple):
    """A generation: epochs and batches done, and the number of ranks that wrote it."""

    epoch: int
    batch: int
    size: int


def create_multi_node_checkpointer(
    prefix: Any, communicator: Communicator, **kwargs: Any
) -> "MultiNodeCheckpoint":
    """Make a callback by which several ranks write checkpoints, for ``fit(checkpoint=...)``.

    ``fit(resume=True)`` goes on from the newest generation that all ranks have whole. With another
    number of ranks than wrote it, generations between two epochs serve: the ranks' parameters are
    equal then, and the order of the samples is found by reading the data again.

    Parameters
    ----------
    prefix : str or path-like
        On a file system that all ranks see. Each adds its number and that of all to it.
    communicator : Communicator
    **kwargs
        For `mxloop.callback.Checkpoint`.
    """
    return MultiNodeCheckpoint(prefix, communicator, **kwargs)


class MultiNodeCheckpoint(Checkpoint):
    """See `create_multi_node_checkpointer`."""

    is_of_ranks = True

    def __init__(self, prefix: Any, communicator: Communicator, **kwargs: Any):
        self._communicator = check_communicator(communicator)
        self._common = path_of(prefix)
        super().__init__(self._prefix(communicator.rank, communicator.size), **kwargs)

    def newest(self) -> Optional[Generation]:
        """Read the newest generation that all ranks have; they must call this together."""
        found = self._communicator.bcast_obj(self._places() if self._is_first else None)
        return self._first_whole(found)

    def load(self, epoch: int) -> Generation:
        """Read the generation after so many epochs; all ranks must call this together.

        Raises
        ------
        DataError
            On all ranks, if one of them lacks it or finds it broken.
        """
        places = [each for each in self._places() if each[:2] == (epoch, 0)]
        found = self._first_whole(self._communicator.bcast_obj(places))
        if found is None:
            raise DataError(
                f"not all ranks have a valid checkpoint {shown(self._common, 120)} of epoch {epoch}"
            )
        return found

    def on_exception(self, state: State, error: BaseException) -> None:
        """See `Checkpoint`; a pipeline's ranks cannot collect parameters when one has failed."""
        if getattr(getattr(state.manager, "communicator", None), "size", 1) == 1:
            super().on_exception(state, error)

    @property
    def _is_first(self):
        return self._communicator.rank == 0

    def _prefix(self, rank, size):
        return f"{self._common}-rank{rank}of{size}"

    def _places(self) -> List[Place]:
        """What rank 0 has written, alone or with others; the newest first."""
        size = self._communicator.size
        found = [
            (serial, each_size == size, Place(epoch, batch, each_size))
            for each_size in self._sizes()
            for (epoch, batch), serial in checkpoint.serials(self._prefix(0, each_size)).items()
            if each_size == size or not batch
        ]
        found.sort(key=lambda each: (each[2].epoch, each[2].batch, each[1], each[0]), reverse=True)
        return [place for *_, place in found]

    def _sizes(self):
        folder, name = os.path.split(self._common)
        pattern = re.compile(re.escape(name) + r"-rank0of([0-9]{1,9})-.*\.json")
        try:
            found = map(pattern.fullmatch, os.listdir(folder or "."))
        except OSError:
            return []
        return sorted({int(match[1]) for match in found if match})

    def _first_whole(self, places):
        for place in places:
            found = self._read(place)
            if all(self._communicator.allgather_obj(found is not None)):
                return found
        return None

    def _read(self, place):
        """This rank's part of a generation, or rank 0's where other ranks wrote it."""
        communicator = self._communicator
        is_own = place.size == communicator.size
        prefix = self._prefix(communicator.rank if is_own else 0, place.size)
        try:
            found = checkpoint.load(prefix, place.epoch, place.batch)
        except DataError:
            return None
        if is_own:
            return found
        elsewhere = {"iterator": None, "eval_iterator": None}  # where other ranks' data stood
        return found._replace(manifest={**found.manifest, **elsewhere})
