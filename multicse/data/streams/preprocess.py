"""Preprocessing of images and audio for a tower, shared by training and evaluation.

``prepare_images(items, **ImageInput)`` and ``prepare_sounds(items, **AudioInput)`` are the complete preprocessing without
randomness (`data/streams/inputs.py` documents the settings). Streams combine the other functions. Reading tasks import
this module, so functions import slow packages only when they are called.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LOG_FLOOR = 1.1920928955078125e-07
"""Kaldi's floor of a mel energy before the log: the float32 epsilon."""
CLAP_FLOOR = 1e-10
"""Smallest mel energy before CLAP's decibel."""


@lru_cache(maxsize=64)
def constant(values: tuple[Any, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a cached tensor of numbers, which is uploaded to a device once; callers must not write to it."""
    import torch

    return torch.tensor(values, dtype=dtype, device=device)


# ---- images ----------------------------------------------------------------------------------------------------------


def prepare_images(
    items: Sequence[np.ndarray | Image.Image], *, size: int, mean: Sequence[float], std: Sequence[float]
) -> Tensor:
    """Resize, centre-crop and normalise images for an image tower, to float32 (N, 3, size, size) on the CPU.

    Args:
        items: N images, as PIL images or uint8 RGB arrays (H, W, 3).
        size: Height and width of the result in pixels.
        mean: Mean of each channel, (3,).
        std: Standard deviation of each channel, (3,).

    Raises:
        ValueError: If an array is not such an image.
    """
    import torch

    square = np.empty((len(items), 3, size, size), np.uint8)
    for number, item in enumerate(items):
        if isinstance(item, np.ndarray):
            if item.ndim != 3 or item.shape[-1] != 3 or item.dtype != np.uint8:
                raise ValueError(f"image {number} is {item.dtype} {item.shape}; it must be uint8 RGB (H, W, 3)")
            item = Image.fromarray(item)
        square[number] = to_chw(resize_center_crop(item, size))
    return normalise(torch.from_numpy(square), mean, std)


def resize_center_crop(image: Image.Image, size: int) -> Image.Image:
    """Resize the shorter side to `size` (bicubic, antialiased) and crop the central square, as CLIP.

    Only the kept part is computed, so an extremely long image is not slower than a square one.
    """
    shorter = min(image.width, image.height)
    width, height = (max(size, int(size * side / shorter)) for side in (image.width, image.height))
    left, top = round((width - size) / 2), round((height - size) / 2)
    # The crop in pixels of the original: a resize of the complete image has equal filter positions.
    x, y = image.width / width, image.height / height
    box = (left * x, top * y, min((left + size) * x, image.width), min((top + size) * y, image.height))
    return image.resize((size, size), Image.Resampling.BICUBIC, box=box)


def to_chw(image: Image.Image) -> np.ndarray:
    """Return the pixels of an image, uint8 (3, H, W)."""
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB")).transpose(2, 0, 1)


def normalise(image: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Subtract the mean and divide by the standard deviation of each channel.

    Args:
        image: (..., 3, H, W), uint8 (0 to 255) or float (0 to 1); the result is float32, or of the type of a float image.
        mean: Mean of each channel in 0 to 1, (3,).
        std: Standard deviation of each channel, (3,).
    """
    import torch

    scale = 255.0 if image.dtype == torch.uint8 else 1.0
    dtype = image.dtype if image.is_floating_point() else torch.float32
    numbers = tuple(1 / (scale * s) for s in std), tuple(-m / s for m, s in zip(mean, std, strict=True))
    factor, shift = constant(numbers, dtype, image.device)[:, :, None, None]
    return torch.addcmul(shift, image.to(dtype), factor)


# ---- audio -----------------------------------------------------------------------------------------------------------


def prepare_sounds(items: Sequence[tuple[np.ndarray, int]], *, rate: int, seconds: float, **settings: Any) -> Tensor:
    """Resample audio and compute the spectrograms for an audio tower, float32 (N, frames, bins) on the CPU.

    Waveforms have 16 bits in between, as in training. Longer audio is cut to the middle part (`clap`) or the first part
    (`kaldi`). Shorter audio is repeated and padded (`clap`), or its frames are padded with zeros (`kaldi`).

    Args:
        items: N audio clips, each a waveform (T,) of full scale -1 to 1 and its sampling rate in Hz.
        rate: Sampling rate of the tower in Hz.
        seconds: Length of a clip of the tower in seconds.
        **settings: Other settings of `AudioInput`.

    Raises:
        ValueError: If a clip is empty, is not (T,), or contains values that are infinite or NaN.
    """
    import torch

    length, kaldi = round(rate * seconds), settings["features"] == "kaldi"
    waves, lengths = np.empty((len(items), 1, length), np.int16), torch.empty(len(items), dtype=torch.long)
    for number, (samples, its_rate) in enumerate(items):
        if samples.ndim != 1 or not len(samples) or its_rate <= 0:
            raise ValueError(
                f"audio {number} is {samples.shape} at {its_rate} Hz; it must be (T,), T and sampling rate above 0"
            )
        if bad := int((~np.isfinite(samples)).sum()):
            raise ValueError(f"audio {number}: {bad} of {len(samples)} samples are infinite or NaN; leave this clip out")
        if its_rate != rate:
            import soxr

            samples = soxr.resample(samples, its_rate, rate)
            if not len(samples):
                raise ValueError(f"audio {number} is empty at {rate} Hz; leave this clip out")
        lengths[number] = min(len(samples), length)
        waves[number] = crop_or_pad(samples, length, "start" if kaldi else "center", "silence" if kaldi else "repeat")
    return log_mel(torch.from_numpy(waves), rate=rate, lengths=lengths if kaldi else None, **settings)[:, 0]


def crop_or_pad(
    wave: np.ndarray,
    samples: int,
    cut: Literal["start", "center"] | np.random.Generator = "start",
    pad: Literal["silence", "repeat"] = "silence",
) -> np.ndarray:
    """Cut or pad a waveform to a fixed length, int16 (1, samples).

    Args:
        wave: (T,), float of full scale -1 to 1, or int16.
        samples: Length of the result.
        cut: Part of a longer waveform that is kept; a Generator draws it.
        pad: Padding of a shorter waveform. "silence": zeros. "repeat": as many complete copies of the waveform as fit, then
            zeros (CLAP's "repeatpad"; Zhao et al. 2023). An empty waveform becomes zeros either way.
    """
    excess = max(0, len(wave) - samples)
    if isinstance(cut, np.random.Generator):
        start = int(cut.integers(excess + 1, size=1)[0])
    else:
        start = excess // 2 if cut == "center" else 0
    part = wave[start : start + samples]
    if part.dtype != np.int16:
        part = np.clip(np.rint(part * 32768.0), -32768, 32767).astype(np.int16)
    copies = samples // len(part) if pad == "repeat" and len(part) else 1
    view = np.zeros((1, samples), np.int16)
    view[0, : copies * len(part)] = np.tile(part, copies)
    return view


def window_and_hop(rate: int) -> tuple[int, int]:
    """Return the number of samples of Kaldi's windows of 25 ms, and of the 10 ms between the starts of two windows."""
    return rate * 25 // 1000, rate // 100


def samples_for(rate: int, frames: int) -> int:
    """Return the number of waveform samples that `frames` of Kaldi's frames cover."""
    window, hop = window_and_hop(rate)
    return (frames - 1) * hop + window


def log_mel(
    waveform: Tensor,
    *,
    rate: int,
    bins: int,
    features: str = "kaldi",
    n_fft: int = 1024,
    hop: int = 480,
    low_hz: float = 50.0,
    high_hz: float = 14000.0,
    frames: int | None = None,
    lengths: Tensor | None = None,
) -> Tensor:
    """Compute log-mel spectrograms in float32, (B, V, frames, bins).

    `kaldi` is the filter bank of SSAST and AST (NonLing-CSE): the waveform minus its mean, frames of 25 ms every 10 ms
    without padding at the edges (snip_edges), each minus its mean, pre-emphasis 0.97, symmetric Hann window, power spectrum,
    mel filters from 20 Hz, natural log with a floor, without dither and energy. `clap` is CLAP's (Zhao et al. 2023): frames
    centred on every `hop`-th sample (with mirrored edges), periodic Hann window, power spectrum, Slaney's mel filters,
    decibels (10 log10) with a floor of 1e-10 and without a ceiling.

    Args:
        waveform: (B, V, T), float of full scale -1 to 1, or int16 (divided by 32768); for `clap` T > n_fft / 2.
        rate: Sampling rate in Hz.
        bins: Number of mel filters.
        features: `kaldi` or `clap`.
        n_fft: Length of a window in samples, for `clap`.
        hop: Number of samples between the starts of two windows, for `clap`.
        low_hz: Lower edge of the first mel filter in Hz, for `clap`.
        high_hz: Upper edge of the last mel filter in Hz, for `clap`.
        frames: Number of frames of the result: the first frames, or all frames and then zeros. If None, all frames.
        lengths: Number of samples of each waveform without padding, (B,), for `kaldi`: frames that contain padding are
            zeros. If None, padding is treated as audio.
    """
    import torch

    kaldi = features == "kaldi"
    filters = mel_filters(rate, bins, features, n_fft, low_hz, high_hz, waveform.device)
    window, hop = window_and_hop(rate) if kaldi else (n_fft, hop)
    if frames is None:
        frames = max(0, (waveform.shape[-1] - window) // hop + 1) if kaldi else waveform.shape[-1] // hop + 1
    wave = _without_mean(_full_scale(waveform), lengths)[..., : samples_for(rate, frames)] if kaldi else waveform
    result = torch.zeros(*wave.shape[:2], frames, bins, device=wave.device)
    if kaldi and wave.shape[-1] < window:
        return result
    taper = torch.hann_window(window, periodic=not kaldi, device=wave.device)
    # One clip at a time fits into the cache of a CPU (2.5 times faster at the paper's size). On other devices several clips,
    # so that memory does not grow with B.
    clips = 1 if wave.device.type == "cpu" else 64
    for part, place in zip(wave.split(clips), result.split(clips), strict=True):
        if kaldi:
            frame = part.unfold(-1, window, hop)
            frame = frame - frame.mean(-1, keepdim=True)
            frame = frame - 0.97 * torch.cat([frame[..., :1], frame[..., :-1]], -1)
        else:
            padded = torch.nn.functional.pad(_full_scale(part), (n_fft // 2, (n_fft + 1) // 2), mode="reflect")
            frame = padded.unfold(-1, window, hop)[..., :frames, :]
        power = torch.view_as_real(torch.fft.rfft(frame * taper, 2 * len(filters) - 2 if kaldi else n_fft)).square().sum(-1)
        with torch.autocast(wave.device.type, enabled=False):  # half precision is too coarse for mel energies
            energy = (power @ filters).clamp_min_(LOG_FLOOR if kaldi else CLAP_FLOOR)
        place[..., : energy.shape[-2], :] = energy.log_() if kaldi else energy.log10_().mul_(10)
    if lengths is not None:
        whole = (lengths.to(wave.device) - window).div(hop, rounding_mode="floor") + 1
        padding = torch.arange(frames, device=wave.device) >= whole[:, None]
        result.masked_fill_(padding[:, None, :, None], 0)
    return result


@lru_cache(maxsize=32)
def mel_filters(
    rate: int,
    bins: int,
    features: str = "kaldi",
    n_fft: int = 1024,
    low_hz: float = 50.0,
    high_hz: float = 14000.0,
    device: torch.device | None = None,
) -> Tensor:
    """Compute the triangular filters of `log_mel`, float32 (fft / 2 + 1, bins); callers must not write to the cached result.

    The filters of `kaldi` are triangles in mel from 20 Hz to rate / 2; `clap` has Slaney's filters with their normalisation.
    The arguments equal `log_mel`'s, and the device of the result (None: the CPU).

    Raises:
        ValueError: If the edges are outside 0 to rate / 2, or a filter is between two frequencies of the Fourier transform
            and would always be empty. The only exception is the paper's filter bank (16 kHz, 128 bins; NonLing-CSE and
            SSAST): its filter 3 (from 0) is empty in the reference as well, and stays at the log floor.
    """
    import torch
    from transformers.audio_utils import mel_filter_bank

    kaldi = features == "kaldi"
    if kaldi:
        window, _ = window_and_hop(rate)
        n_fft, low_hz, high_hz = 1 << (window - 1).bit_length(), 20.0, rate / 2
    if not 0 <= low_hz < high_hz <= rate / 2:
        raise ValueError(
            f"log-mel: low_hz={low_hz:g}, high_hz={high_hz:g}, rate={rate}; 0 <= low_hz < high_hz <= rate / 2 = {rate / 2:g}"
        )
    norm, scale = (None, "kaldi") if kaldi else ("slaney", "slaney")

    def make(count: int) -> np.ndarray:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # empty filters, which are an error here
            return mel_filter_bank(
                n_fft // 2 + 1, count, low_hz, high_hz, rate, norm, scale, triangularize_in_mel_space=kaldi
            )

    filters = make(bins)
    empty = int((filters.max(0) == 0).sum())
    if empty and (features, rate, bins) != ("kaldi", 16000, 128):
        allowed = next((number for number in range(bins - 1, 0, -1) if make(number).max(0).all()), 0)
        raise ValueError(
            f"log-mel: {empty} of bins={bins} mel filters are empty at rate={rate}, n_fft={n_fft}, {low_hz:g} to "
            f"{high_hz:g} Hz; the largest number of bins without an empty filter is {allowed}: lower bins, or raise "
            f"{'rate' if kaldi else 'n_fft'}"
        )
    return torch.from_numpy(filters.astype(np.float32)).to(device or "cpu")


def _full_scale(waveform: Tensor) -> Tensor:
    """Return samples as float of full scale -1 to 1; int16 is divided by 32768."""
    return waveform.float() if waveform.is_floating_point() else waveform.float() / 32768


def _without_mean(wave: Tensor, lengths: Tensor | None) -> Tensor:
    """Subtract the mean from waveforms (B, V, T); padding after `lengths` (B,) samples stays 0."""
    import torch

    if lengths is None:
        return wave - wave.mean(-1, keepdim=True)
    inside = (torch.arange(wave.shape[-1], device=wave.device) < lengths.to(wave.device)[:, None])[:, None].float()
    mean = (wave * inside).sum(-1, keepdim=True) / inside.sum(-1, keepdim=True).clamp_min(1)
    return (wave - mean) * inside
