"""The modified ResNet of CLIP (Radford et al. 2021, section 2.4), the image tower of CyCLIP and Zhao et al. 2023.

It differs from a ResNet in three places: a stem of three convolutions and an average pool; strided blocks are
anti-aliased (an average pool instead of a stride, in the shortcut too); and attention with one query, the mean of the
image, replaces the last average pool. This module needs torch alone, so that an exported model can carry it.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 64  # channels of an attention head
SHRINKS = 32  # pixels of a side that become one position of the last feature map
EXPANSION = 4  # a block's output channels over its inner ones


class Bottleneck(nn.Module):
    """(B, inputs, H, W) -> (B, 4 channels, H / stride, W / stride): 1x1, 3x3, average pool, 1x1, plus the shortcut."""

    def __init__(self, inputs: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        outputs = EXPANSION * channels
        self.conv1 = nn.Conv2d(inputs, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.avgpool = _pool(stride)
        self.conv3 = nn.Conv2d(channels, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            parts = [("pool", _pool(stride)), ("conv", nn.Conv2d(inputs, outputs, 1, bias=False))]
            self.downsample = nn.Sequential(OrderedDict([*parts, ("bn", nn.BatchNorm2d(outputs))]))
        nn.init.zeros_(self.bn3.weight)  # a new block is its shortcut

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(self.avgpool(out)))
        return F.relu(out + self.downsample(x))


def _pool(stride: int) -> nn.Module:
    return nn.AvgPool2d(stride) if stride > 1 else nn.Identity()


class AttentionPool(nn.Module):
    """(B, channels, side, side) -> (B, embed_dim): the mean of all positions asks the positions and itself.

    Nothing but the answer to the mean is used, so nothing else is computed.
    """

    def __init__(self, side: int, channels: int, embed_dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.positions = nn.Parameter(torch.randn(side**2 + 1, channels) * channels**-0.5)
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels)
        self.value = nn.Linear(channels, channels)
        self.project = nn.Linear(channels, embed_dim)
        for linear in (self.query, self.key, self.value, self.project):
            nn.init.normal_(linear.weight, std=channels**-0.5)
            nn.init.zeros_(linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)  # (B, side^2, channels)
        tokens = torch.cat([tokens.mean(1, keepdim=True), tokens], 1) + self.positions.to(x.dtype)
        query, key, value = (
            linear(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, part in ((self.query, tokens[:, :1]), (self.key, tokens), (self.value, tokens))
        )
        return self.project(F.scaled_dot_product_attention(query, key, value).flatten(1))


class ModifiedResNet(nn.Module):
    """Images (B, 3, size, size) -> vectors (B, embed_dim), which need no further projection.

    Args:
        embed_dim: length of a vector.
        size: pixels of a side, a multiple of 32.
        width: channels behind the stem, even; the last feature map has 32 * width, and width / 2 heads attend to it.
        blocks: bottleneck blocks of the four stages; (3, 4, 6, 3) with width 64 is RN50.

    Raises:
        ValueError: a setting is not as said above.
    """

    def __init__(self, embed_dim: int, size: int = 224, width: int = 64, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        if size < SHRINKS or size % SHRINKS:
            raise ValueError(f"size={size} is not a multiple of {SHRINKS}, by which the ResNet shrinks an image")
        if width < 2 or width % 2:
            raise ValueError(f"width={width} is not an even number of at least 2")
        self.size = size
        half = width // 2
        self.conv1 = nn.Conv2d(3, half, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(half)
        self.conv2 = nn.Conv2d(half, half, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(half)
        self.conv3 = nn.Conv2d(half, width, 3, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(width)
        self.avgpool = nn.AvgPool2d(2)
        self.stages = nn.Sequential()
        inputs = width
        for number, count in enumerate(blocks):
            channels = width * 2**number
            stride = 1 if number == 0 else 2
            stage = [Bottleneck(inputs, channels, stride)]
            inputs = EXPANSION * channels
            stage += [Bottleneck(inputs, channels) for _ in range(count - 1)]
            self.stages.append(nn.Sequential(*stage))
        self.attnpool = AttentionPool(size // SHRINKS, inputs, embed_dim, inputs // HEAD)

    def forward(self, x: Tensor) -> Tensor:
        x = x.contiguous(memory_format=torch.channels_last)  # a tenth to a third faster
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = self.avgpool(F.relu(self.bn3(self.conv3(x))))
        return self.attnpool(self.stages(x))
