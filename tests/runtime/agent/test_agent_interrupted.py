"""Ranks that leave with exit code 75 ask to go on: nobody is ended for it, nothing has failed."""

from __future__ import annotations

import sys

from agent_rig import Rig

SLOW = """
    import os, pathlib, sys, time
    if os.environ["RANK"] == "1":
        time.sleep(0.5)  # its part takes longer
        pathlib.Path("part-1").write_text("saved")
    sys.exit(75)
"""


def test_the_other_ranks_finish_their_saves(rig: Rig, mode: str) -> None:
    done = rig.ranks(mode, 2, sys.executable, rig.script(SLOW))
    assert (rig.folder / "part-1").exists(), done.stderr
    assert done.returncode == 0, "launchers would end the ranks of other nodes"
    assert (rig.attempt / "interrupted").read_text() == "it left with exit code 75\n"
    assert not (rig.attempt / "failures").exists()
    assert "first error" not in done.stderr


def test_without_an_attempt_the_code_is_all_there_is(rig: Rig) -> None:
    del rig.env["ALLRANKS_ATTEMPT_DIR"]
    done = rig.ranks("exec", 2, sys.executable, rig.script(SLOW))
    assert done.returncode == 75
    assert (rig.folder / "part-1").exists()


def test_a_rank_that_fails_while_others_leave_has_failed(rig: Rig) -> None:
    path = rig.script("""
        import os, sys, time
        time.sleep(0.3 * int(os.environ["RANK"]))
        sys.exit((75, 7)[int(os.environ["RANK"])])
    """)
    done = rig.ranks("exec", 2, sys.executable, path)
    assert done.returncode == 7
    assert not (rig.attempt / "interrupted").exists()
    assert "first error: rank 1" in done.stderr


def test_a_failure_on_another_node_takes_the_note_back(rig: Rig) -> None:
    """Two agents with one rank each, as srun starts them."""
    path = rig.script("import os, sys\nsys.exit((75, 7)[int(os.environ['RANK'])])")
    for rank, code in ((0, 0), (1, 7), (0, 75)):
        place = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
        done = rig.run("rank", "--", sys.executable, path, **place)
        assert done.returncode == code, done.stderr
        assert (rig.attempt / "interrupted").exists() == (code == 0)
