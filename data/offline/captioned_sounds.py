"""Sounds with captions that say what can be heard, put together from independent attributes; computed here, no download.

Every combination of the attributes belongs to one split, so the sounds of `val` and `test` combine what training has only
heard apart. Each has a single sound there, so that every caption has exactly one right answer.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from multicse.data.offline.sounds import SOUND_CLASSES, fade, noise_band, tremolo
from multicse.data.order import permutation, seed_of
from multicse.data.shard_writer import UnpackedSample

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
    """As `multicse.data.offline.sounds` makes it, but noise has a pitch, and a tremolo is fast enough for a short event."""
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
