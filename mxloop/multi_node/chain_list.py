"""A network whose parts live on several ranks, written down as who feeds whom."""

import collections
from typing import Any, List, NamedTuple, Optional, Sequence, Union

from mxloop.compat import mx
from mxloop.errors import ArgumentError, ArgumentTypeError, StateError
from mxloop.multi_node.communicator import Communicator, check_communicator
from mxloop.multi_node.functions import pseudo_connect, recv, send
from mxloop.validation import shown

Ranks = Union[None, int, Sequence[int]]


class _Link(NamedTuple):
    block: Any
    sources: Optional[List[int]]
    dests: Optional[List[int]]


class MultiNodeChainList(mx.gluon.Block):
    """The parts of a network that this rank holds, and where their values come from and go to.

    Parts run in the order in which they were added. A part without `rank_in` takes the network's
    inputs, one without `rank_out` gives its output.

    Parameters
    ----------
    communicator : Communicator
    **kwargs
        For `mx.gluon.Block`.

    Notes
    -----
    A rank may name itself: its values then go through a queue, first in, first out.
    """

    def __init__(self, communicator: Communicator, **kwargs: Any):
        super().__init__(**kwargs)
        self._communicator = check_communicator(communicator)
        self._links: List[_Link] = []

    def add_link(self, link: Any, rank_in: Ranks = None, rank_out: Ranks = None) -> None:
        """Add a part.

        Parameters
        ----------
        link : Block or callable
            Gets what each rank in `rank_in` sends as one argument: an array, or a tuple if a tuple
            was sent.
        rank_in, rank_out : None, int or list of int

        Raises
        ------
        ArgumentError
            If a rank does not exist, or a second part has no `rank_out`.
        """
        if not callable(link):
            raise ArgumentTypeError(f"link is {shown(repr(link))}; pass a Block, or a function")
        added = _Link(link, self._ranks("rank_in", rank_in), self._ranks("rank_out", rank_out))
        if added.dests is None and any(each.dests is None for each in self._links):
            raise ArgumentError(
                "a second part without rank_out: a MultiNodeChainList has one output; say where "
                "this part's goes"
            )
        if isinstance(link, mx.gluon.Block):
            self.register_child(link)
        self._links.append(added)

    def _ranks(self, name, ranks):
        if ranks is None:
            return None
        listed = list(ranks) if isinstance(ranks, (list, tuple)) else [ranks]
        if not listed:
            raise ArgumentError(f"{name} is an empty list; pass None, a rank, or some ranks")
        return [self._communicator.check_rank(name, rank) for rank in listed]

    def forward(self, *inputs: Any) -> Any:
        """Run the parts, receiving and sending in between.

        Returns
        -------
        NDArray, or what the part without `rank_out` gives
            On a rank without such a part a delegate variable, on which to call ``backward()``.

        Raises
        ------
        StateError
            If a part takes from this rank's own queue more or less than others have put there.
        """
        queue: Any = collections.deque()
        delegates: List[mx.nd.NDArray] = []
        output = None
        for link in self._links:
            taken = inputs if link.sources is None else self._taken(link.sources, queue)
            value = link.block(*taken)
            if link.dests is None:
                output = value
            else:
                delegates += self._given(value, link.dests, queue)
        if queue:
            raise StateError(
                f"{len(queue)} values that rank {self._communicator.rank} sent to itself were not "
                "taken; add a part with this rank_in for each"
            )
        return _joined(delegates, output)

    def _taken(self, sources, queue):
        own = self._communicator.rank
        return [
            _first(queue, own) if source == own else recv(self._communicator, source)
            for source in sources
        ]

    def _given(self, value, dests, queue):
        """Send a value, and return the delegate variables of that."""
        own = self._communicator.rank
        queue.extend([value] * dests.count(own))
        return [send(value, self._communicator, dest) for dest in dests if dest != own]


def _first(queue, rank):
    if not queue:
        raise StateError(
            f"a part of rank {rank} takes its input from rank {rank} itself, which sent nothing "
            "yet; add the part that does so before"
        )
    return queue.popleft()


def _joined(delegates, output):
    """The output, or a delegate, from which a backward pass reaches all sends."""
    if not delegates:
        if output is None:
            raise StateError(
                "no part on this rank gives an output or sends one; add a part with add_link"
            )
        return output
    delegate = mx.nd.add_n(*delegates) if len(delegates) > 1 else delegates[0]
    if output is None:
        return delegate
    is_tuple = isinstance(output, (list, tuple))
    joined = pseudo_connect(delegate, *(output if is_tuple else [output]))
    return (joined,) if is_tuple and len(output) == 1 else joined
