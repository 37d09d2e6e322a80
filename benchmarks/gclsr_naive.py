"""GCLSR's augmentation as one would first write it: a loop over words, in NumPy. And how long both forms take.

python benchmarks/gclsr_naive.py [--sentences 512] [--words 20] [--dim 300] [--threads 1] [--rounds 10] [--device cpu]

The batch form is `models/pwva.py`. Both sides run in turn in this process on the same words; one JSON line for every form
and share of augmented words.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from models.pwva import Form, pwva

RELEASED_KINDS = (0.5, 0.2, 0.2, 0.1)


def naive_noise(word: np.ndarray, rng: np.random.Generator, form: Form, noise: float = 0.1) -> np.ndarray:
    """GWN of one word (d,)."""
    if form == "paper":
        return word + noise * rng.standard_normal(len(word))
    snr = rng.integers(6, 12)
    power = np.sum(word**2) / len(word)
    return word + rng.standard_normal(len(word)) * np.sqrt(power / 10 ** (snr / 10))


def naive_zeros(word: np.ndarray, rng: np.random.Generator, form: Form, dropout: float = 0.1) -> np.ndarray:
    """RZS of one word (d,)."""
    if form == "paper":
        return np.where(rng.random(len(word)) < dropout, 0.0, word / (1 - dropout))
    word = word.copy()
    for _ in range(rng.integers(15, 20)):
        length = int(rng.integers(1, 3))
        start = int(rng.integers(0, max(0, len(word) - length) + 1))
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
    words: np.ndarray,
    rng: np.random.Generator,
    *,
    kinds: tuple[float, float, float, float],
    partial: float,
    form: Form,
    noise: float = 0.1,
    dropout: float = 0.1,
) -> np.ndarray:
    """The words of one sentence, (n, d), one after the other; the arguments are those of `models.pwva.pwva`."""
    share = np.array(kinds) / sum(kinds)
    result = []
    for word in words:
        kind = rng.choice(4, p=share)
        if kind == 0:
            changed = naive_noise(word, rng, form, noise)
        elif kind == 1:
            changed = naive_zeros(word, rng, form, dropout)
        elif kind == 2:
            changed = naive_background(word, rng, form)
        else:
            changed = naive_fourier(word, rng, form)
        result.append(changed if rng.random() < partial else word)
    return np.array(result, words.dtype).reshape(words.shape)


def seconds_of(call: Callable[[], object], on: torch.device) -> float:
    if on.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    if on.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def compare(lengths: list[int], dim: int, form: Form, partial: float, rounds: int, on: torch.device) -> dict[str, object]:
    """Median seconds of one view of the sentences, word by word and in batch; the naive side's words lie on the CPU."""
    rng, generator = np.random.default_rng(0), torch.Generator(on).manual_seed(0)
    sentences = [rng.normal(0, 0.3, (length, dim)).astype(np.float32) for length in lengths]
    packed = torch.from_numpy(np.concatenate(sentences)).to(on)

    def naive() -> None:
        for sentence in sentences:
            pwva_naive(sentence, rng, kinds=RELEASED_KINDS, partial=partial, form=form)

    def batch() -> None:
        pwva(packed, generator, kinds=RELEASED_KINDS, partial=partial, form=form)

    sides: dict[str, Callable[[], None]] = {"naive": naive, "batch": batch}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):  # the first round warms up
        for name, call in sides.items():
            took = seconds_of(call, on)
            if number:
                times[name].append(took)
    median = {name: statistics.median(values) for name, values in times.items()}
    ratios = sorted(a / b for a, b in zip(times["naive"], times["batch"], strict=True))
    return {
        "what": f"PWVA {form}, partial {partial:g}: {len(lengths)} sentences, {len(packed)} words of {dim}, batch on {on}",
        "naive_ms": round(1000 * median["naive"], 1),
        "batch_ms": round(1000 * median["batch"], 2),
        "times_faster": round(median["naive"] / median["batch"], 1),
        "least_and_most_of_a_round": [round(ratios[0], 1), round(ratios[-1], 1)],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sentences", type=int, default=512, help="sentences of a batch")
    parser.add_argument("--words", type=int, default=20, help="words of a sentence on average")
    parser.add_argument("--dim", type=int, default=300, help="components of a word vector")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch")
    parser.add_argument("--rounds", type=int, default=10, help="times that both sides take a turn")
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    half = given.words // 2
    lengths = np.random.default_rng(1).integers(given.words - half, given.words + half + 1, given.sentences).tolist()
    forms: tuple[Form, ...] = ("released", "paper")
    for form in forms:
        for partial in (0.5, 1.0):
            line = compare(lengths, given.dim, form, partial, given.rounds, torch.device(given.device))
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
