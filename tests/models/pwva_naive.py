"""GCLSR's augmentation as one would first write it: a loop over words, in NumPy. The batch form is PWVA's in the product."""

from __future__ import annotations

import numpy as np

from models.pwva import Form


def naive_noise(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """GWN of one word (d,)."""
    if form == "paper":
        return word + 0.1 * rng.standard_normal(len(word))
    snr = rng.integers(6, 12)
    power = np.sum(word**2) / len(word)
    return word + rng.standard_normal(len(word)) * np.sqrt(power / 10 ** (snr / 10))


def naive_zeros(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """RZS of one word (d,)."""
    if form == "paper":
        return np.where(rng.random(len(word)) < 0.1, 0.0, word / 0.9)
    word, longest = word.copy(), int(rng.integers(1, 3))
    for _ in range(rng.integers(15, 20)):
        if form == "fixed":
            length, last = int(rng.integers(1, 3)), len(word)
        else:
            length, last = int(rng.uniform(1, longest + 0.1)), len(word) - 1
        start = int(rng.integers(0, max(0, last - length) + 1))
        word[start : start + length] = 0
    return word


def naive_background(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """RBN of one word (d,)."""
    if form == "paper":
        return word + rng.uniform(0, 0.1, len(word))
    low, high = word.min(), 0.8 * word.max()
    return word + rng.uniform(0, 0.01) * (low + (high - low) * rng.random(len(word)))


def naive_fourier(word: np.ndarray, rng: np.random.Generator, form: Form) -> np.ndarray:
    """IFFT of one word (d,)."""
    return np.fft.ifft(np.fft.fft(word if form == "paper" else word - word.mean())).real


def pwva_naive(
    words: np.ndarray, rng: np.random.Generator, *, kinds: tuple[float, float, float, float], partial: float, form: Form
) -> np.ndarray:
    """The words of one sentence, (n, d), one after the other; the arguments are those of `models.pwva.pwva`."""
    share = np.array(kinds) / sum(kinds)
    result = []
    for word in words:
        kind = rng.choice(4, p=share)
        if kind == 0:
            changed = naive_noise(word, rng, form)
        elif kind == 1:
            changed = naive_zeros(word, rng, form)
        elif kind == 2:
            changed = naive_background(word, rng, form)
        else:
            changed = naive_fourier(word, rng, form)
        result.append(changed if rng.random() < partial else word)
    return np.array(result, words.dtype).reshape(words.shape)
