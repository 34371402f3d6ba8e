"""One peer a file: `train(work, epoch_done)` trains, and returns the trained parameters in order.

After each epoch, once its work is done, it calls ``epoch_done(samples, metric)`` with the samples
that were counted and the metric's value. That call returns when the next epoch shall begin, so the
peers can take turns.
"""
