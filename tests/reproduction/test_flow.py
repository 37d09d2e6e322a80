"""The flow: its density is normalised, and a seed reproduces it."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor

from multicse.reproduction.encoders.flow import Flow, Flowed, fit_flow
from tests.evaluation.evaluation_helpers import Bag, sentence


def skewed(n: int, size: int, seed: int = 0) -> np.ndarray:
    """Return correlated, non-normal points (n, size) with different scales and means."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, size)) @ rng.standard_normal((size, size))
    x[:, 0] = x[:, 1] ** 2
    return x * np.geomspace(0.01, 20, size) + 3


def trained(size: int) -> tuple[Flow, Tensor]:
    """Return a flow with couplings that are not the identity, and points, in double precision."""
    x = skewed(300, size)
    return fit_flow(x).double(), torch.from_numpy(x[:20])


@pytest.mark.parametrize("size", [2, 7])
def test_log_determinant_by_the_jacobian(size: int) -> None:
    model, x = trained(size)
    for row in x[:3]:
        jacobian = torch.autograd.functional.jacobian(lambda r: model(r[None])[0], row)
        prior = torch.distributions.Normal(0, 1).log_prob(model(row[None])[0]).sum()
        torch.testing.assert_close(model.log_prob(row[None])[0], prior + torch.linalg.slogdet(jacobian).logabsdet)


def test_a_seed_repeats_it_and_leaves_the_generator_alone() -> None:
    rng = random.Random(0)
    items = [sentence(rng) for _ in range(100)]
    torch.manual_seed(5)
    want = torch.rand(3)
    torch.manual_seed(5)
    first, again, other = (Flowed(Bag(), items, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(torch.rand(3), want)
    np.testing.assert_array_equal(first.encode(items), again.encode(items))
    assert np.abs(first.encode(items) - other.encode(items)).max() > 0.01
    assert first.encode(items).dtype == np.float32
    alone = np.concatenate([first.encode([text]) for text in [*items[:5], "a dog"]])
    np.testing.assert_allclose(first.encode([*items[:5], "a dog"]), alone, atol=1e-5)
    assert first.protocol["post_processing"] == "flow"
    assert first.protocol["fitted_on"]["seed"] == 0


def test_it_starts_with_outputs_of_mean_0_and_variance_1() -> None:
    x = torch.from_numpy(skewed(300, 7))
    model = Flow(7).double()
    model.start_from(x)
    z = model(x).detach()
    torch.testing.assert_close(z.mean(0), torch.zeros_like(z[0]), atol=1e-9, rtol=0)
    torch.testing.assert_close(z.var(0, correction=0), torch.ones_like(z[0]))
