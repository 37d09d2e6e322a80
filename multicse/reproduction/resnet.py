"""Modified ResNet of CLIP (Radford et al. 2021, section 2.4), the image tower of CyCLIP and Zhao et al. 2023.

It has three differences from ResNet: the stem consists of three convolutions and an average pooling; strided blocks are
anti-aliased (average pooling replaces the stride, also in the shortcut); and attention with the mean of the image as the
only query replaces the last average pooling. This module needs only torch, so exported models can contain a copy of it.
"""

from __future__ import annotations

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn

HEAD = 64  # channels per attention head
SHRINKS = 32  # factor from the size of an image to the size of the last feature map
EXPANSION = 4  # ratio of the output channels of a block to its inner channels


class Bottleneck(nn.Module):
    """Residual block of 1x1 convolution, 3x3 convolution, average pooling and 1x1 convolution."""

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
        nn.init.zeros_(self.bn3.weight)  # a new block equals its shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Map feature maps (B, inputs, H, W) to (B, 4 * channels, H / stride, W / stride)."""
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(self.avgpool(out)))
        return F.relu(out + self.downsample(x))


def _pool(stride: int) -> nn.Module:
    return nn.AvgPool2d(stride) if stride > 1 else nn.Identity()


class AttentionPool(nn.Module):
    """Attention pooling: the mean of all positions is the only query; all positions and the mean are keys and values."""

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
        """Map feature maps (B, channels, side, side) to vectors (B, embed_dim)."""
        tokens = x.flatten(2).transpose(1, 2)  # (B, side^2, channels)
        tokens = torch.cat([tokens.mean(1, keepdim=True), tokens], 1) + self.positions.to(x.dtype)
        query, key, value = (
            linear(part).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for linear, part in ((self.query, tokens[:, :1]), (self.key, tokens), (self.value, tokens))
        )
        return self.project(F.scaled_dot_product_attention(query, key, value).flatten(1))


class ModifiedResNet(nn.Module):
    """Encoder of images whose vectors need no further projection.

    Args:
        embed_dim: Dimension of the vectors.
        size: Height and width of an image in pixels, a multiple of 32.
        width: Channels after the stem, an even number; the last feature map has 32 * width channels and width / 2 heads.
        blocks: Bottleneck blocks of the four stages; (3, 4, 6, 3) with width 64 is RN50.

    Raises:
        ValueError: If `size` or `width` is invalid.
    """

    def __init__(self, embed_dim: int, size: int = 224, width: int = 64, blocks: tuple[int, ...] = (3, 4, 6, 3)) -> None:
        super().__init__()
        if size < SHRINKS or size % SHRINKS:
            raise ValueError(f"size={size} is not a multiple of {SHRINKS}, the factor by which the ResNet shrinks an image")
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
        """Encode images (B, 3, size, size) to vectors (B, embed_dim)."""
        x = x.contiguous(memory_format=torch.channels_last)  # 10 to 30 % faster
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        x = self.avgpool(F.relu(self.bn3(self.conv3(x))))
        return self.attnpool(self.stages(x))
