"""Loss functions compared with golden values, which were computed independently in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from multicse.trainers import losses

A = torch.tensor([[1, 0, 0], [0.6, 0.8, 0], [0, 0.6, 0.8], [0, 0, 1]], dtype=torch.float64)
B = torch.tensor([[0.8, 0.6, 0], [0, 1, 0], [0.6, 0, 0.8], [0, 0.8, 0.6]], dtype=torch.float64)
C = torch.tensor([[0, 0, 1], [1, 0, 0], [0, 1, 0], [0.6, 0, 0.8]], dtype=torch.float64)
AB = torch.stack([A, B], dim=1)
LABELS = torch.tensor([7, 3, 7, 5])
P = torch.tensor([[1.0, 2, -1, 0.5], [0.3, -0.4, 2, 1]], dtype=torch.float64)
Z = torch.tensor([[0.5, 1, 1, 1], [-1, 0.2, 0.1, 0.7]], dtype=torch.float64)


@pytest.mark.parametrize(
    ("value", "golden"),
    [
        pytest.param(lambda: losses.simcse(A, B, temperature=0.05), 3.420067, id="simcse"),
        pytest.param(lambda: losses.simcse(A, B, C, 0.05), 5.445073, id="simcse-hard"),
        pytest.param(lambda: losses.simcse(A, B, C, 0.05, math.log(2)), 5.449801, id="simcse-hard-weight-2"),
        pytest.param(lambda: losses.simcse(3 * A, B / 2, temperature=0.05), 3.420067, id="simcse-of-any-length"),
        pytest.param(lambda: losses.info_nce(A, B, 0.07), 2.487157, id="simclr"),
        pytest.param(lambda: losses.supcon_eq4(A, B, LABELS), -0.269702, id="supcon-paper"),
        pytest.param(lambda: losses.supcon_released(A, B, LABELS), 4.772871, id="supcon-released"),
        pytest.param(lambda: losses.supcon(AB, AB, LABELS), 4.416462, id="supcon-khosla"),
        pytest.param(lambda: losses.supcon(3 * AB, AB / 2, LABELS), 4.416462, id="supcon-of-any-length"),
        pytest.param(lambda: losses.supcon(AB, AB, torch.arange(4)), 2.702177, id="nt-xent"),
        pytest.param(lambda: losses.contrastive(A, B, A, B, 1 / 0.07), 2.497642, id="clip"),
        pytest.param(lambda: losses.consistency(A, B, B, A), 0.736, id="c-cyclic"),
        pytest.param(lambda: losses.consistency(A, B, A, B), 0.7168, id="i-cyclic"),
        pytest.param(lambda: losses.long_span(A, B, C, 0.07, torch.ones(4, dtype=torch.bool)), 2.780395, id="mocoutrl-eq6"),
        pytest.param(lambda: losses.nt_xent_with_negatives(AB, AB, C, 0.07), 4.017536, id="mocoutrl-nt-xent"),
        pytest.param(lambda: losses.grouped_cosine(P, Z, 2), -0.126935, id="gclsr-groups"),
        pytest.param(lambda: losses.grouped_cosine(P, Z), -0.313319, id="gclsr"),
    ],
)
def test_golden_values(value: Callable[[], Tensor], golden: float) -> None:
    assert value().item() == pytest.approx(golden, abs=1e-6)


@pytest.fixture(scope="module")
def batches() -> Tensor:
    """Labels of random batches of 48 from the paper's image set: 60 classes of 500."""
    rng = np.random.default_rng(0)
    everything = np.repeat(np.arange(60), 500)
    return torch.from_numpy(np.stack([rng.choice(everything, 48, replace=False) for _ in range(2000)]))


def test_released_supcon_trains_towards_unrelated_images(batches: Tensor) -> None:
    """[errata 2.3] At batch 48 of 60 classes the target is the anchor's own second view in 1 of 48 cases."""
    targets = torch.stack([losses.released_targets(labels) for labels in batches])
    own_view = (targets == torch.arange(48)).double().mean().item()
    same_class = (batches.gather(1, targets) == batches).double().mean().item()
    distinct = (targets.amax(1) + 1).double().mean().item()
    assert own_view == pytest.approx(1 / 48, abs=0.002)
    assert same_class == pytest.approx(0.037, abs=0.003)
    assert distinct == pytest.approx(33.2, abs=0.2)


def test_same_class_images_are_common_in_a_batch(batches: Tensor) -> None:
    """[errata 2.4] 54.6 % of anchors have another image of their class, so a correct SupCon is not SimCLR."""
    partners = (batches[:, :, None] == batches[:, None, :]).sum(2) - 1
    assert (partners > 0).double().mean().item() == pytest.approx(0.546, abs=0.01)
    assert partners.double().mean().item() == pytest.approx(0.78, abs=0.02)

    torch.manual_seed(0)
    image = torch.randn(48, 1, 32, dtype=torch.float64)
    views = image + 0.3 * torch.randn(48, 2, 32, dtype=torch.float64)
    assert losses.supcon(views, views, batches[0]) - losses.supcon(views, views, torch.arange(48)) > 1


