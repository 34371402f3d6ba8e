"""An iterator that gathers shuffled rows from memory: the best that MXNet's loops can be given."""


def iterator(mx, work, x, y):
    """Make a DataIter over arrays in memory."""

    class Gathering(mx.io.DataIter):
        def __init__(self):
            super().__init__(work.batch)
            self._epoch = 0
            self.provide_data = [mx.io.DataDesc("data", (work.batch, *x.shape[1:]))]
            self.provide_label = [mx.io.DataDesc("softmax_label", (work.batch,))]
            self.reset()

        def reset(self):
            self._order = work.order(self._epoch)
            self._epoch += 1
            self._at = 0

        def next(self):
            if self._at >= work.samples:
                raise StopIteration
            rows = self._order[self._at : self._at + work.batch]
            self._at += work.batch
            data, label = mx.nd.array(x[rows]), mx.nd.array(y[rows])
            return mx.io.DataBatch([data], [label], pad=0)

    return Gathering()
