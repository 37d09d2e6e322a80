"""Readers of pictures and sounds: class folders, lists, captions, CIFAR's binary files, manifests, LibriSpeech."""

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
"""Of a picture that are used: all of Flickr30K's; COCO has six or seven of some."""
CIFAR_SIDE = 32


def class_folders(folder: Path) -> Content:
    """A folder a class, called as the class."""
    return Content(folder_files(folder, IMAGES), folder)


def described_folders(folder: Path) -> Content:
    """A folder a class, called by its WordNet number, whose name the file README.txt beside them gives: lines like
    ``n01443537 goldfish`` (ImageNet-A, -O and -R)."""
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
    """The pictures of a list with one path a line, of which the last two parts count: ``CLASS/FILE`` below `folder`."""
    paths = ((number, line.strip().split("/")[-2:]) for number, line in read_lines(file))
    return _content((Entry(number, "/".join(parts), label=parts[0]) for number, parts in paths), file, folder)


def imagenet_validation(file: Path, folder: Path) -> Content:
    """ImageNet's 50,000 validation pictures: `file` is Kaggle's LOC_val_solution.csv, with a picture's class and boxes in
    the column PredictionString ("n01978287 240 170 260 240")."""
    rows = named_rows(file, ("ImageId", "PredictionString"))
    entries = (Entry(number, f"{row['ImageId']}.JPEG", label=row["PredictionString"].split()[0]) for number, row in rows)
    return _content(entries, file, folder)


def karpathy(file: Path, folder: Path, split: str = "test") -> Content:
    """The pictures of a split of ``dataset_coco.json`` or ``dataset_flickr30k.json`` with their first five captions."""
    try:
        pictures = json.loads(file.read_text(encoding="utf-8"))["images"]
        chosen = [
            (picture["filename"], tuple(sentence["raw"].strip() for sentence in picture["sentences"][:CAPTIONS]))
            for picture in pictures
            if picture["split"] == split
        ]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{file} is no list of pictures with captions as Karpathy's caption_datasets.zip has: {error}"
        ) from error
    entries = (Entry(number, name, captions) for number, (name, captions) in enumerate(chosen))
    return _content(entries, file, folder, captions="json")


def crawled(folder: Path) -> Content:
    """What img2dataset leaves with ``--output_format files``: ``00000/000000012.jpg`` and its caption, ``000000012.txt``."""

    def entries() -> Iterator[Entry]:
        pictures = (path for part in sorted(folder.iterdir()) if part.is_dir() for path in sorted(part.glob("*.jpg")))
        for number, path in enumerate(pictures):
            caption = " ".join(line.strip() for _, line in read_lines(path.with_suffix(".txt")))
            yield Entry(number, path.relative_to(folder).as_posix(), (caption,) if caption else ())

    return _content(entries(), folder, folder, captions="txt")


def cifar(names: Path, *batches: Path, labels: int = 1) -> Content:
    """The binary version of CIFAR-10, or of CIFAR-100 with two `labels` (coarse and fine, which is used) a picture.

    A record is the labels, a byte each, and 3 x 32 x 32 bytes: red, green and blue. `names` has a class a line.
    """
    classes = tuple(line.strip() for _, line in read_lines(names))
    size = labels + 3 * CIFAR_SIDE**2

    def drafts() -> Iterator[UnpackedSample]:
        for batch in batches:
            content = np.fromfile(batch, np.uint8)
            if not content.size or content.size % size:
                raise DataError(f"{batch} has {content.size:,} bytes, no multiple of {size:,}: not CIFAR's binary version")
            for record in content.reshape(-1, size):
                yield UnpackedSample({"png": _png(record[labels:])}, label=classes[record[labels - 1]])

    return Content(drafts(), classes=classes)


def _png(values: np.ndarray) -> bytes:
    """uint8 (3072,), channel by channel, as a PNG."""
    data = io.BytesIO()
    Image.fromarray(values.reshape(3, CIFAR_SIDE, CIFAR_SIDE).transpose(1, 2, 0)).save(data, "PNG")
    return data.getvalue()


def manifest(table: Path, folder: Path, **settings: Any) -> Content:
    """The sounds below `folder` that a table names; `settings` are those of `manifest_files`."""
    return Content(manifest_files(table, SOUNDS, folder, **settings), folder)


def librispeech(folder: Path, speakers: int) -> Content:
    """The speakers of a part of LibriSpeech (``SPEAKER/CHAPTER/SPEAKER-CHAPTER-NUMBER.flac``) with the most utterances:
    the class is the speaker, `txt` the transcript (``SPEAKER-CHAPTER.trans.txt``). Of equals the lower number comes first.
    """
    utterances = sorted(path.relative_to(folder) for path in folder.glob("*/*/*.flac"))
    counts = Counter(path.parts[0] for path in utterances)
    if len(counts) < speakers:
        raise DataError(f"{folder} has {len(counts)} speakers, {speakers} are to be chosen from it")
    chosen = set(sorted(counts, key=lambda speaker: (-counts[speaker], int(speaker)))[:speakers])

    def entries() -> Iterator[Entry]:
        said: dict[str, str] = {}
        for number, path in enumerate(utterances):
            if path.parts[0] not in chosen:
                continue
            if path.stem not in said:  # a new chapter
                speaker, chapter, _ = path.parts
                lines = read_lines(folder / path.parent / f"{speaker}-{chapter}.trans.txt")
                said = {name: text for name, _, text in (line.partition(" ") for _, line in lines)}
            yield Entry(number, path.as_posix(), (said[path.stem],) if path.stem in said else (), path.parts[0])

    return _content(entries(), folder, folder, "txt", SOUNDS)


def _content(
    entries: Iterable[Entry],
    source: Path,
    folder: Path,
    captions: Literal["txt", "json"] | None = None,
    extensions: Sequence[str] = IMAGES,
) -> Content:
    return Content(named_files(entries, str(source), extensions, folder, captions=captions), folder)
