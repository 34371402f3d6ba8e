"""MXNet: mod.Module.fit."""

import stock
import twins


def train(work, epoch_done):
    mx = stock.import_mxnet()
    symbol = twins.symbol(mx, work.network)
    metric = stock.metric_of(mx, work)
    learned = {}

    def end_of_epoch(epoch, network, arg_params, aux_params):
        mx.nd.waitall()
        learned.update(arg_params)
        epoch_done(*stock.counted(metric))

    mx.mod.Module(symbol, context=stock.contexts(mx, work)).fit(
        stock.iterator(mx, work),
        num_epoch=work.epochs,
        eval_metric=metric,
        kvstore=work.kvstore,
        optimizer="sgd",
        optimizer_params=stock.SGD,
        arg_params=stock.named_initial(mx, work, symbol),
        initializer=mx.init.Uniform(0.01),
        allow_missing=True,
        batch_end_callback=stock.speedometer(mx.callback, work),
        epoch_end_callback=end_of_epoch,
    )
    return [learned[name].asnumpy() for name in stock.param_names(symbol)]
