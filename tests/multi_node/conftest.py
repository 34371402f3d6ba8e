"""The helpers of tests/ serve here too."""

import sys
from pathlib import Path

sys.path[:0] = [str(folder) for folder in list(Path(__file__).resolve().parents)[:2]]
