"""CLIP's ResNet against an independent forward pass without modules, written from its description."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multicse.models.resnet import ModifiedResNet

TINY: dict[str, Any] = {"embed_dim": 10, "size": 64, "width": 4, "blocks": (2, 1, 1, 3)}


class Naive:
    """The network as sums over its weights. With `training`, BatchNorm uses the statistics of the batch."""

    def __init__(self, model: nn.Module, training: bool) -> None:
        self.weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        self.training = training
        self.statistics: dict[str, tuple[Tensor, Tensor]] = {}

    def conv(self, name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
        return F.conv2d(x, self.weights[f"{name}.weight"], None, stride, padding)

    def norm(self, name: str, x: Tensor) -> Tensor:
        mean, variance = self.weights[f"{name}.running_mean"], self.weights[f"{name}.running_var"]
        if self.training:
            mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
            self.statistics[name] = (mean, x.var((0, 2, 3), unbiased=True))
        x = (x - mean[:, None, None]) / (variance[:, None, None] + 1e-5) ** 0.5
        return x * self.weights[f"{name}.weight"][:, None, None] + self.weights[f"{name}.bias"][:, None, None]

    def halved(self, x: Tensor) -> Tensor:
        return (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4

    def block(self, name: str, x: Tensor, strided: bool) -> Tensor:
        out = self.norm(f"{name}.bn1", self.conv(f"{name}.conv1", x)).clamp(min=0)
        out = self.norm(f"{name}.bn2", self.conv(f"{name}.conv2", out, padding=1)).clamp(min=0)
        out = self.halved(out) if strided else out
        out = self.norm(f"{name}.bn3", self.conv(f"{name}.conv3", out))
        shortcut = x
        if f"{name}.downsample.conv.weight" in self.weights:
            shortcut = self.conv(f"{name}.downsample.conv", self.halved(x) if strided else x)
            shortcut = self.norm(f"{name}.downsample.bn", shortcut)
        return (out + shortcut).clamp(min=0)

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.weights[f"attnpool.{name}.weight"].T + self.weights[f"attnpool.{name}.bias"]

    def pool(self, x: Tensor, heads: int) -> Tensor:
        """Full self-attention, one image and head at a time; the output at the mean is projected."""
        outputs = []
        for image in x:
            tokens = image.reshape(len(image), -1).T
            tokens = torch.cat([tokens.mean(0)[None], tokens]) + self.weights["attnpool.positions"]
            query, key, value = (self.linear(name, tokens) for name in ("query", "key", "value"))
            size = query.shape[1] // heads
            parts = [slice(head * size, (head + 1) * size) for head in range(heads)]
            heads_out = [((query[:, p] @ key[:, p].T) / size**0.5).softmax(-1) @ value[:, p] for p in parts]
            outputs.append(self.linear("project", torch.cat(heads_out, 1))[0])
        return torch.stack(outputs)

    def __call__(self, x: Tensor, blocks: tuple[int, ...], heads: int) -> Tensor:
        x = self.norm("bn1", self.conv("conv1", x, stride=2, padding=1)).clamp(min=0)
        x = self.norm("bn2", self.conv("conv2", x, padding=1)).clamp(min=0)
        x = self.halved(self.norm("bn3", self.conv("conv3", x, padding=1)).clamp(min=0))
        for stage, count in enumerate(blocks):
            for number in range(count):
                x = self.block(f"stages.{stage}.{number}", x, strided=stage > 0 and number == 0)
        return self.pool(x, heads)


def _random(model: ModifiedResNet, seed: int = 0) -> ModifiedResNet:
    """Randomise weights and statistics, since default values could hide mistakes."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None and module.running_var is not None
            for tensor, low in (
                (module.weight, 0.5),
                (module.bias, -0.5),
                (module.running_mean, -0.5),
                (module.running_var, 0.5),
            ):
                tensor.data = torch.rand(tensor.shape, generator=generator).to(tensor) + low
    for name, parameter in model.named_parameters():
        if name.startswith("attnpool") and name.endswith("bias"):
            parameter.data = torch.randn(parameter.shape, generator=generator).to(parameter)
    return model


@pytest.mark.parametrize("training", [False, True])
def test_equals_a_forward_from_the_description(training: bool) -> None:
    torch.manual_seed(1)
    model = _random(ModifiedResNet(**TINY)).double().train(training)
    naive = Naive(model, training)
    x = torch.randn(3, 3, 64, 64, dtype=torch.float64)
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    torch.testing.assert_close(model(x), naive(x, TINY["blocks"], heads=2), rtol=0, atol=1e-10)
    assert bool(naive.statistics) == training
    for name, (mean, variance) in naive.statistics.items():
        buffers = dict(model.named_buffers())
        for kind, value in (("running_mean", mean), ("running_var", variance)):
            moved = 0.9 * before[f"{name}.{kind}"] + 0.1 * value
            torch.testing.assert_close(buffers[f"{name}.{kind}"], moved, rtol=0, atol=1e-10)
