"""Readers of images and audio: class folders, lists, captions, CIFAR's binary files, manifests, LibriSpeech.

The arguments of a reader are the paths ``wanted`` of a result in `sources.toml`, and its ``settings`` by name.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image

from multicse.data.errors import DataError
from multicse.data.pack import Entry, folder_files, manifest_files, named_files, named_rows
from multicse.data.shard_writer import UnpackedSample
from multicse.data.streams.decode import IMAGES, SOUNDS
from multicse.data.text_files import read_lines
from multicse.reproduction.downloads import Content

CAPTIONS = 5
"""Captions used per image. Flickr30K has five; COCO has six or seven of some images."""
CIFAR_SIDE = 32


def class_folders(folder: Path) -> Content:
    """Read one folder per class; the name of the folder is the class."""
    return Content(folder_files(folder, IMAGES), folder)


def described_folders(folder: Path) -> Content:
    """Read one folder per class, named by WordNet ID (ImageNet-A, -O and -R).

    README.txt next to the folders contains the names of the classes, in lines such as ``n01443537 goldfish``.
    """
    readme = folder / "README.txt"
    described = (re.fullmatch(r"(n\d{8})\s+(.+)", line.strip()) for _, line in read_lines(readme))
    names = {match[1]: match[2].replace("_", " ") for match in described if match}

    def entries() -> Iterator[Entry]:
        for number, path in enumerate(sorted(folder.glob("n*/*"))):
            if path.parent.name not in names:
                raise DataError(f"{readme} has no line '{path.parent.name} NAME' for the folder {path.parent}")
            yield Entry(number, path.relative_to(folder).as_posix(), label=names[path.parent.name])

    return _content(entries(), readme, folder)


def listed(file: Path, folder: Path) -> Content:
    """Read the images of a list with one path per line; its last two parts are used: ``CLASS/FILE``."""
    paths = ((number, line.strip().split("/")[-2:]) for number, line in read_lines(file))
    return _content((Entry(number, "/".join(parts), label=parts[0]) for number, parts in paths), file, folder)


def imagenet_validation(file: Path, folder: Path) -> Content:
    """Read ImageNet's 50,000 validation images.

    Kaggle's LOC_val_solution.csv has the class and boxes of an image in the column PredictionString
    ("n01978287 240 170 260 240").
    """
    rows = named_rows(file, ("ImageId", "PredictionString"))
    entries = (Entry(number, f"{row['ImageId']}.JPEG", label=row["PredictionString"].split()[0]) for number, row in rows)
    return _content(entries, file, folder)


def karpathy(file: Path, folder: Path, split: str = "test") -> Content:
    """Read the images of a split of Karpathy's dataset_coco.json or dataset_flickr30k.json with five captions each."""
    try:
        images = json.loads(file.read_text(encoding="utf-8"))["images"]
        chosen = [
            (image["filename"], tuple(sentence["raw"].strip() for sentence in image["sentences"][:CAPTIONS]))
            for image in images
            if image["split"] == split
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is not a list of images with captions of Karpathy's caption_datasets.zip: {error}"
        ) from error
    entries = (Entry(number, name, captions) for number, (name, captions) in enumerate(chosen))
    return _content(entries, file, folder, captions="json")


def crawled(folder: Path) -> Content:
    """Read the output of img2dataset with ``--output_format files``: ``00000/000000012.jpg``, caption ``000000012.txt``."""

    def entries() -> Iterator[Entry]:
        images = (path for part in sorted(folder.iterdir()) if part.is_dir() for path in sorted(part.glob("*.jpg")))
        for number, path in enumerate(images):
            caption = " ".join(line.strip() for _, line in read_lines(path.with_suffix(".txt")))
            yield Entry(number, path.relative_to(folder).as_posix(), (caption,) if caption else ())

    return _content(entries(), folder, folder, captions="txt")


def cifar(names: Path, *batches: Path, labels: int = 1) -> Content:
    """Read the binary version of CIFAR-10 or CIFAR-100.

    A record consists of the labels, one byte each, and 3 x 32 x 32 bytes: red, green and blue. CIFAR-100 has two labels,
    coarse and fine; the last one is used. `names` has one class per line.
    """
    classes = tuple(line.strip() for _, line in read_lines(names))
    size = labels + 3 * CIFAR_SIDE**2

    def drafts() -> Iterator[UnpackedSample]:
        for batch in batches:
            content = np.fromfile(batch, np.uint8)
            if not content.size or content.size % size:
                raise DataError(f"{batch} is not CIFAR's binary version: {content.size:,} bytes, not a multiple of {size:,}")
            for record in content.reshape(-1, size):
                yield UnpackedSample({"png": _png(record[labels:])}, label=classes[record[labels - 1]])

    return Content(drafts(), classes=classes)


def _png(values: np.ndarray) -> bytes:
    """Encode uint8 (3072,), channel by channel, as PNG."""
    data = io.BytesIO()
    Image.fromarray(values.reshape(3, CIFAR_SIDE, CIFAR_SIDE).transpose(1, 2, 0)).save(data, "PNG")
    return data.getvalue()


def manifest(table: Path, folder: Path, **settings: Any) -> Content:
    """Read the audio files of a table by `manifest_files`."""
    return Content(manifest_files(table, SOUNDS, folder, **settings), folder)


def librispeech(folder: Path, speakers: int) -> Content:
    """Read the utterances of the speakers of LibriSpeech with the most utterances; ties go to the lower number.

    The class is the speaker, and `txt` the transcript. Files are ``SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac`` and
    ``SPEAKER/CHAPTER/SPEAKER-CHAPTER.trans.txt``.
    """
    utterances = sorted(path.relative_to(folder) for path in folder.glob("*/*/*.flac"))
    counts = Counter(path.parts[0] for path in utterances)
    if len(counts) < speakers:
        raise DataError(f"{folder} has {len(counts)} speakers, but {speakers} are needed")
    chosen = set(sorted(counts, key=lambda speaker: (-counts[speaker], int(speaker)))[:speakers])

    def entries() -> Iterator[Entry]:
        spoken: dict[str, str] = {}
        for number, path in enumerate(utterances):
            if path.parts[0] not in chosen:
                continue
            if path.stem not in spoken:  # a new chapter
                speaker, chapter, _ = path.parts
                lines = read_lines(folder / path.parent / f"{speaker}-{chapter}.trans.txt")
                spoken = {name: text for name, _, text in (line.partition(" ") for _, line in lines)}
            yield Entry(number, path.as_posix(), (spoken[path.stem],) if path.stem in spoken else (), path.parts[0])

    return _content(entries(), folder, folder, "txt", SOUNDS)


def _content(
    entries: Iterable[Entry],
    source: Path,
    folder: Path,
    captions: Literal["txt", "json"] | None = None,
    extensions: Sequence[str] = IMAGES,
) -> Content:
    return Content(named_files(entries, str(source), extensions, folder, captions=captions), folder)
