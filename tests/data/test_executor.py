"""Reading through Ray Data: read-ahead, cost while it waits, and recovery after it dies."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import ray.cloudpickle

from multicse.data import executor
from multicse.data.order import tasks
from multicse.data.shards import RawSample
from multicse.data.stream import Reader
from multicse.data.streams.text import TextStream
from tests.data.packing import lengths, reader
from tests.worlds import write_text


class CountedText(TextStream):
    """A text stream that appends its process to a file for every row that it reads, in `seconds`."""

    count: str
    seconds: float = 0.0

    def row(self, sample: RawSample, rng: np.random.Generator) -> dict[str, Any]:
        with open(self.count, "a") as file:
            file.write(f"{os.getpid():9}\n")
        time.sleep(self.seconds)
        return super().row(sample, rng)


ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import this file


def make(config: TextStream, **more: Any) -> Reader:
    return reader(config, lengths, **{"batches": 400, "inline": False, **more})


def actor_process() -> psutil.Process:
    pid = ray.get(executor._shared._actor.__ray_call__.remote(lambda _: os.getpid()))
    return psutil.Process(pid)


def steady_count(path: Path, least: int = 0) -> int:
    """Lines of a file once it has not grown for two seconds; for less than `least` lines it waits a minute."""
    size, start = -1, time.monotonic()
    since = start
    while time.monotonic() - since < 2 or (size // 10 < least and time.monotonic() - start < 60):
        if path.exists() and path.stat().st_size != size:
            size, since = path.stat().st_size, time.monotonic()
        time.sleep(0.1)
    return size // 10


@pytest.mark.usefixtures("local_ray")
def test_readers_that_are_ahead_stop_and_cost_next_to_nothing(tmp_path: Path) -> None:
    shards = write_text(tmp_path, (300, 300))
    config = CountedText(shards=shards, batch_size=10, window=20, read_ahead=3, count=str(tmp_path / "count"))
    stream = make(config)  # 4,000 samples: 200 windows
    next(stream)
    read = steady_count(tmp_path / "count", least=20 * 3)
    # The read-ahead, the window that the trainer is at, and one each in the hands of the actor and of the reader's thread.
    assert 20 * 3 <= read <= 20 * (3 + 3)
    process = actor_process()
    before = sum(process.cpu_times()[:2])
    time.sleep(5)
    assert sum(process.cpu_times()[:2]) - before < 5 * 0.05  # Ray's own threads of any process included
    for _ in range(20):
        next(stream)
    assert steady_count(tmp_path / "count", least=read + 20 * 8) - read >= 20 * 8  # it reads again when windows are taken
    stream.close()


@pytest.mark.usefixtures("local_ray")
def test_a_closed_stream_is_not_read_to_its_end(tmp_path: Path) -> None:
    count = tmp_path / "count"
    config = CountedText(shards=write_text(tmp_path, (300,)), batch_size=10, window=20, read_ahead=3, count=str(count))
    with executor.started():  # the actor lives on
        stream = make(config)
        next(stream)
        stream.close()
        assert steady_count(count) <= 20 * (3 + 5)  # of 4,000


@pytest.mark.usefixtures("local_ray")
def test_more_tasks_read_while_the_trainer_waits(tmp_path: Path) -> None:
    count = tmp_path / "count"
    config = CountedText(shards=write_text(tmp_path, (300,)), batch_size=10, window=20, count=str(count), seconds=0.02)
    stream, end = make(config), time.monotonic() + 60
    while len(set(count.read_text().split()) if count.exists() else ()) < 2 and time.monotonic() < end:
        next(stream)
    stream.close()
    assert time.monotonic() < end, "one process read everything, though training waited for it"


@pytest.mark.usefixtures("local_ray")
def test_the_actor_keeps_blocks_until_they_are_fetched(tmp_path: Path) -> None:
    """Ray may delete a block whose reference is between two processes (ray#58080): 130 of 22,663 in a bare loop."""
    stream = make(TextStream(shards=write_text(tmp_path, (64,)), batch_size=4, window=4), batches=12)
    plan = list(itertools.islice(tasks({0: stream._windows(0, 0)}, 4, Counter()), 12))
    keeper, sent = executor.Executor(), list[str]()
    for (reference,) in keeper.blocks("plan", stream._reader, plan, executor.Limits(0.1, 3, 2, 0.1)):
        sent.append(reference.hex())
        assert [kept.hex() for kept in keeper._sent["plan"]] == sent[-2:]
    assert len(sent) == 12 and len(keeper._sent["plan"]) == 2
    keeper.stop("plan")
    assert not keeper._sent


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize("lost", ["actor", "block"])
def test_what_is_lost_is_read_again(lost: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TextStream(shards=write_text(tmp_path, (50, 30)), batch_size=8, window=16)
    through_ray, inline = make(config, batches=60), make(config, batches=60, inline=True)
    get, count = ray.get, itertools.count()

    def lossy(references: Any) -> Any:
        if next(count) == 11:
            raise ray.exceptions.ReferenceCountingAssertionError(references.hex(), "", "")
        return get(references)

    if lost == "block":
        monkeypatch.setattr(ray, "get", lossy)
    for step in range(60):
        if lost == "actor" and step in (3, 30):
            actor_process().send_signal(signal.SIGKILL)
        one, other = next(through_ray), next(inline)
        assert one.keys == other.keys and through_ray.position == inline.position
    assert lost == "actor" or next(count) > 12
    through_ray.close()
    inline.close()
