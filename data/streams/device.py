"""Views that are made in batch on the trainer's device: colour, normalisation, spectrograms, mix-up, SpecAugment.

Every sample of a batch, and every view of it, has parameters of its own, drawn from the given torch.Generator and from
nothing else (`spec_augment` can do without one). The generator may live on any device; one on the CPU gives the same
views on every device.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data.streams.inputs import AudioInput

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
LOG_FLOOR = 1.1920928955078125e-07
"""Kaldi's floor of a mel energy before the log: the float32 epsilon."""

_LUMA = (0.299, 0.587, 0.114)
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = range(4)


# ---- images ----------------------------------------------------------------------------------------------------------


def normalise(image: Tensor, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> Tensor:
    """(image - mean) / std per channel; image (..., 3, H, W), uint8 (0 to 255) or float (0 to 1) -> float."""
    scale = 255.0 if image.dtype == torch.uint8 else 1.0
    dtype = image.dtype if image.is_floating_point() else torch.float32
    factor = torch.tensor([1 / (scale * s) for s in std], dtype=dtype, device=image.device).view(-1, 1, 1)
    shift = torch.tensor([-m / s for m, s in zip(mean, std, strict=True)], dtype=dtype, device=image.device)
    return torch.addcmul(shift.view(-1, 1, 1), image.to(dtype), factor)


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
    for name, value, most in zip(
        ("brightness", "contrast", "saturation", "hue"),
        (brightness, contrast, saturation, hue),
        (float("inf"), float("inf"), float("inf"), 0.5),
        strict=True,
    ):
        if not 0 <= value <= most:
            raise ValueError(f"color_jitter: {name}={value}; it must be at least 0" + (" and at most 0.5" * (most < 1)))
    _check_float_rgb(image, "color_jitter")
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
    _check_float_rgb(image, "random_grayscale")
    pictures = image.reshape(-1, *image.shape[-3:]).clone()
    draws = torch.rand(len(pictures), generator=generator, device=generator.device).cpu()
    chosen = (draws < probability).nonzero()[:, 0].to(image.device)
    if len(chosen):
        pictures[chosen] = _gray(pictures[chosen])[:, None].expand(-1, 3, -1, -1)
    return pictures.view(image.shape)


def _check_float_rgb(image: Tensor, name: str) -> None:
    if image.ndim < 3 or image.shape[-3] != 3 or not image.is_floating_point():
        raise ValueError(f"{name}: image is {image.dtype} {tuple(image.shape)}; it must be float (..., 3, H, W) in 0 to 1")


# ---- sound -----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=32)
def mel_filters(rate: int, bins: int, window_ms: float = 25.0, low_hz: float = 20.0) -> Tensor:
    """Kaldi's triangular filters, from `low_hz` to rate / 2, triangles in mel: float32 (fft / 2 + 1, bins).

    Call it early to check a recipe; the result is cached and must not be written to.

    Raises:
        ValueError: some filter lies between two frequencies of the Fourier transform and would always be empty. The one
            exception is the paper's own bank (16 kHz, 128 bins, 25 ms, 20 Hz; NonLing-CSE and SSAST): its filter 3 (from
            0) is empty in the reference too, and stays at the log floor.
    """
    window = _samples(rate, window_ms)
    if bins < 1 or window < 2 or not 0 <= low_hz < rate / 2:
        raise ValueError(
            f"log-mel: bins={bins}, rate={rate}, window_ms={window_ms}, low_hz={low_hz}; bins must be at least 1, "
            "the window at least two samples, low_hz below half of rate"
        )
    filters = _triangles(rate, bins, window, low_hz)
    if _has_empty(filters) and (rate, bins, window_ms, low_hz) != (16000, 128, 25.0, 20.0):
        empty = int((filters.max(0) == 0).sum())
        allowed = next((n for n in range(bins - 1, 0, -1) if not _has_empty(_triangles(rate, n, window, low_hz))), 0)
        raise ValueError(
            f"log-mel: {empty} of bins={bins} mel filters are empty at rate={rate} with a window of {window_ms:g} ms; "
            f"the largest number of bins without an empty filter is {allowed}: lower bins, or raise rate or window_ms"
        )
    return torch.from_numpy(filters.astype(np.float32))


def _triangles(rate: int, bins: int, window: int, low_hz: float) -> np.ndarray:
    edges = np.linspace(_mel(low_hz), _mel(rate / 2), bins + 2)
    fft = _fft(window)
    frequencies = _mel(np.arange(fft // 2 + 1) * rate / fft)[:, None]
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def _mel(hertz: float | np.ndarray) -> np.ndarray:
    return 1127 * np.log1p(np.asarray(hertz) / 700)


def _has_empty(filters: np.ndarray) -> bool:
    return bool((filters.max(0) == 0).any())


def _samples(rate: int, milliseconds: float) -> int:
    return int(rate * milliseconds / 1000)


def _fft(window: int) -> int:
    return 1 << (window - 1).bit_length()


def samples_for(rate: int, frames: int, window_ms: float = 25.0, hop_ms: float = 10.0) -> int:
    """Waveform samples that `frames` frames cover."""
    return (frames - 1) * _samples(rate, hop_ms) + _samples(rate, window_ms)


@torch.no_grad()
def log_mel(
    waveform: Tensor,
    *,
    rate: int,
    bins: int = 128,
    frames: int = 1024,
    window_ms: float = 25.0,
    hop_ms: float = 10.0,
    low_hz: float = 20.0,
    lengths: Tensor | None = None,
) -> Tensor:
    """Log-mel filter bank of Kaldi as SSAST and AST use it (NonLing-CSE).

    The waveform minus its mean, frames without padding at the edges (snip_edges), each minus its mean, pre-emphasis
    0.97, symmetric Hann window, power spectrum, mel filters, natural log with a floor; no dither, no energy. Cut to
    `frames`, or followed by frames of zeros.

    Args:
        waveform: (B, V, T), float of full scale -1 to 1, or int16 (divided by 32768).
        rate: samples per second.
        bins: mel filters.
        frames: frames of the result.
        window_ms, hop_ms: length of a frame and distance between two.
        low_hz: lower edge of the first filter.
        lengths: (B,) how many samples of each waveform are sound and not padding. Frames that reach into the padding
            are zeros, as if the waveform had come alone; without `lengths` padding is taken for sound.

    Returns:
        float32 (B, V, frames, bins).

    Raises:
        ValueError: an empty mel filter (see `mel_filters`), or wrong shapes.
    """
    window, hop = _samples(rate, window_ms), _samples(rate, hop_ms)
    filters = mel_filters(rate, bins, window_ms, low_hz)
    if waveform.ndim != 3 or frames < 1 or hop < 1:
        raise ValueError(
            f"log_mel: waveform {tuple(waveform.shape)}, frames={frames}, hop_ms={hop_ms}; the waveform must be "
            "(B, V, T), frames at least 1, the hop at least one sample"
        )
    wave = _without_mean(_full_scale(waveform), lengths)[..., : samples_for(rate, frames, window_ms, hop_ms)]
    result = wave.new_zeros(*wave.shape[:2], frames, bins)
    if wave.shape[-1] < window:
        return result
    taper = torch.hann_window(window, periodic=False, device=wave.device)
    filters = filters.to(wave.device)
    # On the CPU a clip at a time: what it needs stays in the cache (2.5 times faster at the paper's size).
    clips = 1 if wave.device.type == "cpu" else max(1, len(wave))
    for part, place in zip(wave.split(clips), result.split(clips), strict=True):
        frame = part.unfold(-1, window, hop)
        frame = frame - frame.mean(-1, keepdim=True)
        frame = frame - 0.97 * torch.cat([frame[..., :1], frame[..., :-1]], -1)
        power = torch.view_as_real(torch.fft.rfft(frame * taper, _fft(window))).square().sum(-1)
        with torch.autocast(wave.device.type, enabled=False):  # a mel energy in half precision is no mel energy
            energy = power @ filters
        place[..., : energy.shape[-2], :] = energy.clamp_min_(LOG_FLOOR).log_()
    if lengths is not None:
        whole = (lengths.to(wave.device) - window).div(hop, rounding_mode="floor") + 1
        padding = torch.arange(frames, device=wave.device) >= whole[:, None]
        result.masked_fill_(padding[:, None, :, None], 0)
    return result


CLAP_FLOOR = 1e-10
"""Smallest mel energy before the decibel of `clap_log_mel`."""


@lru_cache(maxsize=32)
def clap_mel_filters(rate: int, n_fft: int, bins: int, low_hz: float, high_hz: float) -> Tensor:
    """Slaney's mel filters with Slaney's normalisation: float32 (n_fft / 2 + 1, bins).

    Call it early to check a recipe; the result is cached and must not be written to.

    Raises:
        ValueError: some filter lies between two frequencies of the Fourier transform and would always be empty, or the
            edges lie outside 0 to rate / 2.
    """
    if bins < 1 or n_fft < 2 or not 0 <= low_hz < high_hz <= rate / 2:
        raise ValueError(
            f"log-mel: bins={bins}, n_fft={n_fft}, low_hz={low_hz:g}, high_hz={high_hz:g}, rate={rate}; bins must be at "
            f"least 1, n_fft at least 2, and 0 <= low_hz < high_hz <= rate / 2 = {rate / 2:g}"
        )
    filters = _slaney(rate, n_fft, bins, low_hz, high_hz)
    if _has_empty(filters):
        empty = int((filters.max(0) == 0).sum())
        fewer = range(bins - 1, 0, -1)
        allowed = next((n for n in fewer if not _has_empty(_slaney(rate, n_fft, n, low_hz, high_hz))), 0)
        raise ValueError(
            f"log-mel: {empty} of bins={bins} mel filters are empty at rate={rate} with n_fft={n_fft}, {low_hz:g} to "
            f"{high_hz:g} Hz; the largest number of bins without an empty filter is {allowed}: lower bins or raise n_fft"
        )
    return torch.from_numpy(filters.astype(np.float32))


def _slaney(rate: int, n_fft: int, bins: int, low_hz: float, high_hz: float) -> np.ndarray:
    from transformers.audio_utils import mel_filter_bank

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of empty filters, which are an error here
        return mel_filter_bank(n_fft // 2 + 1, bins, low_hz, high_hz, rate, norm="slaney", mel_scale="slaney")


@torch.no_grad()
def clap_log_mel(waveform: Tensor, *, rate: int, n_fft: int, hop: int, bins: int, low_hz: float, high_hz: float) -> Tensor:
    """Log-mel spectrogram of CLAP (Zhao et al. 2023), always in float32.

    Frames centred on every `hop`-th sample (the edges mirrored), periodic Hann window, power spectrum, Slaney's mel
    filters, 10 log10 with a floor of 1e-10 and no ceiling on the range.

    Args:
        waveform: (B, V, T), float of full scale -1 to 1, or int16 (divided by 32768); T at least n_fft / 2 + 1.
        rate: samples per second.
        n_fft: samples of a window.
        hop: samples between windows.
        bins: mel filters.
        low_hz, high_hz: lower edge of the first filter, upper edge of the last.

    Returns:
        Decibel, float32 (B, V, frames, bins) with frames = T // hop + 1.

    Raises:
        ValueError: an empty mel filter (see `clap_mel_filters`), or wrong shapes.
    """
    filters = clap_mel_filters(rate, n_fft, bins, low_hz, high_hz).to(waveform.device)
    if waveform.ndim != 3 or hop < 1 or waveform.shape[-1] <= n_fft // 2:
        raise ValueError(
            f"clap_log_mel: waveform {tuple(waveform.shape)}, hop={hop}, n_fft={n_fft}; the waveform must be (B, V, T) with "
            "more samples than half a window, the hop at least one sample"
        )
    clips = waveform.flatten(0, 1)
    frames = clips.shape[-1] // hop + 1
    result = torch.empty(len(clips), frames, bins, device=clips.device)
    taper = torch.hann_window(n_fft, device=clips.device)
    # On the CPU a clip at a time: what it needs stays in the cache. Elsewhere some, so that memory does not grow with B.
    count = 1 if clips.device.type == "cpu" else 64
    for part, place in zip(clips.split(count), result.split(count), strict=True):
        padded = torch.nn.functional.pad(_full_scale(part)[:, None], (n_fft // 2, n_fft // 2), mode="reflect")[:, 0]
        spectrum = torch.fft.rfft(padded.unfold(-1, n_fft, hop)[:, :frames] * taper)
        power = torch.view_as_real(spectrum).square().sum(-1)
        with torch.autocast(clips.device.type, enabled=False):  # a mel energy in half precision is no mel energy
            place[:] = power @ filters
    result = result.clamp_min_(CLAP_FLOOR).log10_().mul_(10)
    return result.view(*waveform.shape[:2], frames, bins)


def audio_features(waveform: Tensor, input: AudioInput) -> Tensor:
    """What a sound tower takes: (B, V, samples) int16 or float -> float32 (B, V, frames, bins), by `input.features`."""
    if input.features == "kaldi":
        return log_mel(waveform, rate=input.rate, bins=input.bins, frames=input.frames)
    return clap_log_mel(
        waveform,
        rate=input.rate,
        n_fft=input.n_fft,
        hop=input.hop,
        bins=input.bins,
        low_hz=input.low_hz,
        high_hz=input.high_hz,
    )


def _full_scale(waveform: Tensor) -> Tensor:
    return waveform.float() if waveform.is_floating_point() else waveform.float() / 32768


def _sound(lengths: Tensor, samples: int, device: torch.device) -> Tensor:
    """(B, 1, samples): 1 where there is sound, 0 in the padding."""
    return (torch.arange(samples, device=device) < lengths.to(device)[:, None])[:, None].float()


def _without_mean(wave: Tensor, lengths: Tensor | None) -> Tensor:
    """The waveform (B, V, T) minus its mean over the sound; the padding stays 0."""
    if lengths is None:
        return wave - wave.mean(-1, keepdim=True)
    sound = _sound(lengths, wave.shape[-1], wave.device)
    mean = (wave * sound).sum(-1, keepdim=True) / sound.sum(-1, keepdim=True).clamp_min(1)
    return (wave - mean) * sound


@torch.no_grad()
def mixup(
    waveform: Tensor,
    label: Tensor | None,
    generator: torch.Generator,
    probability: float = 0.5,
    alpha: float = 10.0,
    lengths: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The released mix-up of NonLing-CSE, within the batch.

    With `probability` a waveform becomes lambda * itself + (1 - lambda) * another one of the batch, both minus their
    means, lambda ~ Beta(alpha, alpha); the other is cut or padded to the length of the first, which stays. The class is
    the argmax of the mixed class, so the other's where lambda < 0.5. A batch of one has nothing to mix with and stays
    as it is.

    Args:
        waveform: (B, V, T), float of full scale -1 to 1, or int16; all views of a sample are mixed alike.
        label: (B,) classes, or None.
        generator: source of all randomness (it seeds numpy's Beta, since torch's own takes no generator).
        lengths: (B,) how many samples of each waveform are sound and not padding.

    Returns:
        float32 (B, V, T), and the classes.
    """
    wave = _full_scale(waveform)
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    if len(wave) < 2:
        return wave, label
    rng = np.random.default_rng(seed)
    mixed = torch.from_numpy(rng.random(len(wave)) < probability).to(wave.device)
    weight = torch.from_numpy(rng.beta(alpha, alpha, len(wave))).to(wave.device)
    other = torch.from_numpy((np.arange(len(wave)) + rng.integers(1, len(wave), len(wave))) % len(wave)).to(wave.device)
    centred = _without_mean(wave, lengths)
    share = weight.to(wave)[:, None, None]
    blend = share * centred + (1 - share) * centred[other]
    if lengths is not None:
        blend *= _sound(lengths, wave.shape[-1], wave.device)
    wave = torch.where(mixed[:, None, None], blend, wave)
    if label is not None:
        label = torch.where((mixed & (weight < 0.5)).to(label.device), label[other.to(label.device)], label)
    return wave, label


@torch.no_grad()
def spec_augment(spectrogram: Tensor, generator: torch.Generator | None = None, freq: int = 48, time: int = 192) -> Tensor:
    """One band of bins and one span of frames set to 0 (Park et al. 2019, without warping; NonLing-CSE).

    Every spectrogram has its own: a width uniform in [0, parameter), then a start uniform in [0, size - width), both
    rounded down (torchaudio's FrequencyMasking and TimeMasking). 0 turns one off.

    Args:
        spectrogram: (B, V, frames, bins).
        generator: source of all randomness; none: torch's global one of the spectrogram's device.
        freq: most bins; at most the number of bins.
        time: most frames; at most the number of frames.
    """
    frames, bins = spectrogram.shape[-2:]
    if not 0 <= freq <= bins or not 0 <= time <= frames:
        raise ValueError(
            f"spec_augment: freq={freq}, time={time} for a spectrogram of {bins} bins and {frames} frames; "
            "freq must be 0 to the number of bins, time 0 to the number of frames"
        )
    place = spectrogram.device if generator is None else generator.device
    draws = torch.rand(*spectrogram.shape[:-2], 4, generator=generator, device=place).to(spectrogram.device)
    band = _span(draws[..., 0], draws[..., 1], freq, bins)[..., None, :]
    span = _span(draws[..., 2], draws[..., 3], time, frames)[..., :, None]
    return spectrogram.masked_fill(band | span, 0)


def _span(width_draw: Tensor, start_draw: Tensor, most: int, size: int) -> Tensor:
    """(..., size): True from the start on, for the width."""
    width = width_draw * most
    start = (start_draw * (size - width)).long()[..., None]
    position = torch.arange(size, device=width.device)
    return (position >= start) & (position < start + width.long()[..., None])
