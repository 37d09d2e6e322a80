"""The worked example of data/order.py has the numbers that a run gives."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

from multicse.data import order
from multicse.data.order import Window
from multicse.data.streams.text import TextStream
from multicse.data.window import Chunk, WindowReader
from tests.data.packing import lengths, reader
from tests.worlds import write_tar

SHARDS, SEED = {"a": 6, "b": 4}, 0


def names(picks: Iterable[tuple[int, int]]) -> str:
    return " ".join(f"{'ab'[shard]}{index}" for shard, index in picks)


def written(windows: Iterable[Window]) -> str:
    """Windows of one segment: a comma separates two of them, a slash two epochs."""
    epochs = groupby(windows, lambda window: window.epoch)
    return " / ".join(", ".join(names(window.sample_indices) for window in epoch) for _, epoch in epochs)


def samples(keys: Iterable[str]) -> str:
    return " ".join(key.partition("/")[2] for key in keys)


def table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Rows with two labels, of which a repeated one is left out."""
    lines, before = [], ("", "")
    for kind, which, content in rows:
        shown = "" if kind == before[0] else kind, "" if (kind, which) == before else which
        lines.append(f"    {shown[0]:9} {shown[1]:8} {content}")
        before = kind, which
    return "\n".join(lines)


def test_the_example_is_what_a_run_reads(tmp_path: Path) -> None:
    """With every version of Python and numpy, so that a run can be resumed with another one."""
    for shard, count in SHARDS.items():
        write_tar(tmp_path / f"{shard}.tar", ((f"{shard}{i}.txt", b"text") for i in range(count)))
    config = TextStream(shards=str(tmp_path), batch_size=4, window=8, segments=8)
    tasks: list[list[list[Window]]] = [[], []]
    blocks, batches, read = [list[Chunk](), list[Chunk]()], [list[str]() for _ in range(6)], WindowReader.chunks
    positions: list[str] = []
    for rank in (0, 1):

        def chunks(self: WindowReader, task: list[Window], block_bytes: int, rank: int = rank) -> Iterator[Chunk]:
            if not tasks[rank]:
                blocks[rank] = list(read(self, task))
            tasks[rank].append(task)
            return read(self, task, block_bytes)

        with patch.object(WindowReader, "chunks", chunks):
            stream = reader(config, lengths, name="text", seed=SEED, rank=rank, world_size=2)
            for parts in batches:
                parts.append(samples(next(stream).keys))
                positions.append(" ".join(str(at) for at in stream.position.values()))
            stream.close()
    windows: dict[int, list[Window]] = {}
    for window in (window for rank in tasks for task in rank for window in task if window.epoch < 2):
        windows.setdefault(window.segment, []).append(window)
    shards = order.permutation(2, order.seed_of(SEED, "text", "shards")).tolist()
    rows = [("shards", "ab"[shard], names((shard, index) for index in range(SHARDS["ab"[shard]]))) for shard in shards]
    for segment, plan in windows.items():
        own = sorted({p for w in plan for p in w.sample_indices}, key=lambda pick: (shards.index(pick[0]), pick[1]))
        rows.append(("segments", str(segment), names(own)))
    rows += [("windows", str(segment), written(plan)) for segment, plan in windows.items()]
    for rank in (0, 1):
        by_segment = groupby(tasks[rank][0], lambda window: window.segment)
        rows += [("task 0", f"rank {rank}", f"segment {segment}: {written(plan)}") for segment, plan in by_segment]
    rows += [("block 0", f"rank {rank}", samples(blocks[rank][0].columns["_key"].tolist())) for rank in (0, 1)]
    rows += [("batches", str(number), "   ".join(parts)) for number, parts in enumerate(batches[:4])]
    rows.append(("position", "after 2", "   ".join(positions[2 :: len(batches)])))
    assert table(rows) in (order.__doc__ or ""), table(rows)
