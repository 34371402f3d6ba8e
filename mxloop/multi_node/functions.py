"""Communication that gradients flow through, for Gluon blocks under ``autograd.record()``.

A gradient takes the way of its value back. Backward passes run in threads of MXNet's, in no fixed
order, so each gradient carries the number of the message that it answers.
"""

from typing import Any, Dict, Optional, Sequence, Tuple, Union

from mxloop.compat import mx
from mxloop.errors import ArgumentTypeError, StateError
from mxloop.multi_node import arrays as memory_of
from mxloop.multi_node.communicator import Communicator, check_communicator, checked
from mxloop.multi_node.graph import record
from mxloop.multi_node.mail import Channel
from mxloop.validation import shown

NDArray = mx.nd.NDArray
Variables = Union[NDArray, Tuple[NDArray, ...]]


# --- Between two ranks --------------------------------------------------------------------------


def send(x: Any, communicator: Communicator, rank: int, tag: int = 0) -> NDArray:
    """Send an array, or a tuple of arrays, to another rank; its gradient comes back from there.

    Parameters
    ----------
    x : NDArray, or list or tuple of NDArray
        Of any shapes; float16, 32, 64 or integers.
    communicator : Communicator
    rank : int
        Who calls `recv`.
    tag : int
        Tells messages between the same ranks apart.

    Returns
    -------
    NDArray
        A delegate variable of shape (1,): ``backward()`` on it, or on what `pseudo_connect` made of
        it, waits for the gradient and goes on from there.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `rank` is this one or none, or an argument is of another kind.
    PeerError
        If the other rank does not receive in time.
    """
    mail, rank = _mail_to(communicator, rank)
    values = _variables(x)
    tag = mail.check_tag(tag)
    arrays = list(values) if isinstance(values, tuple) else [values]
    is_recording = mx.autograd.is_recording()
    meta = {"tuple": isinstance(values, tuple), "recording": is_recording}
    with mx.autograd.pause():
        posted = mail.post(Channel.VALUE, rank, tag, arrays, **meta)
        mail.settle(posted, f"the message with tag {tag}")
        delegate = mx.nd.zeros((1,))
    if is_recording:
        what = f"the gradient of message {posted.number} (tag {tag})"

        def backward(_):
            return _gradients(mail, rank, posted.number, what)

        record(arrays, [delegate], backward, f"the backward pass of send to rank {rank}")
    return delegate


def recv(
    communicator: Communicator,
    rank: int,
    delegate_variable: Optional[NDArray] = None,
    tag: int = 0,
    force_tuple: bool = False,
) -> Variables:
    """Wait for what another rank sends; its gradient goes back there.

    Parameters
    ----------
    communicator : Communicator
    rank : int
        Who calls `send`.
    delegate_variable : NDArray, optional
        Of an earlier `send`, which then is part of the same graph.
    tag : int
    force_tuple : bool
        Whether a single array comes as a tuple of one.

    Returns
    -------
    NDArray, or tuple of NDArray if a tuple was sent
        On the current context.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If `rank` is this one or none, or an argument is of another kind.
    StateError
        If one of the ranks records for a backward pass and the other does not.
    PeerError
        If nothing comes in time.
    """
    mail, rank = _mail_to(communicator, rank)
    delegates = [] if delegate_variable is None else [_variable(delegate_variable)]
    message = mail.take(Channel.VALUE, rank, mail.check_tag(tag), f"the message with tag {tag}")
    number = message.meta["number"]
    is_recording = mx.autograd.is_recording()
    _check_recording(mail, rank, message, is_recording)
    with mx.autograd.pause():
        outputs = [_here(array) for array in message.arrays]
    if is_recording:

        def backward(*grads):
            posted = mail.post(Channel.GRADIENT, rank, number, grads, refused="")
            mail.settle(posted, f"the gradient of message {number} (tag {tag})")
            return [None] * len(delegates)

        record(delegates, outputs, backward, f"the backward pass of recv from rank {rank}")
    return tuple(outputs) if message.meta["tuple"] or force_tuple else outputs[0]


def _gradients(mail, rank, number, what):
    message = mail.take(Channel.GRADIENT, rank, number, what)
    if message.meta["refused"]:
        raise StateError(message.meta["refused"])
    return message.arrays


def _check_recording(mail, rank, message, is_recording):
    sent_recording = message.meta.get("recording", False)
    if sent_recording == is_recording:
        return
    doing = {True: "trains (autograd.record)", False: "predicts"}
    text = (
        f"rank {rank} {doing[sent_recording]} and rank {mail.rank} {doing[is_recording]} with the "
        "same message; let both record, or neither"
    )
    if sent_recording:  # the other's backward pass would wait for a gradient
        mail.post(Channel.GRADIENT, rank, message.meta["number"], [], refused=text)
    raise StateError(text)


