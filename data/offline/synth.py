"""Input that needs no download: sentences from gensim, digits from scikit-learn, sounds that are computed here, and
pictures and sounds with captions (`data/offline/emoji.py`, `data/offline/captioned_sounds.py`).

The demo, the smoke recipes and the tests run on these.
"""

from __future__ import annotations

import bz2
import fcntl
import html
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from data.errors import DataError
from data.offline import captioned_sounds
from data.offline import emoji as emojis
from data.order import seed_of
from data.pack import Draft, Output, pack
from data.shards import read_manifest

WIKI_EXCERPT = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
LEE_BACKGROUND, LEE_EVALUATION = "lee_background.cor", "lee.cor"


# -------------------------------------------------------------------------------------------------------------- sentences


def wiki_sentences() -> list[str]:
    """About 20,000 different English sentences of 5 to 60 words: 101 Wikipedia articles and 300 news texts.

    Both come with gensim (its Wikipedia excerpt, CC BY-SA, and the background documents of the Lee corpus). Sentences that
    are also in the 50 Lee documents that people have rated are left out: those are what the demo is evaluated on.
    """
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath

    def paragraphs() -> Iterator[str]:
        with bz2.open(datapath(WIKI_EXCERPT)) as file:
            for _, text, _ in extract_pages(file, filter_namespaces=("0",)):
                yield from _plain(filter_wiki(text))
        news = Path(datapath(LEE_BACKGROUND)).read_text(encoding="utf-8")
        yield from re.sub(r"</?\w+>", "", news).splitlines()

    rated = Path(datapath(LEE_EVALUATION)).read_text(encoding="latin-1").splitlines()
    banned = {_letters(sentence) for document in rated for sentence in split_sentences(document)}
    found: dict[str, str] = {}  # what makes sentences equal -> the sentence
    for paragraph in paragraphs():
        for sentence in split_sentences(paragraph):
            if 5 <= len(sentence.split()) <= 60 and (letters := _letters(sentence)) not in banned:
                found.setdefault(letters, sentence)
    return list(found.values())


_MARKUP = re.compile(r"[{}|\[\]<>=\\_~]|https?:|\.(?:jpe?g|png|svg|gif)\b|^\s*[*#:;!]", re.IGNORECASE)


def _plain(text: str) -> Iterator[str]:
    """Paragraphs of prose; headings, lists, captions and what is left of tables and templates are not."""
    for line in text.splitlines():
        line = html.unescape(re.sub(r"'{2,}", "", line))
        line = re.sub(r"\(\s*[;,\s]*\)|\(\s*[;,]\s*(?=\w)", lambda m: "(" if m[0].endswith(("; ", ", ")) else "", line)
        line = re.sub(r"\s+", " ", line).strip()
        line = re.sub(r" ([,.;:)])", r"\1", line)
        if len(line) > 60 and not _MARKUP.search(line):
            yield line


_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|Jr|Sr|vs|etc|ca|cf|al|No|Vol|pp|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|Inc|Ltd|Co|Corp|"
    r"Jan|Feb|Mar|Apr|Aug|Sept|Oct|Nov|Dec|approx|fl|esp|i\.e|e\.g|c|v|d|b)|\b[A-Z]|\b[A-Za-z]\.[A-Za-z])\.$"
)
_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s+[\"'“‘(]*[A-Z0-9])")


def split_sentences(text: str) -> list[str]:
    """Sentences of an English paragraph: cut after . ! ? before a capital or digit, but not after initials and the like.

    What does not begin with a capital or digit and end with a full stop is no whole sentence and is left out.
    """
    sentences, start = [], 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text[start : end.start() + 1]):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if re.fullmatch(r"[\"'“‘(]*[A-Z0-9].*[.!?][\"'”’)\]]*", sentence)]


def _letters(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence).strip().casefold()


# ----------------------------------------------------------------------------------------------------------------- digits


def digits(size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Handwritten digits (scikit-learn's 8 x 8, enlarged): gray uint8 (1797, size, size), labels int64 (1797,)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = (bunch.images * (255 / 16)).round().astype(np.uint8)
    large = [np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)) for image in small]
    return np.stack(large), bunch.target.astype(np.int64)


