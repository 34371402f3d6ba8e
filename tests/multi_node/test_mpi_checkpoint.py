"""Checkpoints of several ranks."""

import pytest
from ranks import Checks, check_names, needs_mpi

ON = {2: Checks("checkpoints", 2), 3: Checks("checkpoints", 3)}


@needs_mpi
@pytest.mark.parametrize("size", [2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", check_names("checkpoints"))
def test_ranks_go_on_together(name, size):
    ON[size].outcome(name)
