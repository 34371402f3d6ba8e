"""Gradients through several ranks equal those of one process."""

import numpy as np

from mxloop.compat import mx
from mxloop.errors import StateError
from mxloop.multi_node import MultiNodeChainList
from mxloop.multi_node import functions as F

WIDTH = 5
TOLERANCE = {"float16": 2e-2, "float32": 1e-5, "float64": 1e-12}


def array(*key, shape=(WIDTH, WIDTH), dtype="float32"):
    """The same values for the same key, on all ranks, with a gradient."""
    made = mx.nd.array(np.random.RandomState(key).uniform(-1, 1, shape), dtype=dtype)
    made.attach_grad()
    return made


def layer(weight):
    return lambda x: mx.nd.tanh(mx.nd.dot(x, weight))


def gradients(loss, *arrays):
    """The oracle: a loss of one process, and its gradients."""
    with mx.autograd.record():
        value = loss(*arrays)
    value.backward()
    return [each.grad.asnumpy() for each in arrays]


def compare(found, wanted, dtype="float32"):
    for array_, expected in zip(found, wanted):
        assert np.abs(expected).max() > 1e-3  # the oracle says something
        tolerance = TOLERANCE[dtype]
        np.testing.assert_allclose(array_.grad.asnumpy(), expected, tolerance, tolerance)


def backward(output, is_loss):
    (mx.nd.sum(output * output) if is_loss else output).backward()


# --- Whole networks -----------------------------------------------------------------------------


def chain_lists(comm, links, x):
    """Run a MultiNodeChainList of (layer, rank_in, rank_out) a rank; return what comes out."""
    net = MultiNodeChainList(comm)
    for link in links:
        net.add_link(*link)
    with mx.autograd.record():
        output = net(x)
        has_loss = any(rank_out is None for _, _, rank_out in links)
        head = mx.nd.sum(output * output) if has_loss else output
    head.backward()


def check_a_cycle(comm):
    rank, size = comm.rank, comm.size
    weights = [array(1, r) for r in range(size + 1)]
    x = array(2)

    def loss(x, *weights):
        for weight in weights:
            x = layer(weight)(x)
        return mx.nd.sum(x * x)

    wanted = gradients(loss, array(2), *[array(1, r) for r in range(size + 1)])
    last = size - 1
    if rank == 0:
        links = [(layer(weights[0]), None, 1), (layer(weights[size]), last, None)]
    else:
        links = [(layer(weights[rank]), rank - 1, (rank + 1) % size)]
    chain_lists(comm, links, x)
    mine = [0, size] if rank == 0 else [rank]
    compare([weights[i] for i in mine], [wanted[1 + i] for i in mine])
    if rank == 0:
        compare([x], wanted[:1])


def crossing(comm, x, first, second, sends_first):
    """Each rank sends to the next one, receives from the one before, and has a loss of its own."""
    peers = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with mx.autograd.record():
        h = layer(first)(x)
        if sends_first:
            delegate = F.send(h, comm, peers[0])
            got = F.recv(comm, peers[1], delegate)
        else:
            got = F.recv(comm, peers[1])
            delegate = F.send(h, comm, peers[0])
        out = F.pseudo_connect(delegate, layer(second)(got))
        loss = mx.nd.sum(out * out)
    loss.backward()


def check_crossing_sends(comm):
    for sends_first in (True, comm.rank % 2 == 0):
        x, first, second = (array(3 + i, comm.rank) for i in range(3))
        crossing(comm, x, first, second, sends_first)
        after = array(5, (comm.rank + 1) % comm.size)
        wanted = gradients(
            lambda x, a, after=after: mx.nd.sum(layer(after)(layer(a)(x)) ** 2),
            array(3, comm.rank),
            array(4, comm.rank),
        )
        compare([x, first], wanted)
        before = [array(3 + i, (comm.rank - 1) % comm.size) for i in range(2)]
        hidden = layer(before[1])(before[0])
        wanted = gradients(lambda c, h=hidden: mx.nd.sum(layer(c)(h) ** 2), array(5, comm.rank))
        compare([second], wanted)


