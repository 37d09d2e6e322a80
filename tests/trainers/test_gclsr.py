"""GCLSR: loss, views, variants, collapse, optimizer, and settings that cannot be combined."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from multicse.data.streams.base import Batch
from multicse.trainers.engine.optim import UpdateOptimizer
from multicse.trainers.gclsr import GCLSR, GCLSRConfig
from multicse.trainers.recipe import GroupOverride, SGDConfig
from tests.models import tiny_encoder


def method(encoder: dict[str, Any] | None = None, **settings: Any) -> GCLSR:
    torch.manual_seed(0)
    options = {"width": 16, "bottleneck": 8, "group_size": 4, **settings}
    return GCLSRConfig(**options).build(tiny_encoder.word_encoder(**(encoder or {}))).train()


def batch(views: int = 1, samples: int = 32, seed: int = 0) -> Batch:
    return tiny_encoder.text_batch(samples, views=views, length=7, seed=seed)


@pytest.mark.parametrize("stop_gradient", [True, False])
def test_disagree_5_4_each_view_predicts_the_other(stop_gradient: bool) -> None:
    """SimSiam with groups in a loop: D(p1, z2) / 2 + D(p2, z1) / 2, where the targets z are constant."""
    made = method(augmentation="none", stop_gradient=stop_gradient)
    given = batch(views=2)
    made.double()
    made.sentence_encoder.table = made.sentence_encoder.table.double()
    total: Any = 0.0
    z, p = made.groups.projections(made.encode("text", given).values())
    targets = z.detach() if stop_gradient else z
    for view in (0, 1):
        for row_p, row_z in zip(p[:, view], targets[:, 1 - view], strict=True):
            for start in range(0, 16, 4):
                a, b = row_p[start : start + 4], row_z[start : start + 4]
                total = total - (a @ b) / (a.norm() * b.norm()) / (2 * len(p) * 4)
    wanted = torch.autograd.grad(total, list(made.parameters()), retain_graph=True)
    out = made({"text": given})
    assert torch.allclose(out.losses["text"], total)
    for a, b in zip(torch.autograd.grad(out.losses["text"], list(made.parameters())), wanted, strict=True):
        assert torch.allclose(a, b, atol=1e-12)
    units = np.stack([row / np.linalg.norm(row) for row in z[:, 0].detach().numpy()])
    assert out.metrics["projection_spread"].item() == pytest.approx(units.std(0).mean() * 16**0.5)


@pytest.mark.parametrize(("variant", "always"), [("paper", True), ("released", False), ("fixed", False)])
def test_disagree_5_1_attention_in_training_only_or_always(variant: Any, always: bool) -> None:
    made = method(variant=variant, augmentation="none")
    tokens = {name: t[:, 0] for name, t in batch().tensors.items()}
    encoder = made.sentence_encoder
    words = encoder.look_up(tokens["input_ids"])
    attended = encoder.embed(words, tokens["attention_mask"], attention=True)
    assert torch.equal(made.encode("text", batch())["first"], attended)
    assert torch.equal(encoder(tokens), attended) is always
    (unattended,) = method(attention="none", augmentation="none").encode("text", batch()).values()
    assert unattended.shape == (32, 20)
    assert method(variant="paper", attention="training").sentence_encoder.attention is False
    encoder.softmax = True
    mixed = encoder.embed(words, tokens["attention_mask"], attention=True)
    bert = method(variant=variant, augmentation="none", weighting="softmax")
    assert torch.equal(bert.encode("text", batch())["first"], mixed) and not torch.allclose(mixed, attended)


@pytest.mark.parametrize(("variant", "norms"), [("paper", 2), ("released", 3), ("fixed", 3)])
def test_disagree_5_3_batchnorm_at_the_end_of_the_projector(variant: Any, norms: int) -> None:
    made = method(variant=variant)
    kinds = [type(part) for part in made.groups.projector]
    assert kinds.count(nn.BatchNorm1d) == norms and kinds.count(nn.ReLU) == 2
    assert kinds[-1] is (nn.Linear if variant == "paper" else nn.BatchNorm1d)
    assert [type(part) for part in made.groups.predictor] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]


def test_sgd_equals_its_definition() -> None:
    """v <- m v + g + decay w; w <- w - lr (g + decay w + m v), also for biases, with the momentum of the step."""
    made = method()
    groups = {"predictor": GroupOverride(lr=1.0, schedule="constant", warmup=0)}
    momentum = {"momentum": 0.9, "momentum_after_warmup": 0.5, "nesterov": True}
    config = SGDConfig(lr=0.1, **momentum, weight_decay=0.01, warmup=2, max_grad_norm=None, groups=groups)
    update = UpdateOptimizer(made, "text", config, 6, "fp32")
    weights = {name: p.detach().clone().double() for name, p in made.named_parameters()}
    speeds = {name: torch.zeros_like(w) for name, w in weights.items()}
    for step in range(6):
        rate = 0.1 * ((step + 1) / 2 if step < 2 else 1 - (step - 2) / 4)
        m = 0.9 if step < 2 else 0.5
        torch.manual_seed(step)
        for name, p in made.named_parameters():
            lr = 1.0 if name.startswith("groups.predictor") else rate
            p.grad = torch.randn_like(p)
            g = p.grad.double() + 0.01 * weights[name]
            speeds[name] = g if step == 0 else m * speeds[name] + g
            weights[name] = weights[name] - lr * (g + m * speeds[name])
        update.clip()
        update.update()
    for name, p in made.named_parameters():
        assert torch.allclose(p.double(), weights[name], atol=1e-5), name


def test_a_first_step_that_overflows_leaves_no_momentum() -> None:
    """fp16: the scaler skips the step; torch's fused SGD would use uninitialised memory as the next step's momentum."""
    made, config = method(), SGDConfig(lr=1.0, momentum=0.9, max_grad_norm=None, schedule="constant")
    update = UpdateOptimizer(made, "text", config, 4, "fp16")
    update.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    before = [p.detach().clone() for p in made.parameters()]
    for value in (math.inf, 1.0):
        update.scaler.scale(torch.zeros(()))  # initialises the scale
        for p in made.parameters():
            p.grad = torch.full_like(p, value)
        update.clip()
        update.update()
        update.scaler.update(1.0)
    for old, p in zip(before, made.parameters(), strict=True):
        assert torch.allclose(p, old - 1)
