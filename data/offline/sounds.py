"""A small synthesiser: sounds whose class is their timbre, contour or envelope, and sounds with captions.

Captions name independent attributes, of which every combination belongs to one split: the sounds of `val` and `test`
combine attributes that training contains only apart. Each combination has a single sound there, so that every caption has
exactly one right answer.
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

Sound = Callable[[np.ndarray, float, np.random.Generator], np.ndarray]
"""Times in seconds (T,), pitch in Hz, randomness -> waveform (T,) of about -1 to 1."""


def _tone(time: np.ndarray, pitch: float | np.ndarray) -> np.ndarray:
    """A sine whose pitch may change from sample to sample."""
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


def noise_band(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    """A dying burst of noise about an octave wide, so that noise has a pitch: times (T,) -> waveform (T,)."""
    frequencies = np.fft.rfftfreq(len(time), time[1] - time[0])
    octaves = np.log2(np.maximum(frequencies, 1) / pitch)
    spectrum = np.fft.rfft(rng.standard_normal(len(time))) * np.exp(-((2 * octaves) ** 2))
    return np.fft.irfft(spectrum, len(time)) * np.exp(-3 * time)


def fade(time: np.ndarray) -> np.ndarray:
    """Factors (T,) that let a sound begin and end within 10 ms, so that nothing clicks."""
    return np.minimum(1, np.minimum(time, time[::-1]) / 0.01)


def _pluck(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    # A plucked string: higher harmonics are weaker and die sooner.
    partials = (_tone(time, n * pitch) / n * np.exp(-3.0 * n * time) for n in range(1, 7))
    return sum(partials, np.zeros_like(time))


def tremolo(time: np.ndarray, pitch: float, speed: float) -> np.ndarray:
    """A sine that swells and fades `speed` times a second: times (T,) -> waveform (T,)."""
    return _tone(time, pitch) * (0.5 + 0.5 * np.sin(2 * np.pi * speed * time))


def _tremolo(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return tremolo(time, pitch, rng.uniform(6, 10))


def _chord(time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    return (_tone(time, pitch) + _tone(time, pitch * 2 ** (4 / 12)) + _tone(time, pitch * 2 ** (7 / 12))) / 3


SOUND_CLASSES: dict[str, Sound] = {
    "sine": _sine,
    "square": _square,
    "sweep up": _sweep_up,
    "sweep down": _sweep_down,
    "noise burst": _noise,
    "pluck": _pluck,
    "tremolo": _tremolo,
    "chord": _chord,
}


def synth_sounds(
    per_class: int = 100, rate: int = 8000, seconds: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Short sounds whose class is their timbre, contour or envelope; pitch, loudness, onset and background noise vary.

    Returns:
        int16 (8 * per_class, T) with T = rate * seconds, and labels int64 of `SOUND_CLASSES`, class after class.
    """
    length = round(rate * seconds)
    waves = np.zeros((len(SOUND_CLASSES) * per_class, length), np.int16)
    for label, make in enumerate(SOUND_CLASSES.values()):
        for i in range(per_class):
            rng = np.random.default_rng(seed_of(seed, label, i))
            onset = int(rng.uniform(0, 0.2) * length)
            time = np.arange(length - onset) / rate
            wave = make(time, float(rng.uniform(150, 600)), rng)
            sound = rng.normal(0, rng.uniform(0.001, 0.01), length)
            sound[onset:] += rng.uniform(0.2, 0.7) * fade(time) * wave / max(1.0, np.abs(wave).max())
            waves[label * per_class + i] = np.clip(np.rint(sound * 32767), -32768, 32767)
    return waves, np.repeat(np.arange(len(SOUND_CLASSES)), per_class)


# -------------------------------------------------------------------------------------------------- sounds with captions

