"""Generators of many seeds."""

from __future__ import annotations

import numpy as np

from multicse.data.generators import generators


def test_they_are_those_of_numpy() -> None:
    seeds = [0, 1, 2**32 - 1, 2**32, 2**64 - 1, *np.random.default_rng(0).integers(2**63, size=50).tolist()]
    for seed, found in zip(seeds, generators(seeds), strict=True):
        assert found.bit_generator.state == np.random.default_rng(seed).bit_generator.state
    assert not list(generators([]))
