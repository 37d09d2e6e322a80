"""Input that needs no download, for the demos, the smoke recipes and the tests.

It consists of sentences from gensim, digits from scikit-learn, synthesised audio, and images and audio with captions
(`data/offline/emoji.py`, `data/offline/audio.py`).
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from multicse.data.errors import DataError
from multicse.data.offline import audio
from multicse.data.offline import emoji as emojis
from multicse.data.offline.audio import AUDIO_CLASSES, synth_audio
from multicse.data.offline.sentences import wiki_sentences
from multicse.data.shard_writer import Target, UnpackedSample, locked, pack
from multicse.data.shards import read_manifest


def digits(size: int = 32) -> tuple[np.ndarray, np.ndarray]:
    """Return scikit-learn's handwritten digits, enlarged from 8 x 8: gray uint8 (1797, size, size), labels int64 (1797,)."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    small = (bunch.images * (255 / 16)).round().astype(np.uint8)
    large = [np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BICUBIC)) for image in small]
    return np.stack(large), bunch.target.astype(np.int64)


def _text_drafts() -> Iterator[UnpackedSample]:
    return (UnpackedSample({"txt": sentence.encode()}) for sentence in wiki_sentences())


def _image_drafts() -> Iterator[UnpackedSample]:
    for image, label in zip(*digits(), strict=True):
        data = io.BytesIO()
        Image.fromarray(image).save(data, "PNG")
        yield UnpackedSample({"png": data.getvalue()}, label=str(label))


def _audio_drafts() -> Iterator[UnpackedSample]:
    import soundfile

    names = list(AUDIO_CLASSES)
    for wave, label in zip(*synth_audio(rate=8000), strict=True):
        data = io.BytesIO()
        soundfile.write(data, wave, 8000, format="WAV", subtype="PCM_16")
        yield UnpackedSample({"wav": data.getvalue()}, label=names[label])


def _emoji_drafts(split: str) -> Iterator[UnpackedSample]:
    for item in emojis.named_images():
        if emojis.split_of(item.name) == split:
            data = io.BytesIO()
            item.image.save(data, "PNG")
            yield UnpackedSample({"png": data.getvalue(), "json": json.dumps({"captions": emojis.captions(item)}).encode()})


DEMO: dict[str, tuple[Callable[[], Iterator[UnpackedSample]], int, str, str]] = {
    "text": (_text_drafts, 4000, "CC-BY-SA (Wikipedia); Lee corpus: research", "gensim test data: Wikipedia excerpt, Lee"),
    "image": (_image_drafts, 450, "CC-BY-4.0", "scikit-learn load_digits (UCI optical recognition of handwritten digits)"),
    "audio": (_audio_drafts, 200, "Apache-2.0", "synthesised by data/offline/audio.py, seed 0"),
    **{f"emoji-{split}": (partial(_emoji_drafts, split), 400, emojis.LICENCE, emojis.SOURCE) for split in emojis.SPLITS},
    **{
        f"sounds-{split}": (
            partial(audio.drafts, split),
            400,
            "Apache-2.0",
            "data/offline/audio.py, 1",
        )
        for split in ("train", "val", "test")
    },
}
"""Kind -> samples, shard size, licence, source. Change the source text if the samples change, so that they are rewritten."""


def kinds_of(urls: Iterable[str], offline: str) -> list[str]:
    """Find the kinds of offline input in shard URLs, or in names of tasks that contain shard URLs.

    For example ``kinds_of(["runs/offline/text", "retrieval:runs/offline/emoji-val?k=5"], "runs/offline")`` is
    ["text", "emoji-val"].

    Args:
        urls: Shard URLs or names of tasks.
        offline: Folder of the offline input; paths that do not start with it are ignored.
    """
    found = re.compile(rf"(?<![\w./-])(?:\./)*{re.escape(offline.rstrip('/'))}/+([\w-]+)")
    return list(dict.fromkeys(kind for url in urls for kind in found.findall(url)))


def write_demo_shards(folder: Path, kinds: Sequence[str] = tuple(DEMO)) -> dict[str, Path]:
    """Pack the offline input into `folder`/KIND, unless it is already there, and return the folder of each kind.

    Args:
        folder: Folder of the shards, which is created if it does not exist.
        kinds: Names of `DEMO`.
    """
    if unknown := [kind for kind in kinds if kind not in DEMO]:
        raise DataError(f"offline input of kind {unknown[0]!r} does not exist; choose from {', '.join(DEMO)}")
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, wait=True):  # simultaneous runs wait for the first one, which writes the shards
        for kind in kinds:
            drafts, size, licence, source = DEMO[kind]
            if not _is_there(folder / kind, licence, source):
                target = Target(folder / kind, kind, "demo", size, licence=licence, source=source, overwrite=True)
                pack(drafts(), target)
    return {kind: folder / kind for kind in kinds}


def _is_there(folder: Path, licence: str, source: str) -> bool:
    """Return True if all shards of the dataset.json exist and have the current licence and source."""
    try:
        manifest = read_manifest(str(folder))
    except DataError:
        return False
    if manifest is None or (manifest.licence, manifest.source) != (licence, source) or not manifest.shards:
        return False
    paths = {Path(shard.url): shard.bytes for shard in manifest.shards.values()}
    return all(path.is_file() and path.stat().st_size == size for path, size in paths.items())
