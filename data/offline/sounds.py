"""A small synthesiser: sounds whose class is their timbre, contour or envelope."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from multicse.data.order import seed_of

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
