"""Evaluation inside training: every worker encodes a share of the sentences and all get all vectors."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch.distributed as dist

from multicse.evaluation.task import Encoder, EvaluationError, Sound


class ShardedEncoder:
    """An encoder whose `encode` is a collective: every rank calls it with the same list and gets the same (N, d).

    Without torch.distributed, or with one worker, it is the encoder itself. An error on one rank is raised on all, so
    that no rank waits for one that has given up. Every rank encodes within `ready()`, as often as it likes.
    """

    def __init__(self, encoder: Encoder, ready: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self.encoder, self.ready = encoder, ready

    @property
    def logit_scale(self) -> float | None:
        """That of the encoder; workers in training hold the same."""
        return getattr(self.encoder, "logit_scale", None)

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Vectors (N, d), float32, of N items in their order."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if world == 1:
            return self.encoder.encode(items, modality)
        # Dealt by size, so that the ranks finish together.
        order = np.asarray(sorted(range(len(items)), key=lambda i: -_size(items[i])), dtype=np.int64)
        mine = [items[i] for i in order[dist.get_rank() :: world]]
        failure: Exception | None = None
        vectors = np.zeros((0, 0), dtype=np.float32)
        try:
            with self.ready():
                if mine:
                    vectors = np.asarray(self.encoder.encode(mine, modality), dtype=np.float32)
            if mine and (vectors.ndim != 2 or len(vectors) != len(mine)):
                raise EvaluationError(f"encode gave shape {vectors.shape} for {len(mine)} items")
        except Exception as error:
            failure = error
        told = "" if failure is None else f"{type(failure).__name__}: {failure}"
        ranks: list[Any] = [None] * world
        dist.all_gather_object(ranks, (told, len(items), _fingerprint(items), vectors))
        if failure is not None:
            raise failure
        if failures := "; ".join(f"rank {rank}: {text}" for rank, (text, *_) in enumerate(ranks) if text):
            raise EvaluationError(f"evaluation failed on another worker: {failures}")
        if len({(count, seen) for _, count, seen, _ in ranks}) > 1:
            counts = [count for _, count, _, _ in ranks]
            raise EvaluationError(
                f"the workers were asked to encode different lists ({counts} items by rank); in training every worker must "
                "call encode with the same list"
            )
        result = np.empty((len(items), ranks[0][3].shape[1]), dtype=np.float32)  # the first rank's share is never empty
        for rank, (*_, part) in enumerate(ranks):
            if len(part):
                result[order[rank::world]] = part
        return result


def _size(item: Any) -> int:
    """Characters of a text, values of a picture, samples of a sound."""
    if isinstance(item, Sound):
        return len(item.samples)
    return item.size if isinstance(item, np.ndarray) else len(item)


def _fingerprint(items: list[Any]) -> int:
    """Equal for equal lists; of long ones only the first and the last item are looked at."""
    value = 0
    for item in (items[0], items[-1]) if items else ():
        value = zlib.crc32(_content(item), value)
    return value


def _content(item: Any) -> bytes:
    if isinstance(item, Sound):
        return f"{item.rate}\0".encode() + np.ascontiguousarray(item.samples).tobytes()
    if isinstance(item, np.ndarray):
        return f"{item.shape}\0".encode() + np.ascontiguousarray(item).tobytes()
    return f"{item}\0".encode()