def check_crossing_sends_of_large_arrays(comm):
    """Larger than what MPI takes without a receiver."""
    shape = (400, 400)
    x = array(6, comm.rank, shape=shape)
    y = array(7, comm.rank, shape=shape)
    peers = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with mx.autograd.record():
        delegate = F.send(x * 2, comm, peers[0])
        loss = mx.nd.sum(F.recv(comm, peers[1], delegate) * y)
    loss.backward()
    compare([x], [2 * array(7, peers[0], shape=shape).asnumpy()])
    compare([y], [2 * array(6, peers[1], shape=shape).asnumpy()])


def branching(comm, children):
    """Rank 0 feeds some ranks, and joins what they make of it."""
    rank = comm.rank
    first, last = array(8), array(9)
    middle = {r: array(10, r) for r in range(comm.size)}
    x = array(11)

    def join(*parts):
        return layer(last)(mx.nd.add_n(*parts))

    links = []
    if rank == 0:
        links.append((layer(first), None, children))
    if rank in children:
        links.append((layer(middle[rank]), 0, 0))
    if rank == 0:
        links.append((join, children, None))
    if links:
        chain_lists(comm, links, x)

    def loss(x, first, last, *middle):
        h = layer(first)(x)
        out = layer(last)(mx.nd.add_n(*[layer(each)(h) for each in middle]))
        return mx.nd.sum(out * out)

    wanted = gradients(loss, array(11), array(8), array(9), *[array(10, r) for r in children])
    if rank == 0:
        compare([x, first, last], wanted[:3])
    if rank in children:
        compare([middle[rank]], [wanted[3 + children.index(rank)]])


def check_branches(comm):
    branching(comm, list(range(1, comm.size)))


def check_branches_with_rank_0_among_its_own_children(comm):
    others = list(range(1, comm.size))
    middle = len(others) // 2
    for children in ([0, *others], [*others, 0], [*others[:middle], 0, *others[middle:]]):
        branching(comm, children)


def twist(comm, weights, x):
    rank, last = comm.rank, comm.size - 1
    if rank in (0, last):
        peer = 1 if rank == 0 else last - 1
        links = [(layer(weights[rank][0]), None, peer), (layer(weights[rank][1]), peer, None)]
    else:
        a, b, c = (layer(weight) for weight in weights[rank])
        links = [(a, rank - 1, rank + 1), (b, rank + 1, rank), (c, rank, rank - 1)]
    chain_lists(comm, links, x)


def check_both_directions_at_once_with_a_queue_in_the_middle(comm):
    size = comm.size
    make = lambda: [[array(12, r, i) for i in range(3)] for r in range(size)]  # noqa: E731
    weights, x = make(), array(13, comm.rank)
    twist(comm, weights, x)

    def loss(*flat):
        up, down = flat[0], flat[1]
        of = [flat[2 + 3 * r : 5 + 3 * r] for r in range(size)]
        up, down = layer(of[0][0])(up), layer(of[-1][0])(down)
        for r in range(1, size - 1):
            up = layer(of[r][0])(up)
        for r in range(size - 2, 0, -1):
            down = layer(of[r][2])(layer(of[r][1])(down))
        up, down = layer(of[-1][1])(up), layer(of[0][1])(down)
        return mx.nd.sum(up * up) + mx.nd.sum(down * down)

    flat = [weight for own in make() for weight in own]
    wanted = gradients(loss, array(13, 0), array(13, size - 1), *flat)
    count = 2 if comm.rank in (0, size - 1) else 3
    start = 2 + 3 * comm.rank
    compare(weights[comm.rank][:count], wanted[start : start + count])
    if comm.rank in (0, size - 1):
        compare([x], [wanted[0 if comm.rank == 0 else 1]])


def check_tuples_go_to_several_ranks(comm):
    """Rank 0 sends (a, b) to all others, which give back (a * b, a + w)."""
    rank = comm.rank
    others = list(range(1, comm.size))
    a, b, w = array(14), array(15), array(16, rank)
    net = MultiNodeChainList(comm)
    if rank == 0:
        net.add_link(lambda x: (mx.nd.tanh(x), x * b), None, others)
        net.add_link(lambda *pairs: mx.nd.add_n(*[p * q for p, q in pairs]), others, None)
    else:
        net.add_link(lambda pair: (pair[0] * pair[1], pair[0] + w), 0, 0)
    with mx.autograd.record():
        out = net(a)
        head = mx.nd.sum(out) if rank == 0 else out
    head.backward()

    def loss(a, b, *ws):
        t, u = mx.nd.tanh(a), a * b
        return mx.nd.sum(mx.nd.add_n(*[t * u * (t + w) for w in ws]))

    wanted = gradients(loss, array(14), array(15), *[array(16, r) for r in others])
    if rank == 0:
        compare([a, b], wanted[:2])
    else:
        compare([w], [wanted[1 + rank]])


