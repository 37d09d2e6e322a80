"""A run of the chaos benchmark through Ray, with checkpoints in a remote store."""

from __future__ import annotations

import pytest

from benchmarks import chaos


@pytest.mark.cluster
@pytest.mark.timeout(3600)
def test_killed_runs_resume(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
    # Everything is killed, and the run continues with one of two workers. (In process, test_nothing_lost.py kills a run
    # before and after every write, test_output.py sends signals. test_nodes.py and test_reading_nodes.py kill a node.)
    code = chaos.main(numbers=(35,), patience=8)
    output = capsys.readouterr().out
    assert code == 0 and output.splitlines()[-1].startswith("1 of 1"), output
