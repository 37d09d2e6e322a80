"""The progress line and the request to stop, on their way between driver and workers."""

from __future__ import annotations

import time

import pytest

from multicse.trainers.engine.progress import Board

LINE = {"step": 3, "steps": 3, "train/text": 0.5, "time/samples_per_second": 10.0, "left": 0.0}


@pytest.mark.usefixtures("local_ray")
def test_a_board_takes_lines_to_the_driver_and_the_request_to_stop_to_workers(capsys: pytest.CaptureFixture[str]) -> None:
    import ray

    board = Board()

    @ray.remote(num_cpus=0)
    def work() -> None:
        board.put(LINE)
        while not board.stopping():
            time.sleep(0.1)

    with board.shown():
        worker = work.remote()
        while board.get() is None:
            time.sleep(0.1)
        assert not board.stopping()
        board.stop()
        ray.get(worker, timeout=30)
    assert "step 3/3  text 0.5" in capsys.readouterr().out
    assert board.get() is None and not board.stopping()
