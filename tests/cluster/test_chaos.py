"""Four runs of the chaos benchmark: in process and through Ray, with checkpoints on the disk and in a store."""

from __future__ import annotations

import pytest

from benchmarks import chaos


@pytest.mark.cluster
@pytest.mark.timeout(3600)
def test_what_dies_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("moto.server", reason="moto[server] is not installed (pip install -e '.[test]')")
    # In process: the driver; both signals, one within a checkpoint. One worker: everything, and the disk. Two: a worker
    # within a checkpoint, then the raylet.
    code = chaos.main(numbers=(0, 3, 10, 14), patience=8)
    said = capsys.readouterr().out
    assert code == 0 and said.splitlines()[-1].startswith("4 of 4"), said
