"""Partial word vector augmentation (PWVA; GCLSR): noise on word vectors, in batch on the device.

Every word draws one of four kinds of augmentation and, with a probability, is replaced by its augmented vector. `form`
selects the formulas: of the paper, of its released code, which differ in all four kinds, or of the code without the
errors in its zeros. All functions return a new tensor (N, d). A generator on the CPU selects the same words and places on
every device.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

Form = Literal["paper", "released", "fixed"]

NOISE, DROPOUT = 0.1, 0.1
"""Standard deviation of the paper's noise (lambda), and share of its zeros; the paper gives neither."""
SNR = (6, 11)
"""Range of the signal-to-noise ratio of the released noise in decibels: integers, both ends included."""
RUNS = (15, 19)
"""Range of the number of runs of components that the released code sets to zero, both ends included."""
LONGER = 0.1 / 1.1
"""Probability that the released code rounds the length of a run, drawn from [1, 2.1), to 2."""
BACKGROUND = 0.1
"""Upper end of the paper's background, which is uniform from 0."""
LOUDNESS = 0.01
"""Upper end of the factor of the released background, which is uniform from 0, one per word."""


@torch.no_grad()
def pwva(
    words: Tensor,
    generator: torch.Generator,
    *,
    kinds: tuple[float, float, float, float],
    partial: float,
    form: Form,
    noise: float = NOISE,
    dropout: float = DROPOUT,
) -> Tensor:
    """Make one augmented view of packed word vectors (GCLSR).

    On a CPU only the vectors that are kept are computed, which does not change their distribution. On a GPU all four kinds
    are computed for all words: otherwise the host would have to wait for the kinds.

    Args:
        words: Word vectors, float (N, d); N may be 0.
        generator: Source of all randomness.
        kinds: Weights of noise, zeros, background and Fourier (the paper's GWN, RZS, RBN and IFFT), at least 0; they need
            not sum to one.
        partial: Share of the words that are replaced by augmented vectors: 1 is full augmentation, 0 none.
        form: Formulas of the paper, of the released code, or of the code with its intended runs of zeros.
        noise: Standard deviation of the paper's noise (lambda).
        dropout: Share of components that the paper's zeros replace.

    Returns:
        (N, d), a new tensor; unchanged words are bitwise equal to `words`.
    """
    changes: tuple[Callable[[Tensor], Tensor], ...] = (
        lambda own: gaussian_noise(own, generator, form, noise),
        lambda own: random_zeros(own, generator, form, dropout),
        lambda own: background_noise(own, generator, form),
        lambda own: fourier(own, form),
    )
    result = words.clone()
    draws = torch.rand(len(words), generator=generator, device=generator.device).to(words.device)
    drawn = _drawn_kinds(draws, kinds, partial)
    for kind, change in enumerate(changes):
        if words.device.type != "cpu":
            result = torch.where((drawn == kind)[:, None], change(words), result)
        elif len(rows := (drawn == kind).nonzero()[:, 0]):
            result.index_copy_(0, rows, change(words.index_select(0, rows)))
    return result


def _drawn_kinds(draws: Tensor, kinds: tuple[float, ...], partial: float) -> Tensor:
    """Return the kind of each word, (N,), from uniform draws (N,): `kinds` are shares of [0, partial); 4: the word stays."""
    total = sum(kinds)
    # The last value of accumulate is the total, so the last share ends exactly at `partial`.
    return torch.stack([draws.double() >= partial * (part / total) for part in accumulate(kinds)]).sum(0)


@torch.no_grad()
def gaussian_noise(words: Tensor, generator: torch.Generator, form: Form, noise: float = NOISE) -> Tensor:
    """Add normal noise to every component (GWN).

    Paper: w + noise * N(0, 1). Otherwise the noise of a word is 6 to 11 dB (an integer) below its power ||w||²/d.

    Args:
        words: (N, d).
        generator: Source of all randomness.
        form: Formulas.
        noise: Standard deviation of the paper's noise.
    """
    normal = torch.randn(words.shape, generator=generator, device=generator.device).to(words)
    if form == "paper":
        return torch.add(words, normal, alpha=noise)
    decibel = torch.randint(SNR[0], SNR[1] + 1, (len(words), 1), generator=generator, device=generator.device)
    size = torch.linalg.vector_norm(words, dim=1, keepdim=True) / words.shape[1] ** 0.5
    return torch.addcmul(words, normal, size * 10 ** (decibel.to(words) / -20))


