"""Views that are computed in batch on the device of the trainer: colour, SpecAugment.

Every view of every sample has its own parameters, from uniform random numbers of the caller. The host never waits for
the device, and uploads nothing after the first call.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from multicse.data.streams.preprocess import constant

_LUMA = (0.299, 0.587, 0.114)
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)
JITTER_DRAWS = 9
"""Number of random numbers per image for `color_jitter`."""


# ---- images ----------------------------------------------------------------------------------------------------------


@torch.no_grad()
def color_jitter(
    image: Tensor,
    draws: Tensor,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    hue: float = 0.1,
    probability: float = 0.8,
) -> Tensor:
    """Change brightness, contrast, saturation and hue at random (torchvision's ColorJitter inside RandomApply).

    Factors are uniform in [max(0, 1 - x), 1 + x], where x is `brightness`, `contrast` or `saturation`, the rotation of the
    hue is uniform in [-hue, hue], and the four changes are applied in a random order. The formulas are torchvision's for
    float tensors, without rounding to 8 bits in between.

    Args:
        image: (N, 3, H, W), float in 0 to 1.
        draws: (N, `JITTER_DRAWS`), uniform in [0, 1), on the device of the images.
        brightness: Largest change of the factor of the brightness.
        contrast: Largest change of the factor of the contrast.
        saturation: Largest change of the factor of the saturation.
        hue: Largest rotation of the hue, in full circles.
        probability: Share of images that are changed.

    Returns:
        (N, 3, H, W), a new tensor.
    """
    bounds = (max(0.0, 1 - brightness), max(0.0, 1 - contrast), max(0.0, 1 - saturation), -hue)
    low, high = constant((bounds, (1 + brightness, 1 + contrast, 1 + saturation, hue)), draws.dtype, draws.device)
    factors, order = low + (high - low) * draws[:, 1:5], draws[:, 5:].argsort(1)
    return _where(draws[:, 0] < probability, image.clone(), jitter, factors, order)


def _where(mask: Tensor, image: Tensor, change: Callable[..., Tensor], *parameters: Tensor) -> Tensor:
    """Return ``change(image, *parameters)`` of the images (N, 3, H, W) that mask (N,) selects, and the others unchanged.

    On the CPU only the selected images are computed, and replaced in `image` in place. On a GPU all are computed: otherwise
    the host would have to wait for the mask.
    """
    if not image.is_cpu:
        return torch.where(mask[:, None, None, None], change(image, *parameters), image)
    rows = mask.nonzero()[:, 0]
    image[rows] = change(image[rows], *(parameter[rows] for parameter in parameters))
    return image


@torch.no_grad()
def jitter(image: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Apply given changes of colour: the deterministic part of `color_jitter`, in a new tensor.

    Args:
        image: (N, 3, H, W), float in 0 to 1.
        factors: (N, 4), of brightness, contrast, saturation (1: unchanged) and hue (full circles, 0: unchanged).
        order: (N, 4), for each image a permutation of 0 to 3: the columns of `factors` in the order of use.
    """
    image, chosen, turn = image.clone(), factors.gather(1, order), (order == _HUE).int().argmax(1)
    for step in range(_HUE):
        image = _where(turn > step, image, _blend, chosen[:, step], order[:, step])
    size = max(
        1, 2**19 // image.shape[2:].numel() if image.is_cpu else len(image)
    )  # the images that fit into the cache of a CPU
    image = torch.cat([_turn_hue(*part) for part in zip(image.split(size), factors[:, _HUE].split(size), strict=True)])
    for step in range(1, _HUE + 1):
        image = _where(turn < step, image, _blend, chosen[:, step], order[:, step])
    return image


def _blend(image: Tensor, factor: Tensor, kind: Tensor) -> Tensor:
    """Return factor * image + (1 - factor) * black (brightness), mean gray (contrast) or gray image (saturation)."""
    rest = 1 - factor
    gray_share = (rest * (kind == _SATURATION))[:, None, None]
    mean_share = (rest * (kind == _CONTRAST))[:, None, None]
    gray = _gray(image)
    other = gray * gray_share + gray.mean((1, 2), keepdim=True) * mean_share
    return torch.addcmul(other[:, None], image, factor[:, None, None, None]).clamp_(0, 1)


def _turn_hue(image: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of HSV and convert to RGB by the closed form.

    With the hue in sixths of a circle, a channel is max - (max - min) * clamp(min(k, 4 - k), 0, 1), where
    k = (offset + hue) mod 6 and the offset is 5, 3, 1 for red, green, blue.
    """
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
    offset = torch.arange(5, 0, -2, dtype=image.dtype, device=image.device).view(1, 3, 1, 1)
    k = (hue[:, None] + offset).remainder_(6)
    return torch.addcmul(most[:, None], torch.minimum(k, 4 - k).clamp_(0, 1), spread[:, None], value=-1)


def _gray(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(-3)
    return (red * _LUMA[0]).add_(green, alpha=_LUMA[1]).add_(blue, alpha=_LUMA[2])


@torch.no_grad()
def random_grayscale(image: Tensor, draws: Tensor, probability: float = 0.2) -> Tensor:
    """Make images gray with `probability` (ITU-R 601 weights), in a new tensor.

    Args:
        image: (N, 3, H, W), float in 0 to 1.
        draws: (N,), uniform in [0, 1), on the device of the images.
        probability: Share of images that become gray.
    """
    return _where(draws < probability, image.clone(), lambda chosen: _gray(chosen)[:, None].expand(-1, 3, -1, -1))


# ---- audio -----------------------------------------------------------------------------------------------------------


def mask_draws(
    spectrograms: int, stripes: int = 1, generator: torch.Generator | None = None, device: torch.device | str = "cpu"
) -> Tensor:
    """Draw the random numbers of `spec_augment`, (N, 2, 2, stripes), uniform in [0, 1).

    Args:
        spectrograms: Number of spectrograms, N.
        stripes: Number of stretches of frames, and of bands of bins, per spectrogram; they may overlap.
        generator: Source of the numbers. If None, torch's global generator of the device.
        device: Device of the result and of the generator.
    """
    return torch.rand(2, 2, stripes, spectrograms, generator=generator, device=device).movedim(3, 0)


def spec_augment(spectrogram: Tensor, frames: int, bins: int, draws: Tensor) -> Tensor:
    """Set stretches of frames and bands of bins to 0 (Park et al. 2019, without warping), in a new tensor.

    The masks of every spectrogram are independent, with widths uniform in 0 ... `frames` - 1 or `bins` - 1.

    Args:
        spectrogram: (..., frames, bins), N spectrograms in all.
        frames: One more than the longest stretch, at most the number of frames. 0: no stretches.
        bins: One more than the widest band, at most the number of bins. 0: no bands.
        draws: Result of `mask_draws`, (N, 2, 2, stripes), on the device of the spectrograms.
    """
    rows, (time_draws, bin_draws) = spectrogram.flatten(0, -3), draws.movedim(0, 3)[..., None]
    time = _stripes(frames, rows.shape[1], time_draws)
    band = _stripes(bins, rows.shape[2], bin_draws)
    return rows.masked_fill(time[:, :, None] | band[:, None, :], 0).reshape(spectrogram.shape)


def _stripes(most: int, size: int, draws: Tensor) -> Tensor:
    """Return (N, size), True within stripes of fewer than `most` places; draws (2, stripes, N, 1) decide width and start."""
    width = (draws[0] * most).long()
    start = (draws[1] * (size - width + 1)).long()
    position = torch.arange(size, device=draws.device)
    return ((position >= start) & (position < start + width)).any(0)
