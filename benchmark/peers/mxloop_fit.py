"""mxloop: FeedForward.fit."""

import stock
import twins


def train(work, epoch_done):
    import mxloop
    from mxloop import mx

    symbol = twins.symbol(mx, work.network)
    metric = stock.metric_of(mx, work)

    def end_of_epoch(*_):
        mx.nd.waitall()
        epoch_done(*stock.counted(metric))

    model = mxloop.FeedForward(
        symbol,
        ctx=stock.contexts(mx, work),
        num_epoch=work.epochs,
        numpy_batch_size=work.batch,
        amp=work.amp,
        arg_params=stock.named_initial(mx, work, symbol),
        **stock.SGD,
    )
    data = work.arrays() if work.source == "arrays" else (stock.iterator(mx, work),)
    model.fit(
        *data,
        eval_metric=metric,
        kvstore=work.kvstore,
        batch_end_callback=stock.speedometer(mxloop.callback, work),
        epoch_end_callback=end_of_epoch,
        guard=work.guard,
    )
    return [model.arg_params[name].asnumpy() for name in stock.param_names(symbol)]