@torch.no_grad()
def random_zeros(words: Tensor, generator: torch.Generator, form: Form, dropout: float = DROPOUT) -> Tensor:
    """Set components to zero (RZS).

    Paper: Dropout(w). Otherwise 15 to 19 runs of 1 or 2 consecutive components, at independent places that may overlap.
    Fixed: both lengths are equally likely, and runs may be anywhere. Released: half of the words have runs of 1 only, the
    other half runs of 2 in one of eleven cases, and no run reaches the last component, which gives 17.3 zeros of 300
    instead of 24.5.

    Args:
        words: (N, d).
        generator: Source of all randomness.
        form: Formulas.
        dropout: Share of components that the paper's zeros replace.
    """
    if form == "paper":
        kept = _uniform(words, generator, words.shape[1]) >= dropout
        return kept.to(words.dtype).mul_(1 / (1 - dropout)).mul_(words)
    count, size = words.shape
    longer: Tensor | float = 0.5
    reached = size
    if form == "released":
        longer = LONGER * (_uniform(words, generator, 1) < 0.5)
        reached = max(1, size - 1)
    draws = torch.rand(count, 2 * RUNS[1] + 1, generator=generator, device=generator.device).to(words.device)
    length = (draws[:, : RUNS[1]] >= 1 - longer).long() + 1
    length.clamp_(max=reached)
    start = (draws[:, RUNS[1] : -1] * (reached - length + 1)).long()
    runs = RUNS[0] + (draws[:, -1:] * (RUNS[1] - RUNS[0] + 1)).long()
    unused = torch.arange(RUNS[1], device=words.device) >= runs
    # An unused run repeats the first one, which is always used.
    start = torch.where(unused, start[:, :1], start)
    length = torch.where(unused, length[:, :1], length)
    return words.scatter(1, torch.cat([start, start + length - 1], 1), 0.0)


@torch.no_grad()
def background_noise(words: Tensor, generator: torch.Generator, form: Form) -> Tensor:
    """Add uniform noise to every component (RBN).

    Paper: w + U(0, 0.1). Otherwise w + u * U(min w, 0.8 max w), where u is one number per word, uniform in [0, 0.01).

    Args:
        words: (N, d).
        generator: Source of all randomness.
        form: Formulas.
    """
    uniform = _uniform(words, generator, words.shape[1])
    if form == "paper":
        return torch.add(words, uniform, alpha=BACKGROUND)
    loudness = _uniform(words, generator, 1).mul_(LOUDNESS)
    low, high = words.amin(1, keepdim=True), words.amax(1, keepdim=True)  # aminmax is eight times slower on the CPU
    # low + (high - low) * uniform, also if 0.8 max w is below min w, as in NumPy's uniform.
    return torch.addcmul(words, uniform.mul_(0.8 * high - low).add_(low), loudness)


@torch.no_grad()
def fourier(words: Tensor, form: Form) -> Tensor:
    """Return the real part of the inverse Fourier transform of the Fourier transform of a word (IFFT), in closed form.

    Paper: the result for w, which is w. Otherwise the result for w - mean(w), to which the mean is not added back.

    Args:
        words: (N, d).
        form: Formulas.
    """
    return words.clone() if form == "paper" else words - words.mean(1, keepdim=True)


def _uniform(words: Tensor, generator: torch.Generator, columns: int) -> Tensor:
    """Draw uniform numbers in [0, 1), (N, columns), with the type and device of the words."""
    return torch.rand(len(words), columns, generator=generator, device=generator.device).to(words)
