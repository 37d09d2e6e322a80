"""The generators that `np.random.default_rng` gives, of many seeds at a time.

Numpy hashes a seed in 13 µs, most of it Python's; a flip of a small picture takes 6. The hash is that of `SeedSequence`,
which numpy keeps across versions, in arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_POOL = 4  # words of 32 bits
_MASK = 2**32 - 1


def generators(seeds: Sequence[int]) -> Iterator[np.random.Generator]:
    """``np.random.default_rng(seed)`` for every seed, from 0 to 2**64 - 1."""
    for state in _states(np.array(seeds, np.uint64)):
        bits = np.random.PCG64(_Hashed(state))  # type: ignore[arg-type]  # takes any ISeedSequence, its annotation does not
        yield np.random.Generator(bits)


class _Hashed(np.random.bit_generator.ISeedSequence):
    """Stands for a `SeedSequence` whose hash is known."""

    def __init__(self, state: np.ndarray) -> None:
        self._state = state

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray:
        assert (n_words, dtype) == (len(self._state), self._state.dtype)  # what PCG64 asks for
        return self._state


def _states(seeds: np.ndarray) -> np.ndarray:
    """``SeedSequence(seed).generate_state(4, np.uint64)`` of every seed (N,): (N, 4)."""
    words = seeds.astype("<u8").view("<u4").reshape(-1, 2).T
    pool = [*words, *np.zeros((_POOL - 2, len(seeds)), np.uint32)]
    constant = 0x43B0D7E5

    def hashed(word: np.ndarray, factor: int) -> np.ndarray:
        nonlocal constant
        word = word ^ constant
        constant = constant * factor & _MASK
        return _folded(word * constant)

    pool = [hashed(word, 0x931E8875) for word in pool]
    for source in range(_POOL):
        for target in (other for other in range(_POOL) if other != source):
            pool[target] = _folded(pool[target] * 0xCA01F9DD - hashed(pool[source], 0x931E8875) * 0x4973F715)
    constant = 0x8B51F9DD
    state = [hashed(word, 0x58F38DED) for word in (*pool, *pool)]
    return np.stack(state, axis=1).astype("<u4").view("<u8").astype(np.uint64)


def _folded(word: np.ndarray) -> np.ndarray:
    return word ^ (word >> 16)
