"""Two runs of the chaos benchmark through Ray, with checkpoints on disk and in a remote store."""

from __future__ import annotations

import pytest

from benchmarks import chaos


@pytest.mark.cluster
@pytest.mark.timeout(3600)
def test_killed_runs_resume(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
    # One worker: the raylet during a checkpoint. Two workers: everything, and the run continues with one. (In process,
    # test_nothing_lost.py kills a run before and after every write, test_output.py sends signals. test_nodes.py and
    # test_reading_nodes.py kill one node of two.)
    code = chaos.main(numbers=(35, 43), patience=8)
    output = capsys.readouterr().out
    assert code == 0 and output.splitlines()[-1].startswith("2 of 2"), output