# --- Two ranks and their messages ---------------------------------------------------------------


def in_pairs(comm):
    """Whether this rank sends, and to whom; None for a rank left over."""
    peer = comm.rank ^ 1
    return (None, None) if peer >= comm.size else (comm.rank % 2 == 0, peer)


def check_several_sends_to_one_peer_go_backward_in_any_order(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    for order in ((0, 1, 2), (2, 0, 1)):
        if is_sender:
            xs = [array(20 + i) for i in range(3)]
            with mx.autograd.record():
                delegates = [F.send(x * (i + 1), comm, peer) for i, x in enumerate(xs)]
            for i in order:
                delegates[i].backward()
            compare(xs, [np.full((WIDTH, WIDTH), (i + 1.0) * (i + 5)) for i in range(3)])
        else:
            with mx.autograd.record():
                losses = [mx.nd.sum(F.recv(comm, peer) * (i + 5)) for i in range(3)]
            for i in reversed(order):
                losses[i].backward()


def check_tags_tell_messages_apart(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    if is_sender:
        x, y = array(23), array(24)
        with mx.autograd.record():
            first, second = F.send(x, comm, peer, tag=7), F.send(y, comm, peer, tag=3)
        mx.autograd.backward([first, second])
        compare([x, y], [np.full((WIDTH, WIDTH), 2.0), np.full((WIDTH, WIDTH), 3.0)])
    else:
        with mx.autograd.record():
            y, x = F.recv(comm, peer, tag=3), F.recv(comm, peer, tag=7)
            loss = mx.nd.sum(2 * x + 3 * y)
        loss.backward()


def check_a_retained_graph_goes_backward_twice(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    x = array(25)
    with mx.autograd.record():
        head = F.send(x * x, comm, peer) if is_sender else mx.nd.sum(F.recv(comm, peer) ** 2)
    for retain in (True, False):
        head.backward(retain_graph=retain)
        if is_sender:
            compare([x], [4 * x.asnumpy() ** 3])


def check_inputs_without_gradient_change_nothing(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    for without in (0, 1, 2):
        xs = [array(26 + i) for i in range(3)]
        xs[without] = xs[without].copy()
        if is_sender:
            with mx.autograd.record():
                delegate = F.send(tuple(xs), comm, peer)
            delegate.backward()
            rest = [i for i in range(3) if i != without]
            compare(
                [xs[i] for i in rest],
                [np.full((WIDTH, WIDTH), i + 1.0) for i in rest],
            )
        else:
            with mx.autograd.record():
                loss = mx.nd.sum(
                    mx.nd.add_n(*[x * (i + 1) for i, x in enumerate(F.recv(comm, peer))])
                )
            loss.backward()


def check_a_message_without_any_gradient_is_answered(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    for _ in range(2):
        with mx.autograd.record():
            if is_sender:
                head = F.send(mx.nd.ones((2, 2)), comm, peer)
            else:
                w = array(29, shape=(2, 2))
                head = mx.nd.sum(F.recv(comm, peer) * w)
        head.backward()
    if not is_sender:
        compare([w], [np.ones((2, 2))])


def check_grad_req_add_adds_up(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    x = array(30)
    x.attach_grad(grad_req="add")
    for _ in range(3):
        with mx.autograd.record():
            if is_sender:  # the leaf itself goes out
                head = F.send(x, comm, peer)
            else:
                head = mx.nd.sum(F.pseudo_connect(mx.nd.zeros(1), F.recv(comm, peer) * x))
        head.backward()
    mx.nd.waitall()
    compare([x], [3 * array(30).asnumpy()])


def check_dtypes(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    for dtype in ("float16", "float32", "float64"):
        x, y = array(31, dtype=dtype), array(32, dtype=dtype)
        with mx.autograd.record():
            if is_sender:
                head = F.send(x * 3, comm, peer)
            else:
                got = F.recv(comm, peer)
                assert got.dtype == np.dtype(dtype)
                head = mx.nd.sum(got * y)
        head.backward()
        if is_sender:
            compare([x], [3 * y.asnumpy()], dtype)
        else:
            compare([y], [3 * x.asnumpy()], dtype)


def check_integers_travel(comm):
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    for dtype in ("int32", "int64"):
        values = mx.nd.array([[2**30, -1], [3, 4]], dtype=dtype)
        if is_sender:
            F.send(values, comm, peer)
        else:
            got = F.recv(comm, peer, force_tuple=True)
            assert isinstance(got, tuple) and got[0].dtype == np.dtype(dtype)
            np.testing.assert_array_equal(got[0].asnumpy(), values.asnumpy())


def check_training_beside_predicting_is_an_error_on_both_sides(comm):
    """The receiver learns it when receiving, a sender that trains in its backward pass."""
    is_sender, peer = in_pairs(comm)
    if peer is None:
        return
    if is_sender:
        F.send(mx.nd.ones((1,)), comm, peer)
        return
    with mx.autograd.record():
        try:
            F.recv(comm, peer)
        except StateError as error:
            assert "predicts" in str(error) and "trains" in str(error)
        else:
            raise AssertionError("nothing was raised")


# --- pseudo_connect and collectives -------------------------------------------------------------


def check_pseudo_connect_keeps_values_dtypes_and_gradients(comm):
    for shapes in ([(4, 5), (3, 2)], [(3, 2)], [(1,)]):
        for of_delegate in ((3, 2), (1,)):
            for dtype in ("float16", "float32", "float64"):
                pseudo_connected(shapes, of_delegate, dtype)


def pseudo_connected(shapes, of_delegate, dtype):
    delegate = array(40, shape=of_delegate)
    actual = [array(41, i, shape=s, dtype=dtype) for i, s in enumerate(shapes)]
    heads = [array(42, i, shape=s, dtype=dtype) for i, s in enumerate(shapes)]
    with mx.autograd.record():
        found = F.pseudo_connect(delegate * 1, *[x * 2 for x in actual])
    assert isinstance(found, tuple) == (len(shapes) > 1)
    found = found if isinstance(found, tuple) else (found,)
    mx.autograd.backward(list(found), heads)
    for x, y, head in zip(actual, found, heads):
        assert y.dtype == x.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(y.asnumpy(), 2 * x.asnumpy())
        np.testing.assert_array_equal(x.grad.asnumpy(), 2 * head.asnumpy())
    np.testing.assert_array_equal(delegate.grad.asnumpy(), np.zeros(of_delegate))


def check_collectives_have_gradients(comm):
    """Each function against the sum that it stands for, on one process."""
    rank, size, root = comm.rank, comm.size, comm.size - 1
    heads = [[array(50, r, i).asnumpy() for i in range(size)] for r in range(size)]
    ones = [array(51, r) for r in range(size)]
    many = [array(52, r) for r in range(size)]
    mine = ones[rank]

    def back(outputs):
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        mx.autograd.backward(
            list(outputs), [mx.nd.array(head) for head in heads[rank]][: len(outputs)]
        )
        return [o.asnumpy() for o in outputs]

    with mx.autograd.record():
        out = F.bcast(comm, mine * 1 if rank == root else None, root)
    (value,) = back(out)
    np.testing.assert_array_equal(value, ones[root].asnumpy())
    if rank == root:
        compare([mine], [sum(heads[r][0] for r in range(size))])

    with mx.autograd.record():
        out = F.scatter(comm, [x * 1 for x in many] if rank == root else None, root)
    (value,) = back(out)
    np.testing.assert_array_equal(value, many[rank].asnumpy())
    if rank == root:
        compare(many, [heads[r][0] for r in range(size)])

    with mx.autograd.record():
        out = F.gather(comm, mine * 1, root)
    if rank == root:
        for value, one in zip(back(out), ones):
            np.testing.assert_array_equal(value, one.asnumpy())
    else:
        out.backward()
    compare([mine], [heads[root][rank]])

    with mx.autograd.record():
        out = F.allgather(comm, mine * 1)
    for value, one in zip(back(out), ones):
        np.testing.assert_array_equal(value, one.asnumpy())
    compare([mine], [sum(heads[r][rank] for r in range(size))])

    with mx.autograd.record():
        out = F.alltoall(comm, [x * (rank + 1) for x in many])
    for sender, value in enumerate(back(out)):
        np.testing.assert_array_equal(value, (sender + 1) * many[rank].asnumpy())
    compare(many, [(rank + 1) * heads[r][rank] for r in range(size)])
