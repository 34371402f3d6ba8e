"""The network in a table, when a training begins."""

import logging
from typing import Optional

from mxloop.batch import as_descs
from mxloop.callback.base import Callback, State
from mxloop.log import say
from mxloop.summary import Summary, summarize

logger = logging.getLogger(__name__)


class ModelSummary(Callback):
    """Show the layers, their output shapes, parameters and operations before the first batch.

    Attributes
    ----------
    summary : Summary or None
    """

    summary: Optional[Summary] = None

    def on_train_begin(self, state: State) -> None:
        """Show the table."""
        described = as_descs(state.train_data.provide_data)
        shapes = {desc.name: tuple(desc.shape) for desc in described}
        self.summary = summarize(state.manager.symbol, shapes)
        say(logger, str(self.summary))
