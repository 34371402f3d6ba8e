"""The short form of kill_runs.py: a few kills, most of them inside a save."""

import kill_runs


def test_a_killed_run_resumes_and_ends_as_the_one_never_killed():
    counts = kill_runs.kill(3, seed=1, epochs=6)
    assert counts["kills"] == 3 and counts["inside_a_save"] > 0
    assert counts["unloadable"] == counts["lost_more"] == counts["differ"] == 0
