"""From a window of the order to decoded rows. Runs in Ray's reading tasks, so it imports no torch (seconds per process)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from data.errors import DataError
from data.order import Window, seed_of
from data.shards import BadSample, RawSample, ShardSet, read
from data.streams.base import Row, StreamConfig

Skipped = tuple[str, str]  # key and reason

BLOCK_ROWS = 128  # rows that travel together: small enough to stream, large enough that Ray's cost per block does not show


def decoded(window: Window, shards: ShardSet, config: StreamConfig, name: str, seed: int) -> Iterator[Row | Skipped]:
    """Every pick of a window in its order: a decoded row, or (key, reason) of a bad sample under ``on_bad_sample="skip"``.

    Raises DataError for a bad sample under "raise".
    """
    by_shard: dict[int, list[tuple[int, int]]] = {}
    for place, (shard, index) in enumerate(window.picks):
        by_shard.setdefault(int(shard), []).append((int(index), place))
    raw: list[Any] = [None] * len(window)
    for shard, wanted in by_shard.items():
        wanted.sort()
        found = read(shards.shards[shard], [index for index, _ in wanted])
        for (_, place), sample in zip(wanted, found, strict=True):
            raw[place] = sample
    for place, sample in enumerate(raw):
        raw[place] = None  # decoded pictures are large, and so is what is still encoded
        label = f"{sample.shard}/{sample.key}"
        try:
            if isinstance(sample, BadSample):
                raise DataError(sample.reason)
            rng = np.random.default_rng(seed_of(seed, name, window.pass_, sample.shard, sample.key))
            row = _row(config, sample, shards, rng) | {"_key": label, "_next": window.start + place + 1}
        except DataError as error:
            if config.on_bad_sample == "raise":
                raise DataError(
                    f"stream {name!r}, sample {label}: {error}. Repair or remove the sample, or set "
                    f"streams.{name}.on_bad_sample to 'skip' to leave out and count such samples."
                ) from error
            yield label, str(error)
            continue
        yield row


def _row(config: StreamConfig, sample: RawSample, shards: ShardSet, rng: np.random.Generator) -> Row:
    """One row, of the sample alone or mixed with another of the whole set."""
    number = config.partner(shards.samples, rng)
    if number is None:
        return config.row(sample, rng)
    other = shards.sample(number)
    if isinstance(other, BadSample):
        raise DataError(f"its partner {other.shard}/{other.key}: {other.reason}")
    return config.mixed(sample, other, rng)


def window_rows(window: Window, shards: ShardSet, config: StreamConfig, name: str, seed: int) -> Iterator[Row]:
    """The good rows of a window. What was skipped is written into ``_skipped`` of the next good row (of the last one at
    the end), so that it travels with the data and is counted once; ``_next`` is the ordinal after it.
    """
    skipped: list[Skipped] = []
    pending: Row | None = None
    for item in decoded(window, shards, config, name, seed):
        if isinstance(item, tuple):
            skipped.append(item)
            continue
        if pending is not None:
            yield pending
        pending, skipped = item | {"_skipped": json.dumps(skipped) if skipped else ""}, []
    if pending is None:
        return  # the reader sees the gap
    if skipped:
        earlier = json.loads(pending["_skipped"]) if pending["_skipped"] else []
        pending |= {"_skipped": json.dumps([*earlier, *skipped]), "_next": window.start + len(window)}
    yield pending


def _columns(rows: list[Row]) -> dict[str, Any]:
    return {
        name: np.stack([row[name] for row in rows])
        if isinstance(rows[0][name], np.ndarray)
        else np.array([row[name] for row in rows])
        for name in rows[0]
    }


def column_chunks(rows: Iterable[Row], size: int) -> Iterator[dict[str, Any]]:
    chunk: list[Row] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == size:
            yield _columns(chunk)
            chunk = []
    if chunk:
        yield _columns(chunk)
