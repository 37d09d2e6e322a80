"""A small synthesiser of audio clips, with classes (timbre, contour or envelope) or with captions.

Captions name independent attributes, and every combination of attributes belongs to one split. In `val` and `test` each
combination has a single clip, so that every caption has exactly one right answer.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from multicse.data.order import permutation, seed_of
from multicse.data.shard_writer import UnpackedSample

Maker = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]
"""Function from times in seconds (T,), pitch in Hz and a generator to a waveform (T,) of about -1 to 1."""


def _tone(time: np.ndarray, pitch: float | np.ndarray) -> np.ndarray:
    """Return a sine whose pitch may change from sample to sample."""
    frequency = np.broadcast_to(pitch, time.shape)
    return np.sin(2 * np.pi * np.cumsum(frequency) * (time[1] - time[0]))


def _sine(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return _tone(time, pitch)


def _square(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    # Odd harmonics below half the sampling rate: a clipped sine would alias.
    nyquist = 0.5 / (time[1] - time[0])
    return sum((_tone(time, n * pitch) / n for n in range(1, 40, 2) if n * pitch < nyquist), np.zeros_like(time))


def _sweep_up(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return _tone(time, pitch * 2 ** (1.5 * time / time[-1]))


def _sweep_down(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return _tone(time, pitch * 2 ** (1.5 * (1 - time / time[-1])))


def _noise(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return 0.4 * rng.standard_normal(len(time)) * np.exp(-time * pitch / 100)


def _noise_band(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    """Return a decaying burst of noise about an octave wide, (T,), so that noise has a pitch."""
    frequencies = np.fft.rfftfreq(len(time), time[1] - time[0])
    octaves = np.log2(np.maximum(frequencies, 1) / pitch)
    spectrum = np.fft.rfft(rng.standard_normal(len(time))) * np.exp(-((2 * octaves) ** 2))
    return np.fft.irfft(spectrum, len(time)) * np.exp(-3 * time)


def _fade(time: np.ndarray) -> np.ndarray:
    """Return factors (T,) for times (T,) that fade a clip in and out within 10 ms, so that it does not click."""
    return np.minimum(1, np.minimum(time, time[::-1]) / 0.01)


def _pluck(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    # A plucked string: higher harmonics are weaker and decay faster.
    partials = (_tone(time, n * pitch) / n * np.exp(-3.0 * n * time) for n in range(1, 7))
    return sum(partials, np.zeros_like(time))


def _sine_with_tremolo(time: np.ndarray, pitch: float, speed: float) -> np.ndarray:
    """Return a sine (T,) with a tremolo of `speed` Hz."""
    return _tone(time, pitch) * (0.5 + 0.5 * np.sin(2 * np.pi * speed * time))


def _tremolo(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return _sine_with_tremolo(time, pitch, rng.uniform(6, 10))


def _chord(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return (_tone(time, pitch) + _tone(time, pitch * 2 ** (4 / 12)) + _tone(time, pitch * 2 ** (7 / 12))) / 3


AUDIO_CLASSES: dict[str, Maker] = {
    "sine": _sine,
    "square": _square,
    "sweep up": _sweep_up,
    "sweep down": _sweep_down,
    "noise burst": _noise,
    "pluck": _pluck,
    "tremolo": _tremolo,
    "chord": _chord,
}


def synth_audio(
    per_class: int = 100, rate: int = 8000, seconds: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Synthesise clips whose class is their timbre, contour or envelope; pitch, loudness, onset and noise are random.

    Args:
        per_class: Number of clips per class.
        rate: Sampling rate in Hz.
        seconds: Length of a clip in seconds.
        seed: Seed of all randomness.

    Returns:
        Waveforms int16 (8 * per_class, rate * seconds), and their `AUDIO_CLASSES` int64 (8 * per_class,), sorted by class.
    """
    length = round(rate * seconds)
    waves = np.zeros((len(AUDIO_CLASSES) * per_class, length), np.int16)
    for label, make in enumerate(AUDIO_CLASSES.values()):
        for i in range(per_class):
            rng = np.random.default_rng(seed_of(seed, label, i))
            onset = int(rng.uniform(0, 0.2) * length)
            time = np.arange(length - onset) / rate
            wave = make(time, float(rng.uniform(150, 600)), rng)
            clip = rng.normal(0, rng.uniform(0.001, 0.01), length)
            clip[onset:] += rng.uniform(0.2, 0.7) * _fade(time) * wave / max(1.0, np.abs(wave).max())
            waves[label * per_class + i] = np.clip(np.rint(clip * 32767), -32768, 32767)
    return waves, np.repeat(np.arange(len(AUDIO_CLASSES)), per_class)


# --------------------------------------------------------------------------------------------------- audio with captions

RATE = 8000
"""Sampling rate in Hz; the length of every clip is one second."""

