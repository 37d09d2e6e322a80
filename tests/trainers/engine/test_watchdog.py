"""The watchdog names the stream or step for which a rank waits, and finally ends the process."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.stop import Watchdog
from multicse.trainers.engine.store import Store
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe
from tests.worlds import in_processes


def test_a_stream_is_named_and_the_process_ends(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> None:
    since = {"text": None, "image": 0.0}
    readers: Any = {name: SimpleNamespace(waiting_since=seconds, position=0) for name, seconds in since.items()}
    gave_up = threading.Event()
    with Watchdog(readers, rank=3, limit=1.0, give_up=gave_up.set) as watchdog, watchdog.step(7):
        assert gave_up.wait(600)
    *warnings, end = [record.getMessage() for record in caplog.records]
    assert 1 <= len(warnings) <= 2 and "Run the same command again" in end
    for line in warnings:
        assert all(part in line for part in ("Rank 3 has been in step 7", "'image'", "run.step_timeout"))
        assert "'text'" not in line
    assert "test_a_stream_is_named" in capfd.readouterr().err  # the stack of the thread


WAITS = "Rank 0 has been in step 1 for"


def _rank(rank: int, folder: str, recipe: Recipe) -> None:
    """Run one of two processes; the second sleeps in step 1 until the first logs that it waits."""
    log_file = Path(folder) / "rank-0.log"
    if rank == 0:
        logging.basicConfig(filename=log_file)

    def sleeps(method: Method, done: int) -> None:
        while rank == 1 and done == 2 and WAITS not in log_file.read_text():
            time.sleep(0.05)

    pytest.MonkeyPatch().setattr(Method, "after_step", sleeps)  # only in this process
    assert Engine(recipe, Host(Store(f"{folder}/checkpoint-{rank}")), None).train()["steps"] == 3


def test_a_rank_that_waits_for_another_rank_names_its_step(recipe: Recipe, tmp_path: Path) -> None:
    none = recipe.replace("evaluation.select", None).replace("evaluation.final", ()).replace("run.max_steps", 3)
    in_processes(_rank, tmp_path, none.replace("run.step_timeout", 20.0))
    assert WAITS in (tmp_path / "rank-0.log").read_text()
