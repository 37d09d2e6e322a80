"""Progress lines and stop requests between driver and workers, and process priorities."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from multicse.trainers.engine.cluster import in_background, to_foreground
from multicse.trainers.engine.progress import Board

LINE = {"step": 3, "steps": 3, "train/text": 0.5, "time/samples_per_second": 10.0, "left": 0.0}
POLICY = [sys.executable, "-c", "import os; print(os.sched_getscheduler(0))"]


@pytest.mark.usefixtures("local_ray")
def test_a_board_carries_lines_and_stop_requests() -> None:
    import ray

    board = Board()

    @ray.remote(num_cpus=0)
    def work() -> None:
        board.put(LINE)
        while not board.stopping():
            time.sleep(0.1)

    worker = work.remote()
    while (line := board.get()) is None:
        time.sleep(0.1)
    assert line == LINE and not board.stopping()
    board.stop()
    ray.get(worker, timeout=30)
    board.clear()
    assert board.get() is None and not board.stopping()


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="SCHED_BATCH exists on Linux only")
def test_child_processes_inherit_the_background_policy() -> None:
    before = os.sched_getscheduler(0)
    with in_background():
        child = int(subprocess.run(POLICY, capture_output=True, check=True).stdout)
        to_foreground()
        training = os.sched_getscheduler(0)
    assert (child, training, os.sched_getscheduler(0)) == (os.SCHED_BATCH, os.SCHED_OTHER, before)
