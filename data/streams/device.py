"""Views that are made in batch on the trainer's device: colour, SpecAugment.

Every sample of a batch, and every view of it, has parameters of its own, drawn from the given torch.Generator and from
nothing else (`spec_augment` can do without one). The generator may live on any device; one on the CPU gives the same
views on every device.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)


# ---- images ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def color_jitter(
    image: Tensor,
    generator: torch.Generator,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    probability: float = 0.8,
) -> Tensor:
    """Random brightness, contrast, saturation and hue (torchvision's ColorJitter inside RandomApply).

    A picture is changed with `probability`. Then its factors are uniform in [max(0, 1 - x), 1 + x] for x of brightness,
    contrast and saturation, its turn of the hue circle uniform in [-hue, hue], and the four are applied in a random
    order of its own. The formulas are torchvision's on float tensors: no rounding to 8 bits in between.

    Args:
        image: float (..., 3, H, W) in 0 to 1; every picture of the leading axes is independent.
    """
    pictures = image.reshape(-1, *image.shape[-3:])
    # One copy to the host for all parameters: which pictures a step touches must be known here, without a sync a step.
    draws = torch.rand(len(pictures), 9, generator=generator, device=generator.device).cpu()
    chosen = (draws[:, 0] < probability).nonzero()[:, 0]
    if not len(chosen):
        return image.clone()
    low = torch.tensor([max(0.0, 1 - brightness), max(0.0, 1 - contrast), max(0.0, 1 - saturation), -hue])
    high = torch.tensor([1 + brightness, 1 + contrast, 1 + saturation, hue])
    factors = low + (high - low) * draws[chosen, 1:5]
    order = draws[chosen, 5:].argsort(1)
    pictures = pictures.clone()
    pictures[chosen.to(image.device)] = jitter(pictures[chosen.to(image.device)], factors, order)
    return pictures.view(image.shape)


@torch.no_grad()
def jitter(image: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """The deterministic part of `color_jitter`.

    Args:
        image: float (N, 3, H, W) in 0 to 1.
        factors: CPU (N, 4) of brightness, contrast, saturation (1: unchanged) and hue (turns, 0: unchanged).
        order: CPU (N, 4), per picture a permutation of 0 to 3, naming the columns of `factors` in the order of use.
    """
    image = image.clone()
    for step in order.unbind(1):
        turned = (step == _HUE).nonzero()[:, 0]
        blended = (step != _HUE).nonzero()[:, 0]
        if len(blended):
            place = blended.to(image.device)
            image[place] = _blend(image[place], factors[blended, step[blended]], step[blended])
        if len(turned):
            place = turned.to(image.device)
            image[place] = _turn_hue(image[place], factors[turned, _HUE].to(image))
    return image


def _blend(image: Tensor, factor: Tensor, kind: Tensor) -> Tensor:
    """factor * image + (1 - factor) * other, where other is black (brightness), the mean gray (contrast) or the gray
    picture (saturation); one pass for a batch of mixed kinds."""
    rest = 1 - factor
    gray_share = (rest * (kind == _SATURATION)).to(image)[:, None, None]
    mean_share = (rest * (kind == _CONTRAST)).to(image)[:, None, None]
    gray = _gray(image)
    other = gray * gray_share + gray.mean((1, 2), keepdim=True) * mean_share
    return torch.addcmul(other[:, None], image, factor.to(image)[:, None, None, None]).clamp_(0, 1)


def _turn_hue(image: Tensor, turns: Tensor) -> Tensor:
    """Turn the hue of HSV and return to RGB by the closed form: with the hue in sixths of a circle, a channel is
    max - (max - min) * clamp(min(k, 4 - k), 0, 1), k = (offset + hue) mod 6, offset 5, 3, 1 for red, green, blue."""
    red, green, blue = image.unbind(1)
    most, least = image.amax(1), image.amin(1)
    spread = most - least
    safe = torch.where(spread == 0, 1, spread)
    hue = torch.where(
        most == red,
        (green - blue) / safe,
        torch.where(most == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    hue += turns[:, None, None] * 6
    offset = torch.tensor([5, 3, 1], dtype=image.dtype, device=image.device).view(1, 3, 1, 1)
    k = (hue[:, None] + offset).remainder_(6)
    return torch.addcmul(most[:, None], torch.minimum(k, 4 - k).clamp_(0, 1), spread[:, None], value=-1)


def _gray(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(-3)
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


@torch.no_grad()
def random_grayscale(image: Tensor, generator: torch.Generator, probability: float = 0.2) -> Tensor:
    """Every picture of (..., 3, H, W), float in 0 to 1, becomes gray with `probability` (ITU-R 601 weights)."""
    pictures = image.reshape(-1, *image.shape[-3:]).clone()
    draws = torch.rand(len(pictures), generator=generator, device=generator.device).cpu()
    chosen = (draws < probability).nonzero()[:, 0].to(image.device)
    if len(chosen):
        pictures[chosen] = _gray(pictures[chosen])[:, None].expand(-1, 3, -1, -1)
    return pictures.view(image.shape)


# ---- sound -----------------------------------------------------------------------------------------------------------


def spec_augment(
    spectrogram: Tensor, frames: int, bins: int, stripes: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Stretches of frames and bands of bins set to 0 (Park et al. 2019, without warping); gradients pass the rest.

    Every spectrogram has its own: widths uniform in 0 ... `frames` - 1 or `bins` - 1, starts uniform where they fit.
    0 turns one off.

    Args:
        spectrogram: (..., frames, bins); the leading axes are independent.
        frames: one more than the longest stretch; at most the number of frames.
        bins: one more than the widest band; at most the number of bins.
        stripes: how many of each; they may overlap.
        generator: source of all randomness; none: torch's global one of the spectrogram's device.
    """
    rows = spectrogram.flatten(0, -3)
    time = _stripes(rows, frames, rows.shape[1], stripes, generator)
    band = _stripes(rows, bins, rows.shape[2], stripes, generator)
    return rows.masked_fill(time[:, :, None] | band[:, None, :], 0).reshape(spectrogram.shape)


def _stripes(rows: Tensor, most: int, size: int, stripes: int, generator: torch.Generator | None) -> Tensor:
    """(N, size): True within any of some stripes of fewer than `most` places."""
    place = rows.device if generator is None else generator.device
    draws = torch.rand(2, stripes, len(rows), 1, generator=generator, device=place).to(rows.device)  # width and start
    width = (draws[0] * most).long()
    start = (draws[1] * (size - width + 1)).long()
    position = torch.arange(size, device=rows.device)
    return ((position >= start) & (position < start + width)).any(0)
