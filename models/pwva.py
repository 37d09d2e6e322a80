"""Partial word vector augmentation (PWVA; GCLSR): noise on word vectors, in batch on the device.

Every word draws one of four kinds, and keeps the augmented vector with a probability, else its own. `form` says whose
formulas are used: the paper's, those of its released code, which differ in all four kinds, or the latter without the slips
of its zeros. Words are packed: the rows of an (N, d) matrix, whatever sentences they belong to. All draws come from the
given torch.Generator; it may live on any device, and one on the CPU gives the same words and places on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

Form = Literal["paper", "released", "fixed"]

NOISE, DROPOUT = 0.1, 0.1
"""The paper's lambda, standard deviation of its noise, and share of components that its zeros take; it gives neither."""
SNR = (6, 11)
"""Signal-to-noise ratios of the released noise: whole decibels, both ends included."""
RUNS = (15, 19)
"""How many runs of components the released code sets to zero, both ends included."""
LONGER = 0.1 / 1.1
"""How often it rounds what it draws from [1, 2.1) for the length of a run to 2."""
BACKGROUND = 0.1
"""The paper's background is uniform in [0, this)."""
LOUDNESS = 0.01
"""The released background is scaled by one factor a word, uniform in [0, this)."""


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
    """One augmented view of packed word vectors (GCLSR); call it once for every view.

    On a CPU a vector that would not be kept is never computed, which changes no probability. A GPU computes all four kinds
    of all words: the host would have to wait for it to know which words have which kind.

    Args:
        words: float (N, d); N may be 0.
        generator: source of all randomness.
        kinds: weights of noise, zeros, background and Fourier (the paper's GWN, RZS, RBN and IFFT), at least 0; they need
            not sum to one.
        partial: share of the words that keep the augmented vector: 1 is full augmentation, 0 none.
        form: formulas of the paper, of the released code, or of the code with runs of zeros as it asks for them.
        noise: the paper's lambda, the standard deviation of its noise.
        dropout: share of components that the paper's zeros take.

    Returns:
        (N, d), a new tensor; words that are not changed are equal to the given ones, bit for bit.
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
    """Kind of each word, (N,), by one uniform draw (N,) each: [0, partial) is cut in shares of `kinds`; 4: a word stays."""
    total = sum(kinds)
    # Through accumulate, whose last value is the total: the last share ends at `partial` exactly.
    return torch.stack([draws.double() >= partial * (part / total) for part in accumulate(kinds)]).sum(0)


@torch.no_grad()
def gaussian_noise(words: Tensor, generator: torch.Generator, form: Form, noise: float = NOISE) -> Tensor:
    """GWN: normal noise on every component of (N, d).

    Paper: w + noise * N(0, 1). Released: the noise of a word is 6 to 11 dB (a whole number) below its power ||w||²/d.
    """
    normal = torch.randn(words.shape, generator=generator, device=generator.device).to(words)
    if form == "paper":
        return torch.add(words, normal, alpha=noise)
    decibel = torch.randint(SNR[0], SNR[1] + 1, (len(words), 1), generator=generator, device=generator.device)
    size = torch.linalg.vector_norm(words, dim=1, keepdim=True) / words.shape[1] ** 0.5
    return torch.addcmul(words, normal, size * 10 ** (decibel.to(words) / -20))


@torch.no_grad()
def random_zeros(words: Tensor, generator: torch.Generator, form: Form, dropout: float = DROPOUT) -> Tensor:
    """RZS: components of (N, d) are set to zero.

    Paper: Dropout(w). Otherwise 15 to 19 runs of 1 or 2 consecutive components, whose places are independent and may
    overlap; the others stay. Fixed: both lengths are as likely, and runs lie anywhere. Released: half of the words have runs
    of 1 only, the others of 2 in one of eleven cases, and no run reaches the last component: 17.3 zeros of 300, not 24.5.
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
    # A run that is not used repeats the first one, which always is.
    start = torch.where(unused, start[:, :1], start)
    length = torch.where(unused, length[:, :1], length)
    return words.scatter(1, torch.cat([start, start + length - 1], 1), 0.0)


@torch.no_grad()
def background_noise(words: Tensor, generator: torch.Generator, form: Form) -> Tensor:
    """RBN: uniform noise on every component of (N, d).

    Paper: w + U(0, 0.1). Released: w + u * U(min w, 0.8 max w), u one number a word, uniform in [0, 0.01).
    """
    uniform = _uniform(words, generator, words.shape[1])
    if form == "paper":
        return torch.add(words, uniform, alpha=BACKGROUND)
    loudness = _uniform(words, generator, 1).mul_(LOUDNESS)
    low, high = words.amin(1, keepdim=True), words.amax(1, keepdim=True)  # aminmax is eight times slower on the CPU
    # low + (high - low) * uniform also where 0.8 max w lies below min w, as NumPy's uniform has it.
    return torch.addcmul(words, uniform.mul_(0.8 * high - low).add_(low), loudness)


@torch.no_grad()
def fourier(words: Tensor, form: Form) -> Tensor:
    """IFFT: the real part of the inverse Fourier transform of the Fourier transform of (N, d), in closed form.

    Paper: that of w, which is w. Released: that of w - mean(w), whose mean is not added back, so it is w - mean(w).
    """
    return words.clone() if form == "paper" else words - words.mean(1, keepdim=True)


def _uniform(words: Tensor, generator: torch.Generator, columns: int) -> Tensor:
    """Uniform in [0, 1): (N, columns), of the words' type and on their device."""
    return torch.rand(len(words), columns, generator=generator, device=generator.device).to(words)
