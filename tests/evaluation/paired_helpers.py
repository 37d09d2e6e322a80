"""Shards of tiny pictures and sounds that carry a number, and an encoder that reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multicse.evaluation.task import Sound
from tests import worlds
from tests.worlds import write_tar


class Coded:
    """The item with number i and a text whose first number is the same have the same random vector.

    `shift` is added to a text's number.
    """

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        texts = modality == "text"
        return np.stack([self.vector(self.number(item) + self.shift if texts else decoded(item)) for item in items])

    def number(self, text: str) -> int:
        return int(re.findall(r"\d+", text)[0])

    def vector(self, number: int) -> np.ndarray:
        return np.random.default_rng(number).standard_normal(64)


def decoded(item: Any) -> int:
    """The number that a picture's colour, or a sound's level, stands for."""
    if isinstance(item, Sound):
        return round(float(np.median(item.samples)) * 256)
    assert item.dtype == np.uint8 and item.shape == (5, 4, 3)
    return int(item[0, 0, 0])


def picture(number: int) -> bytes:
    return worlds.png(np.full((5, 4, 3), number, dtype=np.uint8))


def sound(number: int) -> bytes:
    return worlds.sound(np.full(80, number / 256, dtype=np.float32), subtype="FLOAT")


def image_shards(
    folder: Path,
    captions: Sequence[Sequence[str]],
    labels: Sequence[int] | None = None,
    change: Mapping[int, Mapping[str, bytes]] | None = None,
    field: str = "json",
    classes: Sequence[str] = (),
    content: tuple[str, Callable[[int], bytes]] = ("png", picture),
) -> Path:
    """A folder of shards with picture i and its captions (none: without that field); `change` replaces fields."""
    members: dict[str, bytes] = {}
    for i, texts in enumerate(captions):
        fields = {content[0]: content[1](i)}
        if texts:
            fields[field] = texts[0].encode() if field == "txt" else json.dumps({"captions": texts}).encode()
        if labels is not None:
            fields["cls"] = str(labels[i]).encode()
        members |= {f"{i:04d}.{name}": value for name, value in {**fields, **(change or {}).get(i, {})}.items()}
    write_tar(folder / "x-000.tar", members.items())
    if classes:
        listed = [{"url": "x-000.tar", "nsamples": len(captions)}]
        (folder / "dataset.json").write_text(json.dumps({"shardlist": listed, "classes": list(classes)}))
    return folder


def sound_shards(folder: Path, captions: Sequence[Sequence[str]], labels: Sequence[int] | None = None) -> Path:
    """The same with sounds, 80 samples each."""
    return image_shards(folder, captions, labels, content=("wav", sound))
