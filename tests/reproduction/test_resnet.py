"""CLIP's ResNet against an independent forward pass without modules, written from its description."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from multicse.reproduction.resnet import ModifiedResNet

TINY: dict[str, Any] = {"embed_dim": 10, "size": 64, "width": 4, "blocks": (2, 1, 1, 3)}


def naive(weights: dict[str, Tensor], x: Tensor, blocks: tuple[int, ...], heads: int) -> Tensor:
    """The network in evaluation mode, as sums over its weights."""

    def conv(name: str, x: Tensor, stride: int = 1, padding: int = 0) -> Tensor:
        return F.conv2d(x, weights[f"{name}.weight"], None, stride, padding)

    def norm(name: str, x: Tensor) -> Tensor:
        weight, bias, mean, variance = (
            weights[f"{name}.{part}"][:, None, None] for part in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (variance + 1e-5) ** 0.5 * weight + bias

    def halved(x: Tensor) -> Tensor:
        return (x[..., ::2, ::2] + x[..., 1::2, ::2] + x[..., ::2, 1::2] + x[..., 1::2, 1::2]) / 4

    def block(name: str, x: Tensor, strided: bool) -> Tensor:
        out = norm(f"{name}.bn1", conv(f"{name}.conv1", x)).clamp(min=0)
        out = norm(f"{name}.bn2", conv(f"{name}.conv2", out, padding=1)).clamp(min=0)
        out = norm(f"{name}.bn3", conv(f"{name}.conv3", halved(out) if strided else out))
        if f"{name}.downsample.conv.weight" in weights:
            x = norm(f"{name}.downsample.bn", conv(f"{name}.downsample.conv", halved(x) if strided else x))
        return (out + x).clamp(min=0)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ weights[f"attnpool.{name}.weight"].T + weights[f"attnpool.{name}.bias"]

    def pool(image: Tensor) -> Tensor:
        """Full self-attention, one head at a time; the output at the mean is projected."""
        tokens = image.reshape(len(image), -1).T
        tokens = torch.cat([tokens.mean(0)[None], tokens]) + weights["attnpool.positions"]
        parts = [linear(name, tokens).chunk(heads, 1) for name in ("query", "key", "value")]
        out = [(q @ k.T / q.shape[1] ** 0.5).softmax(-1) @ v for q, k, v in zip(*parts, strict=True)]
        return linear("project", torch.cat(out, 1))[0]

    x = norm("bn1", conv("conv1", x, stride=2, padding=1)).clamp(min=0)
    x = norm("bn2", conv("conv2", x, padding=1)).clamp(min=0)
    x = halved(norm("bn3", conv("conv3", x, padding=1)).clamp(min=0))
    for stage, count in enumerate(blocks):
        for number in range(count):
            x = block(f"stages.{stage}.{number}", x, strided=stage > 0 and number == 0)
    return torch.stack([pool(image) for image in x])


def test_equals_a_forward_from_the_description() -> None:
    """With random statistics, scales and biases, since default values could hide mistakes."""
    torch.manual_seed(1)
    model = ModifiedResNet(**TINY).double().eval()
    for name, value in model.state_dict().items():
        if "bn" in name.split(".")[-2] and value.is_floating_point():
            value.copy_(torch.rand(value.shape) + 0.5)
        elif name.startswith("attnpool") and name.endswith("bias"):
            nn.init.normal_(value)
    x = torch.randn(3, 3, 64, 64, dtype=torch.float64)
    found = naive(model.state_dict(), x, TINY["blocks"], heads=2)
    torch.testing.assert_close(model(x), found, rtol=0, atol=1e-10)
