"""Lines for the person at the terminal, whether or not logging was configured."""

import logging

ROOT = "mxloop"


def say(logger: logging.Logger, text: str) -> None:
    """Log a line at level INFO; print it where no logging has been configured to show it.

    Where somebody has set a level on the ``mxloop`` logger, as to be left in peace
    (``logging.getLogger('mxloop').setLevel(logging.WARNING)``), that is obeyed.
    """
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info(text)
    elif logging.getLogger(ROOT).level == logging.NOTSET and logger.level == logging.NOTSET:
        print(text, flush=True)
