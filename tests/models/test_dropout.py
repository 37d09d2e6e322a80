"""The fast dropout for CPUs has the given probability, drops elements independently and keeps the mean."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from multicse.models.packing import Dropout, drop, replace_dropout

COUNT = 1_000_003  # not a multiple of the four elements per draw


@pytest.mark.parametrize("p", [0.1, 0.3, 0.9])
def test_probability_mean_and_independence(p: float) -> None:
    torch.manual_seed(0)
    dropped = drop(torch.ones(COUNT, dtype=torch.float64), p)
    zero = (dropped == 0).double()
    deviation = (p * (1 - p) / COUNT) ** 0.5
    assert zero.mean().item() == pytest.approx(p, abs=5 * deviation)
    assert dropped.mean().item() == pytest.approx(1, abs=5 * deviation / (1 - p))
    assert dropped.unique().tolist() == [0, pytest.approx(1 / (1 - p), rel=1e-4 / (1 - p))]
    for distance in range(1, 9):  # neighbours share a draw
        together = ((zero[distance:] - p) * (zero[:-distance] - p)).mean().item()
        assert together == pytest.approx(0, abs=5 * p * (1 - p) / COUNT**0.5), distance


def test_the_gradient_has_the_mask_of_the_output() -> None:
    torch.manual_seed(0)
    x = torch.randn(33, 7, dtype=torch.float64, requires_grad=True)
    out = drop(x, 0.4)
    (gradient,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(gradient * x, out)
    assert 0.3 < (gradient == 0).double().mean().item() < 0.5


def test_all_dropout_modules_are_replaced_and_act_only_in_training() -> None:
    model = nn.Sequential(nn.Dropout(0.2), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.3))).eval()
    keys = list(model.state_dict())
    replace_dropout(model)
    assert [type(part) for part in model.modules() if isinstance(part, nn.Dropout)] == [Dropout, Dropout]
    assert [part.p for part in model.modules() if isinstance(part, Dropout)] == [0.2, 0.3] and list(
        model.state_dict()
    ) == keys
    assert torch.equal(model[0](torch.ones(99)), torch.ones(99))
    assert not torch.equal(model.train()[0](torch.ones(99)), torch.ones(99))
