"""PyTorch on the CPU."""

import os

import twins
from work import DECAY, LEARNING_RATE, MOMENTUM


def train(work, epoch_done):
    import torch

    torch.set_num_threads(work.threads or len(os.sched_getaffinity(0)))
    net, loss = _net(torch, work), torch.nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(_groups(net), LEARNING_RATE, MOMENTUM)
    batches = BATCHES[work.source](torch, work)
    for epoch in range(work.epochs):
        right = torch.zeros((), dtype=torch.int64)
        samples = 0
        for x, y in batches(epoch):
            optimizer.zero_grad()
            out = net(x)
            loss(out, y).backward()
            optimizer.step()
            right += (out.detach().argmax(1) == y).sum()
            samples += len(y)
        epoch_done(samples, right.item() / samples)
    return [param.detach().numpy() for param in net.parameters()]


def _net(torch, work):
    net = twins.torch(torch, work.network)
    with torch.no_grad():
        for param, value in zip(net.parameters(), work.initial()):
            param.copy_(torch.from_numpy(value))
    return net.train()


def _groups(net):
    """Biases do not decay, as in MXNet's loops; normalisation's gamma, their first part, does."""
    params = dict(net.named_parameters())
    decayed = [param for name, param in params.items() if name.endswith("weight")]
    others = [param for name, param in params.items() if not name.endswith("weight")]
    return [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]


def _tensors(torch, work):
    x, y = work.arrays()
    return torch.from_numpy(x), torch.from_numpy(y.astype("int64"))


def _loader(torch, work):
    """What PyTorch has for arrays."""
    data = torch.utils.data
    loader = data.DataLoader(
        data.TensorDataset(*_tensors(torch, work)), work.batch, shuffle=work.shuffle
    )
    return lambda epoch: loader


def _gathered(torch, work):
    """Rows of tensors."""
    x, y = _tensors(torch, work)

    def batches(epoch):
        for rows in torch.from_numpy(work.order(epoch)).split(work.batch):
            yield x[rows], y[rows]

    return batches


BATCHES = {"arrays": _loader, "memory": _gathered}