def pseudo_connect(delegate_variable: NDArray, *actual_variables: NDArray) -> Variables:
    """Make a delegate variable part of the graph that leads to other variables.

    A backward pass from the variables returned then goes through the delegate's `send` too.

    Parameters
    ----------
    delegate_variable : NDArray
        Its gradient is zero.
    *actual_variables : NDArray

    Returns
    -------
    NDArray, or tuple of NDArray for several
        The actual variables, with their values, dtypes and gradients.
    """
    delegate = _variable(delegate_variable)
    inputs = [_variable(variable) for variable in actual_variables]
    if not inputs:
        return delegate
    outputs = inputs
    if mx.autograd.is_recording():
        outputs = [variable.detach() for variable in inputs]
        record([delegate, *inputs], outputs, lambda *grads: [None, *grads], "pseudo_connect")
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


# --- Between all ranks --------------------------------------------------------------------------
#
# All ranks must call these in the same order, and record for a backward pass, or not, together.


def bcast(communicator: Communicator, x: Optional[NDArray] = None, root: int = 0) -> NDArray:
    """Give all ranks the array of rank `root`; the gradient there is the sum of all ranks'."""
    root = check_communicator(communicator).check_rank("root", root)
    mine = communicator.rank == root
    to = dict.fromkeys(range(communicator.size), _variable(x)) if mine else {}

    def backward(exchange, grads):
        found = exchange({root: grads[0]}, _everyone(communicator) if mine else [])
        return [_sum(found)] if mine else []

    return _collective(communicator, "bcast", [x] if mine else [], to, [root], backward)[0]


def scatter(
    communicator: Communicator, xs: Optional[Sequence[NDArray]] = None, root: int = 0
) -> NDArray:
    """Give each rank its entry of the sequence on rank `root`; gradients are gathered there."""
    root = check_communicator(communicator).check_rank("root", root)
    mine = communicator.rank == root
    inputs = _one_each(communicator, xs) if mine else []

    def backward(exchange, grads):
        found = exchange({root: grads[0]}, _everyone(communicator) if mine else [])
        return [found[rank] for rank in sorted(found)]

    to = dict(enumerate(inputs))
    return _collective(communicator, "scatter", inputs, to, [root], backward)[0]


def gather(communicator: Communicator, x: NDArray, root: int = 0) -> Union[NDArray, Tuple]:
    """Collect all ranks' arrays on rank `root`; each rank gets its gradient back from there.

    Returns
    -------
    tuple of NDArray on rank `root`; elsewhere a delegate variable, as of `send`
    """
    root = check_communicator(communicator).check_rank("root", root)
    mine = communicator.rank == root
    sources = _everyone(communicator) if mine else []

    def backward(exchange, grads):
        to = dict(enumerate(grads)) if mine else {}
        return [exchange(to, [root])[root]]

    to = {root: _variable(x)}
    found = _collective(communicator, "gather", [x], to, sources, backward)
    return tuple(found) if mine else found[0]


def allgather(communicator: Communicator, x: NDArray) -> Tuple[NDArray, ...]:
    """Collect all ranks' arrays on all ranks; a gradient is the sum of what all ranks found."""
    everyone = _everyone(check_communicator(communicator))
    to = dict.fromkeys(everyone, _variable(x))

    def backward(exchange, grads):
        return [_sum(exchange(dict(enumerate(grads)), everyone))]

    return tuple(_collective(communicator, "allgather", [x], to, everyone, backward))


def alltoall(communicator: Communicator, xs: Sequence[NDArray]) -> Tuple[NDArray, ...]:
    """Send entry r to rank r, and return what all ranks sent to this one; gradients go back."""
    everyone = _everyone(check_communicator(communicator))
    inputs = _one_each(communicator, xs)

    def backward(exchange, grads):
        found = exchange(dict(enumerate(grads)), everyone)
        return [found[rank] for rank in everyone]

    to = dict(enumerate(inputs))
    return tuple(_collective(communicator, "alltoall", inputs, to, everyone, backward))


def _collective(communicator, op, inputs, to, sources, backward):
    """Exchange values now, and gradients later under the same number."""
    number = communicator.next_number()
    with mx.autograd.pause():
        found = communicator.exchange(op, number, to, sources)
        outputs = [_here(found[rank]) for rank in sources] or [mx.nd.zeros((1,))]
    if mx.autograd.is_recording():

        def exchange(grads, senders):
            return communicator.exchange(op, number, grads, senders, grad=True)

        doing = f"the backward pass of {op}"
        record(inputs, outputs, lambda *grads: backward(exchange, grads), doing)
    return outputs


def _everyone(communicator) -> range:
    return range(communicator.size)


def _sum(found: Dict[int, NDArray]) -> NDArray:
    return mx.nd.add_n(*[found[rank] for rank in sorted(found)])


# --- Arguments ----------------------------------------------------------------------------------


def _mail_to(communicator, rank):
    peer = check_communicator(communicator).check_peer("rank", rank)
    return communicator.mail, peer


def _one_each(communicator, xs):
    communicator.check_one_each("a collective function", xs)
    return [_variable(x) for x in xs]


def _variables(x):
    values = checked(x)
    for each in values if isinstance(values, tuple) else [values]:
        _variable(each)
    return values


def _variable(x):
    if not isinstance(x, NDArray):
        raise ArgumentTypeError(
            f"got {shown(repr(x))} where an NDArray is sent through the graph; pass mx.nd.array(x)"
        )
    return memory_of.check(x)


def _here(array):
    return array.as_in_context(mx.context.current_context())