def test_supcon_eq4_refuses_a_batch_with_a_single_class() -> None:
    with pytest.raises(ValueError):
        losses.supcon_eq4(A, B, torch.full((4,), 7))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(dtype: torch.dtype) -> None:
    """With autocast and half-precision inputs, the result equals float32 on the rounded inputs."""
    z1, z2 = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    views = torch.stack([z1, z2], dim=1)
    y = torch.arange(16) % 5
    with torch.autocast("cpu", torch.bfloat16):
        half = [losses.simcse(z1, z2), losses.supcon(views, views, y), losses.supcon_eq4(z1, z2, y)]
    z1, z2, views = z1.float(), z2.float(), views.float()
    full = [losses.simcse(z1, z2), losses.supcon(views, views, y), losses.supcon_eq4(z1, z2, y)]
    for a, b in zip(half, full, strict=True):
        assert a.dtype == torch.float32
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def _naive_contrast(
    z: list[Tensor], guides: list[Tensor], margin: float | None, strategy: str, hardness: float, first: int
) -> Tensor:
    """Return the loss of anchors z[0] against z[1] and hard negatives z[2:], with a loop over pairs."""
    found = []
    for i in range(len(z[0])):
        positive = torch.cosine_similarity(guides[0][i], guides[1][first + i], dim=0).item()
        target = torch.cosine_similarity(z[0][i], z[1][first + i], dim=0) / 0.5
        limit = torch.inf
        if margin is not None:
            limit = {"absolute": positive - margin, "relative": positive * (1 - margin)}.get(strategy, margin)
        terms = [target]
        for part, guide in zip(z[1:], guides[1:], strict=True):
            for j in range(len(part)):
                if part is z[1] and j == first + i:
                    continue
                if torch.cosine_similarity(guides[0][i], guide[j], dim=0) <= limit:
                    similarity = torch.cosine_similarity(z[0][i], part[j], dim=0)
                    terms.append(similarity / 0.5 + math.log(math.exp(hardness * similarity.item())))
        found.append(torch.stack(terms).logsumexp(0) - target)
    return torch.stack(found).mean()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize(
    ("margin", "strategy", "hardness"),
    [(0.1, "absolute", 0.0), (0.2, "relative", 0.0), (0.6, "threshold", 1.5), (None, "absolute", 3.0)],
)
def test_false_negatives_and_hardness_equal_a_loop(
    margin: float | None, strategy: losses.MarginStrategy, hardness: float, hard: bool
) -> None:
    """Two of six anchors, with similarities of another model; gradients as well, so weights and masks have none."""
    torch.manual_seed(0)
    z = [torch.randn(rows, 4, dtype=torch.float64) + 1 for rows in (2, 6, 6)[: 3 if hard else 2]]
    guides = [torch.randn(len(part), 5, dtype=torch.float64) + 1 for part in z]
    own, left_out = torch.arange(2) + 3, None
    if margin is not None:
        similarities = losses.cosine_similarity(guides[0], torch.cat(guides[1:]))
        left_out = losses.false_negatives(similarities, own, margin, strategy)
        assert 0 < left_out.sum() < left_out.numel() - 2
    results = []
    for naive in (True, False):
        given = [part.clone().requires_grad_() for part in z]
        if naive:
            loss = _naive_contrast(given, guides, margin, strategy, hardness, 3)
        else:
            loss = losses.simcse(given[0], given[1], given[2] if hard else None, 0.5, 0.0, 3, hardness, left_out)
        results.append((loss, *torch.autograd.grad(loss, given)))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3, 1.0])
def test_products_of_whitened_vectors_are_those_of_the_shrunk_covariance(shrinkage: float) -> None:
    """x S^-1 y, with NumPy's covariance of all rows; only centred if it is shrunk to nothing."""
    torch.manual_seed(0)
    z = torch.randn(40, 5, dtype=torch.float64) @ torch.randn(5, 5, dtype=torch.float64) + 1
    rows = (z - z.mean(0)).numpy()
    covariance = np.cov(rows.T)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.trace(covariance) / 5 * np.eye(5)
    wanted = rows @ (rows.T if shrinkage == 1 else np.linalg.solve(shrunk, rows.T))
    found = losses.whitened(z[:10], z, shrinkage)
    np.testing.assert_allclose(found @ found.T, wanted[:10, :10], rtol=1e-9, atol=1e-12)
