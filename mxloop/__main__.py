"""``python -m mxloop COMMAND``; installed, the command is ``mxloop``."""

import sys

from mxloop.cli import main

if __name__ == "__main__":
    sys.exit(main())
