"""Shared state of ranks: counts of skipped samples, and one download of a checkpoint per node."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from multicse.trainers.engine import hosts
from multicse.trainers.engine.hosts import Host, RayHost
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.store import NODE_FOLDER, Store
from multicse.trainers.recipe import Recipe
from tests.worlds import Memory, in_processes, text_only, write_tar


def _rank(rank: int, folder: str, recipe: Recipe) -> list[Any]:
    """Run one of two processes twice; the second run resumes after the last step."""
    log: Any = Memory()
    found = []
    for _ in range(2):
        engine = Engine(recipe, Host(Store(f"{folder}/checkpoint")), None if rank else log)
        result = engine.train()
        own = engine.streams.skips["text"]
        found.append({"own": own, "total": result["skips"]["text"], "listed": result["skipped"]["text"]})
    return [*found, log.values.get(3)]


def test_skipped_samples_are_counted_on_every_rank_and_listed_on_one(recipe: Recipe, tmp_path: Path) -> None:
    texts = ((f"{i:04d}.txt", b"" if i % 4 == 0 else b"a cat sees %d dogs" % i) for i in range(80))
    shards = write_tar(tmp_path / "text" / "text-000000.tar", texts)
    changes: dict[str, Any] = {"evaluation.select": None, "evaluation.final": (), "run.max_steps": 3}
    changes |= {
        f"streams.text.{k}": v for k, v in {"shards": shards, "on_bad_sample": "skip", "max_skipped_share": 0.9}.items()
    }
    first, second = in_processes(_rank, tmp_path, text_only(recipe).changed(changes))
    total = first[0]["own"] + second[0]["own"]
    assert min(first[0]["own"], second[0]["own"]) > 0
    assert first[0]["total"] == second[0]["total"] == first[2]["data/text/skipped"] == total
    assert len(first[0]["listed"]) == first[0]["own"] and second[0]["listed"] == []
    assert first[1]["total"] == total and first[1]["listed"] == first[0]["listed"], "resumed"


def test_a_remote_checkpoint_is_downloaded_once_per_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four threads are the ranks on two nodes."""

    def write(folder: Path) -> None:
        (folder / "weights").write_text("all")
        (folder / "recipe.json").write_text("{}")

    place = f"file://{tmp_path}/store"
    Store(place, tmp_path / "driver").save(3, write, wait=True)
    barrier, shared = threading.Barrier(4), list[Any]([None] * 4)

    def gathered(mine: Any, host: RayHost) -> list[Any]:
        shared[host.rank] = mine
        barrier.wait(60)
        everyone = list(shared)
        barrier.wait(60)
        return everyone

    fetched: list[Path] = []
    get = Store.get

    def counted(store: Store, step: int) -> Path:
        fetched.append(store.local)
        return get(store, step)

    monkeypatch.setattr(hosts, "from_all_ranks", gathered)
    monkeypatch.setattr(Store, "get", counted)
    read: list[str] = []

    def rank(number: int) -> None:
        node = number // 2
        host = object.__new__(RayHost)
        host.rank, host.world_size, host._local_rank = number, 4, number % 2
        host.store = Store(place, tmp_path / (f"{NODE_FOLDER}{node}" if node else "first"))
        with host.checkpoint() as folder:
            assert folder is not None
            read.append((folder / "weights").read_text())

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert read == ["all"] * 4 and sorted(fetched) == [tmp_path / "first", tmp_path / "node-1"]
    assert not [*tmp_path.glob("*/step-*/weights")][1:], "downloads are removed afterwards"
