"""Three runs of the chaos benchmark: in process and through Ray, with checkpoints on disk and in a remote store."""

from __future__ import annotations

import pytest

from benchmarks import chaos


@pytest.mark.cluster
@pytest.mark.timeout(3600)
def test_killed_runs_resume(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
    # In process: both signals, one during a checkpoint (test_nothing_lost.py kills it before and after every write). One
    # worker: the raylet during a checkpoint. Two workers: everything, and the run continues with one. (test_nodes.py and
    # test_reading_nodes.py kill one node of two.)
    code = chaos.main(numbers=(3, 35, 43), patience=8)
    output = capsys.readouterr().out
    assert code == 0 and output.splitlines()[-1].startswith("3 of 3"), output
