"""Readers of sounds: manifests with captions or classes, and LibriSpeech."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from multicse.data.errors import DataError
from multicse.data.pack import Entry, manifest_files, named_files
from multicse.data.streams.decode import SOUNDS
from multicse.data.text_files import read_lines
from multicse.reproduction.sources.source import Content


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

    return Content(named_files(entries(), str(folder), SOUNDS, folder, captions="txt"), folder)
