"""What a checkpoint costs: mxloop.save_checkpoint against mx.nd.save, in turns."""

import os
import tempfile
import time

import report
import rounds

MIB = 8


def run(name, options):
    import mxloop
    from mxloop import mx

    symbol = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=1024, no_bias=True, name="f")
    params = {"f_weight": mx.nd.random.normal(shape=(1024, MIB * 256))}
    params["f_weight"].wait_to_read()
    taken = {"mx.nd.save": [], "mxloop.save_checkpoint": []}
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "net")
        for _ in range(2 * options.rounds + 1):
            begin = time.perf_counter()
            mx.nd.save(os.path.join(folder, "stock.params"), params)
            middle = time.perf_counter()
            mxloop.save_checkpoint(prefix, 1, symbol, params, {})
            taken["mx.nd.save"].append(1000 * (middle - begin))
            taken["mxloop.save_checkpoint"].append(1000 * (time.perf_counter() - middle))
    spreads = {what: rounds.spread(values[1:]) for what, values in taken.items()}
    rows = [(what, *(f"{value:.1f}" for value in spread)) for what, spread in spreads.items()]
    print(report.table([f"{MIB} MiB, milliseconds", "median", "min", "max"], rows))
    return taken
