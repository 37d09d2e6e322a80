"""Precision of a run: TF32, evaluation, and fp16 updates that overflow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.loop import Engine
from multicse.trainers.engine.optim import UpdateOptimizer, schedule_factor
from multicse.trainers.engine.run import store_of
from multicse.trainers.method import Method
from multicse.trainers.recipe import OptimConfig, Recipe, SGDConfig
from tests.worlds import Memory, engine, run, text_only


@pytest.fixture
def precision() -> Iterator[None]:
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.mark.parametrize(
    ("changes", "matrices"),
    [({}, "high"), ({"run.tf32": False}, "highest"), ({"run.precision": "bf16"}, "highest")],
)
@pytest.mark.usefixtures("precision")
def test_tf32_reaches_torch(recipe: Recipe, changes: dict[str, Any], matrices: str) -> None:
    """For fp32 runs on other devices than CPUs; the device in this test computes nothing."""
    host = Host(store_of(recipe))
    host.device = torch.device("meta")
    Engine(recipe.changed(changes), host, None)
    assert torch.get_float32_matmul_precision() == matrices
    assert torch.backends.cudnn.allow_tf32 == (matrices == "high")


def test_only_disabled_tf32_changes_the_identity(recipe: Recipe) -> None:
    assert recipe.replace("run.tf32", False).identity() != recipe.identity()


def test_evaluation_uses_the_precision_of_training(recipe: Recipe) -> None:
    texts = ["the cat sees the dog", "a red house"]
    found = {}
    for name in ("fp32", "bf16"):
        made = engine(recipe.replace("run.precision", name), Memory())
        found[name] = made.encoder.encode(texts)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=name == "bf16"):
            features = made.method.eval().sentence_encoder.tokenize(texts)
            wanted = made.method.sentence_encoder(features).float().numpy()
        np.testing.assert_allclose(found[name], wanted, atol=0.02 if name == "bf16" else 1e-6)
    assert not np.allclose(found["fp32"], found["bf16"], atol=1e-5)


class Small(Method):
    """Method with two parameters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.linear = torch.nn.Linear(3, 2)


ADAMW = OptimConfig(lr=0.1, warmup=2, weight_decay=0.1, max_grad_norm=None)
SGD = SGDConfig(lr=0.1, warmup=2, momentum=0.9, nesterov=True, weight_decay=0.1, max_grad_norm=None)


@pytest.mark.parametrize("config", [ADAMW, SGD], ids=["adamw", "sgd"])
def test_fp16_skips_an_update_that_overflows_and_does_not_count_it(config: OptimConfig | SGDConfig) -> None:
    """Compared with torch's optimizer and schedule on the other gradients only, with a resume in between."""
    scales = [1.0, torch.inf, 1.0, 1.0, torch.nan, 1.0, 1.0] if config is ADAMW else [torch.inf, 1.0, 1.0, torch.inf, 1.0]
    ours, theirs = Small(), Small()
    made = UpdateOptimizer(ours, "text", config, 8, "fp16")
    groups: list[dict[str, Any]] = [{"params": [theirs.linear.weight], "weight_decay": 0.1}]
    groups.append({"params": [theirs.linear.bias], "weight_decay": 0.0})
    plain: Any = torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True)
    if isinstance(config, OptimConfig):
        plain = torch.optim.AdamW(groups, lr=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda step: schedule_factor(config, "linear", 8, step))
    x, scale = torch.tensor([[0.5, -1.0, 2.0]]), 2.0**16
    for number, factor in enumerate(scales):
        assert float(made.rate) == pytest.approx(schedule.get_last_lr()[0])
        made.backward((ours.linear(x) * factor).sum())
        made.clip()
        skipped = not np.isfinite(factor)
        assert made.scaling == {"loss_scale": scale, "skipped": skipped}
        made.update(torch.zeros(()))
        scale /= 1 + skipped
        if not skipped:
            theirs.linear(x).sum().backward()
            plain.step()
            plain.zero_grad()
            schedule.step()
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, other)
        if number == 2:
            state = made.state_dict()
            made = UpdateOptimizer(ours, "text", config, 8, "fp16")
            made.load_state_dict(state)


def test_a_skipped_update_is_logged_and_not_in_the_mean_norm(recipe: Recipe) -> None:
    """The second and third of six updates overflow."""
    text = text_only(recipe).changed({"run.precision": "fp16", "run.logging_steps": 6})
    norms: list[float] = []
    clip, scale = UpdateOptimizer.clip, torch.amp.GradScaler.scale

    def spied(made: UpdateOptimizer) -> torch.Tensor:
        norms.append(float(norm := clip(made)))
        return norm

    def overflows(scaler: Any, loss: Any) -> Any:
        return scale(scaler, loss) * (torch.inf if len(norms) in (1, 2) and loss.requires_grad else 1.0)

    with patch.object(UpdateOptimizer, "clip", spied), patch.object(torch.amp.GradScaler, "scale", overflows):
        memory, _, _ = run(text)
    found = memory.values[6]
    assert found["train/grad_norm/text"] == pytest.approx(np.mean([norms[0], *norms[3:]]))
    assert np.isinf(norms[1:3]).all() or np.isnan(norms[1:3]).any()
    assert found["train/skipped/text"] == pytest.approx(2 / 6)
    assert found["train/loss_scale/text"] == pytest.approx(2**16 * (1 + 1 + 0.5 + 0.25 * 3) / 6)