# ----------------------------------------------------------------------------------------------------------------- sounds

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
    n_classes: int = 8, per_class: int = 100, rate: int = 8000, seconds: float = 1.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Short sounds whose class is their timbre, contour or envelope; pitch, loudness, onset and background noise vary.

    Returns:
        int16 (n_classes * per_class, T) with T = rate * seconds, and labels int64 of `SOUND_CLASSES`, class after class.

    Raises:
        ValueError: more classes than there are, or nothing to make.
    """
    if not 1 <= n_classes <= len(SOUND_CLASSES):
        raise ValueError(f"n_classes={n_classes}; there are {len(SOUND_CLASSES)}: {', '.join(SOUND_CLASSES)}")
    length = round(rate * seconds)
    if per_class < 1 or length < 16:
        raise ValueError(f"per_class={per_class}, rate={rate}, seconds={seconds}: too little to make a sound")
    waves = np.zeros((n_classes * per_class, length), np.int16)
    for label, make in enumerate(list(SOUND_CLASSES.values())[:n_classes]):
        for i in range(per_class):
            rng = np.random.default_rng(seed_of(seed, label, i))
            onset = int(rng.uniform(0, 0.2) * length)
            time = np.arange(length - onset) / rate
            wave = make(time, float(rng.uniform(150, 600)), rng)
            sound = rng.normal(0, rng.uniform(0.001, 0.01), length)
            sound[onset:] += rng.uniform(0.2, 0.7) * fade(time) * wave / max(1.0, np.abs(wave).max())
            waves[label * per_class + i] = np.clip(np.rint(sound * 32767), -32768, 32767)
    return waves, np.repeat(np.arange(n_classes), per_class)


# ----------------------------------------------------------------------------------------------------------------- shards


def _text_drafts() -> Iterator[Draft]:
    return (Draft({"txt": sentence.encode()}) for sentence in wiki_sentences())


def _image_drafts() -> Iterator[Draft]:
    for image, label in zip(*digits(), strict=True):
        data = io.BytesIO()
        Image.fromarray(image).save(data, "PNG")
        yield Draft({"png": data.getvalue()}, label=str(label))


def _sound_drafts() -> Iterator[Draft]:
    import soundfile

    names = list(SOUND_CLASSES)
    for wave, label in zip(*synth_sounds(rate=8000), strict=True):
        data = io.BytesIO()
        soundfile.write(data, wave, 8000, format="WAV", subtype="PCM_16")
        yield Draft({"wav": data.getvalue()}, label=names[label])


def _emoji_drafts(split: str) -> Iterator[Draft]:
    for item in emojis.named_pictures():
        if emojis.split_of(item.name) == split:
            data = io.BytesIO()
            item.picture.save(data, "PNG")
            yield Draft({"png": data.getvalue(), "json": json.dumps({"captions": emojis.captions(item)}).encode()})


DEMO: dict[str, tuple[Callable[[], Iterator[Draft]], int, str, str]] = {
    "text": (_text_drafts, 4000, "CC-BY-SA (Wikipedia); Lee corpus: research", "gensim test data: Wikipedia excerpt, Lee"),
    "image": (_image_drafts, 450, "CC-BY-4.0", "scikit-learn load_digits (UCI optical recognition of handwritten digits)"),
    "audio": (_sound_drafts, 200, "Apache-2.0", "synthesised by data/offline/synth.py, seed 0"),
    **{f"emoji-{split}": (partial(_emoji_drafts, split), 400, emojis.LICENCE, emojis.SOURCE) for split in emojis.SPLITS},
    **{
        f"sounds-{split}": (
            partial(captioned_sounds.drafts, split),
            400,
            "Apache-2.0",
            "data/offline/captioned_sounds.py, 1",
        )
        for split in ("train", "val", "test")
    },
}
"""Kind -> samples, shard size, licence, source. A change of what is made changes the source text, so that it is remade."""


def kinds_of(urls: Iterable[str], offline: str) -> list[str]:
    """The kinds of offline input that shard URLs, or names of tasks that contain some, ask for; each once, in their order.

    ``kinds_of(["runs/offline/text", "retrieval:runs/offline/emoji-val?k=5"], "runs/offline")`` is ["text", "emoji-val"].
    Paths in which the folder `offline` is not the beginning are not meant.
    """
    found = re.compile(rf"(?<![\w./-])(?:\./)*{re.escape(offline.rstrip('/'))}/+([\w-]+)")
    return list(dict.fromkeys(kind for url in urls for kind in found.findall(url)))


def write_demo_shards(folder: Path, kinds: Sequence[str] = tuple(DEMO)) -> dict[str, Path]:
    """Pack the offline input into `folder`/KIND, unless it is already there.

    Args:
        folder: where to; made when it does not exist.
        kinds: of "text" (sentences, `txt`), "image" (digits, `png` and `cls`), "audio" (sounds, `wav` and `cls`), "emoji-"
            and "sounds-" with train, val or test (pictures, `png`, and sounds, `wav`, with `json` captions).

    Returns:
        The folder of each kind.

    Raises:
        DataError: an unknown kind, or emojis without their packages (extra `demo`).
    """
    if unknown := [kind for kind in kinds if kind not in DEMO]:
        raise DataError(f"no offline input of kind {unknown[0]!r}; there are {', '.join(DEMO)}")
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)  # runs that start together wait for the first, which makes the shards
        for kind in kinds:
            drafts, size, licence, source = DEMO[kind]
            if not _is_there(folder / kind, licence, source):
                output = Output(folder / kind, kind, "demo", size, licence=licence, source=source, overwrite=True)
                pack(drafts(), output)
    finally:
        os.close(handle)
    return {kind: folder / kind for kind in kinds}


def _is_there(folder: Path, licence: str, source: str) -> bool:
    """Whether the shards of the dataset.json are present in full and are those that would be made now."""
    try:
        manifest = read_manifest(str(folder))
    except DataError:
        return False
    if manifest is None or (manifest.licence, manifest.source) != (licence, source) or not manifest.shards:
        return False
    paths = {Path(shard.url): shard.bytes for shard in manifest.shards.values()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
