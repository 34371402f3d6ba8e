"""Run the check_* functions of a file, on every rank alike: run_checks.py FILE"""

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mxloop.multi_node import create_communicator  # noqa: E402


def main():
    communicator = create_communicator(seconds=20)
    found = runpy.run_path(sys.argv[1])
    for name, check in found.items():
        if name.startswith("check_"):
            check(communicator)
            print(f"\nPASSED {name[6:]} on rank {communicator.rank}\n", end="", flush=True)
            communicator.allgather_obj(None)


if __name__ == "__main__":
    main()
