"""A stream, or another rank, that keeps a rank waiting is named, and in the end nobody waits for it any longer."""

from __future__ import annotations

import itertools
import logging
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from multicse.trainers.engine.checkpoint import Store
from multicse.trainers.engine.hosts import LocalHost
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.stop import Watchdog
from multicse.trainers.method import Method
from multicse.trainers.recipe import Recipe


class Reader:
    waiting_since: float | None = None


def test_who_waits_for_what(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that a look at it moves on, as a busy machine's does not wait for ours."""
    clock = SimpleNamespace(perf_counter=itertools.count(0, 1 / 16).__next__)
    monkeypatch.setattr("multicse.trainers.engine.stop.time", clock)
    readers: Any = {"text": Reader(), "image": Reader()}
    readers["image"].waiting_since, gave_up = 0.0, threading.Event()
    with Watchdog(readers, rank=3, limit=1.0, give_up=gave_up.set) as watchdog, watchdog.step(7):
        assert gave_up.wait(600)
    warnings = [record.getMessage() for record in caplog.records]
    assert 4 <= len(warnings) <= 5 and all("rank 3" in line and "'image'" in line for line in warnings)
    assert "run.step_timeout" in warnings[0] and "the same command goes on" in warnings[-1].lower()


WAITS = re.compile(r"rank 0 has waited \d+ s: step 1 does not end, in all_reduce \(.*run\.step_timeout")


def _rank(rank: int, recipe: str, folder: str) -> None:
    """One of two processes; the second falls asleep in step 1, until the first says that it waits."""
    said = Path(folder) / "rank-0.log"
    if rank == 0:
        logging.basicConfig(filename=said)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

    def sleeps(method: Method, done: int) -> None:
        while rank == 1 and done == 2 and not WAITS.search(said.read_text()):
            time.sleep(0.05)

    pytest.MonkeyPatch().setattr(Method, "after_step", sleeps)  # in this process alone
    host = LocalHost(Store(f"{folder}/checkpoint-{rank}"))
    host.rank, host.world_size = rank, 2
    assert Engine(Recipe.from_json(recipe), host, None).run()["steps"] == 3
    dist.destroy_process_group()


def test_a_rank_that_waits_for_another_names_step_and_collective(recipe: Recipe, tmp_path: Path) -> None:
    none = recipe.replace("evaluation.select", None).replace("evaluation.final", ()).replace("run.max_steps", 3)
    mp.spawn(_rank, args=(none.replace("run.step_timeout", 20.0).to_json(), str(tmp_path)), nprocs=2)
    assert WAITS.search((tmp_path / "rank-0.log").read_text())
