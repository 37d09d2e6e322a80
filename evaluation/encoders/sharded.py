"""Evaluation inside training: every worker encodes a share of the sentences and all get all vectors."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from evaluation.task import Encoder, EvaluationError, Sound, logit_scale_of


class ShardedEncoder:
    """An encoder whose `encode` is a collective: every rank calls it with the same list and gets the same (N, d).

    Without torch.distributed, or with one worker, it is the encoder itself. An error on one rank is raised on all, so
    that no rank waits for one that has given up.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    @property
    def logit_scale(self) -> float | None:
        """That of the encoder; workers in training hold the same."""
        return logit_scale_of(self.encoder)

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        """Vectors (N, d), float32, of N items in their order."""
        world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
        if world == 1:
            return self.encoder.encode(items, modality)
        # Dealt by size, so that the ranks finish together.
        order = np.asarray(sorted(range(len(items)), key=lambda i: -_size(items[i])), dtype=np.int64)
        shares = [order[r::world] for r in range(world)]
        mine = [items[i] for i in shares[dist.get_rank()]]
        failure: Exception | None = None
        vectors = np.zeros((0, 0), dtype=np.float32)
        try:
            if mine:
                vectors = np.asarray(self.encoder.encode(mine, modality), dtype=np.float32)
                if vectors.ndim != 2 or len(vectors) != len(mine):
                    raise EvaluationError(f"encode gave shape {vectors.shape} for {len(mine)} items")
        except Exception as error:
            failure = error
        _raise_on_all(failure, len(items), _fingerprint(items))
        if not items:
            return vectors
        device = _device()
        width = int(torch.stack(_all_gather(torch.tensor([vectors.shape[1]], device=device))).max())
        rows = len(shares[0])  # the first rank's share is never the smaller one
        padded = torch.zeros(rows, width, device=device)
        if mine:
            padded[: len(mine)] = torch.from_numpy(vectors).to(device)
        result = np.empty((len(items), width), dtype=np.float32)
        for share, part in zip(shares, _all_gather(padded), strict=True):
            result[share] = part[: len(share)].cpu().numpy()
        return result


def _raise_on_all(failure: Exception | None, count: int, seen: int) -> None:
    """Raises on every rank when one has failed, or when the ranks were not called with the same list."""
    device = _device()
    text = "" if failure is None else f"{type(failure).__name__}: {failure}"
    message = np.frombuffer(text.encode()[:4096] or (b"" if failure is None else b"error"), dtype=np.uint8)
    status = torch.stack(_all_gather(torch.tensor([len(message), count, seen], device=device))).cpu()
    sizes = status[:, 0]
    if sizes.max() > 0:
        buffer = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
        buffer[: len(message)] = torch.from_numpy(message.copy()).to(device)
        texts = [bytes(part.cpu().numpy())[:n] for part, n in zip(_all_gather(buffer), sizes.tolist(), strict=True)]
        if failure is not None:
            raise failure
        told = "; ".join(f"rank {r}: {t.decode(errors='replace')}" for r, t in enumerate(texts) if t)
        raise EvaluationError(f"evaluation failed on another worker: {told}")
    if len(status[:, 1:].unique(dim=0)) > 1:
        raise EvaluationError(
            f"the workers were asked to encode different lists ({status[:, 1].tolist()} items by rank); in training every "
            "worker must call encode with the same list"
        )


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


def _device() -> torch.device:
    """Where collectives take their tensors: NCCL only from the GPU."""
    if "nccl" in dist.get_backend():
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device("cpu")


def _all_gather(x: Tensor) -> list[Tensor]:
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts
