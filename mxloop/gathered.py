"""Gradients of several batches, added up for one update: that of a batch as large as all of them.

They are added to arrays of their own. MXNet could add them up itself (``grad_req='add'``), but each
batch's gradient by itself is what the guard looks at, and what says in which batch it diverged.
"""

from typing import Any, Dict, List

from mxloop.batch import sum_arrays
from mxloop.blocks import Block
from mxloop.compat import mx
from mxloop.errors import DataError
from mxloop.validation import shown


class Gathered:
    """Sums of the gradients of batches that wait for their update; one a block and device.

    Parameters
    ----------
    blocks : list of Block
        Of a manager, with the gradients of its present batch.

    Attributes
    ----------
    batches, samples : int
        Those that are in the sums; samples as the update counts them, those of all workers.
    """

    def __init__(self, blocks: List[Block]):
        self._blocks = blocks
        self._sums: List[Block] = []  # made when they are needed
        self.batches = self.samples = 0

    def add(self, samples: int) -> None:
        """Add the present gradients to the sums; asynchronous."""
        if not self._sums:
            self._sums = [b._replace(grads=[g.copy() for g in b.grads]) for b in self._blocks]
        elif not self.batches:
            for total, grad in self._pairs():
                grad.copyto(total)
        else:
            for total, grad in self._pairs():
                sum_arrays([total, grad], total)
        self.batches += 1
        self.samples += samples

    def take(self) -> int:
        """Add the sums to the present gradients, and begin anew; asynchronous.

        Returns
        -------
        int
            The samples that were in them.
        """
        if self.batches:
            for total, grad in self._pairs():
                sum_arrays([grad, total], grad)
        samples = self.samples
        self.batches = self.samples = 0
        return samples

    def _pairs(self):
        for sums, block in zip(self._sums, self._blocks):
            yield from zip(sums.grads, block.grads)

    def arrays(self) -> Dict[str, List[mx.nd.NDArray]]:
        """The sums by parameter, one array a device; none where no batch waits."""
        return _by_name(self._sums) if self.batches else {}

    def load(self, arrays: Dict[str, Any], batches: int, samples: int) -> None:
        """Take back what `arrays` gave; on another number of devices the first gets all.

        Raises
        ------
        DataError
            If the sums are those of other parameters.
        """
        if batches:
            self._sums = [b._replace(grads=[g.zeros_like() for g in b.grads]) for b in self._blocks]
            own = _by_name(self._sums)
            _check(arrays, own)
            for name, totals in own.items():
                _share_out(arrays[name], totals)
        self.batches, self.samples = batches, samples


def _by_name(blocks):
    """Each parameter's gradients, one a device."""
    found = {}
    for block in blocks:
        if block.layout is None:
            found[block.names[0]] = block.grads
        else:
            views = [block.layout.views(grad) for grad in block.grads]
            found.update({name: [each[name] for each in views] for name in block.names})
    return found


def _check(given, own):
    if given.keys() != own.keys():
        raise DataError(
            "the checkpoint holds gradients of other parameters; resume with the network that it "
            "was made with"
        )
    for name, arrays in given.items():
        if not arrays or any(getattr(a, "shape", None) != own[name][0].shape for a in arrays):
            raise DataError(
                f"the checkpoint's gradient of {shown(repr(name), 60)} has another shape; resume "
                "with the network that it was made with"
            )


def _share_out(given, totals):
    if len(given) == len(totals):
        for array, total in zip(given, totals):
            array.copyto(total)
    else:
        sum_arrays([array.as_in_context(totals[0].context) for array in given], totals[0])