RATE = 8000
"""Samples per second; every sound takes a second."""

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
"""Class -> its names in captions, one and several."""
PITCHES: dict[str, tuple[float, float]] = {"low": (140, 180), "middle": (330, 420), "high": (800, 1000)}
"""Hertz."""
LOUDNESSES: dict[str, tuple[float, float]] = {"quiet": (0.04, 0.08), "loud": (0.5, 0.9)}
"""Largest value, of full scale."""
STARTS: dict[str, tuple[float, float]] = {"at once": (0.0, 0.03), "late": (0.3, 0.34)}
"""Seconds."""
LENGTHS: dict[str, tuple[float, float]] = {"short": (0.10, 0.13), "long": (0.24, 0.27)}
"""Seconds of one event."""
COUNTS = {"once": 1, "twice": 2}
"""Events."""
GAP = 0.08
"""Seconds between two events."""

HELD_OUT = {"val": 48, "test": 128}
"""Combinations, and sounds, of the splits that are not trained on."""
PER_COMBINATION = 6
"""Sounds of each combination in `train`."""

_WORDS = {
    "low": ("low", "deep"),
    "middle": ("medium", "mid-range"),
    "high": ("high", "high-pitched"),
    "quiet": ("quiet", "faint"),
    "loud": ("loud", "strong"),
    "short": ("short", "brief"),
    "long": ("long", "lasting"),
}
"""Ways to say an attribute."""


class Combination(NamedTuple):
    """What a captioned sound is, completely but for chance."""

    kind: str
    pitch: str
    loudness: str
    start: str
    length: str
    times: str


def combinations(split: str) -> list[Combination]:
    """The combinations of a split: 208 of `train`, 48 of `val`, 128 of `test`; no two splits share one."""
    every = [Combination(*parts) for parts in product(KINDS, PITCHES, LOUDNESSES, STARTS, LENGTHS, COUNTS)]
    mixed = [every[i] for i in permutation(len(every), seed_of("captioned sounds"))]
    first = 0
    for name, size in [*HELD_OUT.items(), ("train", len(every) - sum(HELD_OUT.values()))]:
        if name == split:
            return mixed[first : first + size]
        first += size
    raise ValueError(f"no split {split!r} of captioned sounds; there are train, {', '.join(HELD_OUT)}")


def waveform(what: Combination, rng: np.random.Generator) -> np.ndarray:
    """One second of it: int16 (RATE,)."""
    pitch, peak, start, length = (
        rng.uniform(*bounds)
        for bounds in (PITCHES[what.pitch], LOUDNESSES[what.loudness], STARTS[what.start], LENGTHS[what.length])
    )
    time = np.arange(round(length * RATE)) / RATE
    event = _event(what.kind, time, pitch, rng)
    event = peak * fade(time) * event / np.abs(event).max()
    sound = rng.normal(0, 0.001, RATE)
    for number in range(COUNTS[what.times]):
        first = round((start + number * (length + GAP)) * RATE)
        sound[first : first + len(event)] += event
    return np.clip(np.rint(sound * 32767), -32768, 32767).astype(np.int16)


def _event(kind: str, time: np.ndarray, pitch: float, rng: np.random.Generator) -> np.ndarray:
    """Return a sound of `SOUND_CLASSES`, but noise with a pitch, and a tremolo that is fast enough for a short event."""
    if kind == "noise burst":
        return noise_band(time, pitch, rng)
    if kind == "tremolo":
        return tremolo(time, pitch, rng.uniform(16, 20))
    return SOUND_CLASSES[kind](time, pitch, rng)


def captions(what: Combination, rng: np.random.Generator) -> list[str]:
    """Four captions, each of which tells all attributes, in words drawn for each of them."""

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
    """The sounds of a split, `wav` and `json`: 1,248 of `train`, 48 of `val`, 128 of `test`."""
    import soundfile

    for what in combinations(split):
        for number in range(PER_COMBINATION if split == "train" else 1):
            rng = np.random.default_rng(seed_of("captioned sounds", *what, number))
            data = io.BytesIO()
            soundfile.write(data, waveform(what, rng), RATE, format="WAV", subtype="PCM_16")
            record = {"captions": captions(what, rng), **what._asdict()}
            yield UnpackedSample({"wav": data.getvalue(), "json": json.dumps(record).encode()})