KINDS: dict[str, tuple[tuple[str, str], ...]] = {
    "sine": (("pure tone", "pure tones"), ("sine tone", "sine tones")),
    "square": (("buzz", "buzzes"), ("square wave", "square waves")),
    "sweep up": (("rising sweep", "rising sweeps"), ("upward glide", "upward glides")),
    "sweep down": (("falling sweep", "falling sweeps"), ("downward glide", "downward glides")),
    "noise burst": (("burst of noise", "bursts of noise"), ("noise burst", "noise bursts")),
    "pluck": (("plucked string", "plucked strings"), ("string pluck", "string plucks")),
    "tremolo": (("trembling tone", "trembling tones"), ("tremolo", "tremolos")),
    "chord": (("chord", "chords"), ("three-note chord", "three-note chords")),
}
"""Class -> its names in captions, singular and plural."""
PITCHES: dict[str, tuple[float, float]] = {"low": (140, 180), "middle": (330, 420), "high": (800, 1000)}
"""Range of the pitch in Hz."""
LOUDNESSES: dict[str, tuple[float, float]] = {"quiet": (0.04, 0.08), "loud": (0.5, 0.9)}
"""Range of the peak, as a share of full scale."""
STARTS: dict[str, tuple[float, float]] = {"at once": (0.0, 0.03), "late": (0.3, 0.34)}
"""Range of the start in seconds."""
LENGTHS: dict[str, tuple[float, float]] = {"short": (0.10, 0.13), "long": (0.24, 0.27)}
"""Range of the length of an event in seconds."""
COUNTS = {"once": 1, "twice": 2}
"""Number of events."""
GAP = 0.08
"""Pause between two events in seconds."""

HELD_OUT = {"val": 48, "test": 128}
"""Number of combinations, and of clips, of the splits for evaluation."""
PER_COMBINATION = 6
"""Number of clips per combination in `train`."""

_WORDS = {
    "low": ("low", "deep"),
    "middle": ("medium", "mid-range"),
    "high": ("high", "high-pitched"),
    "quiet": ("quiet", "faint"),
    "loud": ("loud", "strong"),
    "short": ("short", "brief"),
    "long": ("long", "lasting"),
}
"""Words for an attribute in captions."""


class Combination(NamedTuple):
    """Attributes of a captioned clip."""

    kind: str
    pitch: str
    loudness: str
    start: str
    length: str
    times: str


def combinations(split: str) -> list[Combination]:
    """Return the combinations of a split: 208 of `train`, 48 of `val`, 128 of `test`, without overlap."""
    every = [Combination(*parts) for parts in product(KINDS, PITCHES, LOUDNESSES, STARTS, LENGTHS, COUNTS)]
    mixed = [every[i] for i in permutation(len(every), seed_of("captioned sounds"))]
    first = 0
    for name, size in [*HELD_OUT.items(), ("train", len(every) - sum(HELD_OUT.values()))]:
        if name == split:
            return mixed[first : first + size]
        first += size
    raise ValueError(f"split {split!r} of captioned audio does not exist; choose from train, {', '.join(HELD_OUT)}")


def _waveform(what: Combination, rng: np.random.Generator) -> np.ndarray:
    """Synthesise a clip of one second with given attributes, int16 (RATE,)."""
    pitch, peak, start, length = (
        rng.uniform(*bounds)
        for bounds in (PITCHES[what.pitch], LOUDNESSES[what.loudness], STARTS[what.start], LENGTHS[what.length])
    )
    time = np.arange(round(length * RATE)) / RATE
    event = _event(what.kind, time, pitch, rng)
    event = peak * _fade(time) * event / np.abs(event).max()
    clip = rng.normal(0, 0.001, RATE)
    for number in range(COUNTS[what.times]):
        first = round((start + number * (length + GAP)) * RATE)
        clip[first : first + len(event)] += event
    return np.clip(np.rint(clip * 32767), -32768, 32767).astype(np.int16)


def _event(kind: str, time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    """Return an event of `AUDIO_CLASSES`, but noise with a pitch, and a tremolo that is fast enough for a short event."""
    if kind == "noise burst":
        return _noise_band(time, pitch, rng)
    if kind == "tremolo":
        return _sine_with_tremolo(time, pitch, rng.uniform(16, 20))
    return AUDIO_CLASSES[kind](time, pitch, rng)


def captions(what: Combination, rng: np.random.Generator) -> list[str]:
    """Make four captions that each name all attributes in random words."""

    def words() -> dict[str, str]:
        two = what.times == "twice"
        names = KINDS[what.kind]
        chosen = {name: _WORDS[value][rng.integers(2)] for name, value in what._asdict().items() if value in _WORDS}
        return {
            **chosen,
            "name": names[rng.integers(len(names))][0],
            "names": names[rng.integers(len(names))][two],
            "a": "two" if two else "a",
            "s": "" if two else "s",
            "times": "twice" if two else "once",
            "when": "after a pause" if what.start == "late" else "right away",
            "first": "after silence" if what.start == "late" else "from the beginning",
        }

    return [
        "{a} {length} {loudness} {pitch} {names} that start{s} {when}".format(**words()),
        "a {pitch} {name}, {loudness} and {length}, is heard {times}, {first}".format(**words()),
        "{first}, {a} {loudness} {length} {names} of {pitch} pitch".format(**words()),
        "the sound of {a} {loudness}, {pitch}, {length} {names} starting {when}".format(**words()),
    ]


def drafts(split: str) -> Iterator[UnpackedSample]:
    """Yield the clips of a split, `wav` and `json`: 1,248 of `train`, 48 of `val`, 128 of `test`."""
    import soundfile

    for what in combinations(split):
        for number in range(PER_COMBINATION if split == "train" else 1):
            rng = np.random.default_rng(seed_of("captioned sounds", *what, number))
            data = io.BytesIO()
            soundfile.write(data, _waveform(what, rng), RATE, format="WAV", subtype="PCM_16")
            record = {"captions": captions(what, rng), **what._asdict()}
            yield UnpackedSample({"wav": data.getvalue(), "json": json.dumps(record).encode()})
