"""Several ranks at one terminal."""

import logging
import os
import sys


def let_first_speak(rank):
    """Let only rank 0 print and log; errors of all ranks go to stderr as ever."""
    if rank:
        logging.disable(logging.INFO)
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 (open to the end)
