"""Helpers of the tests of data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from multicse.commands import pack
from multicse.data.lexicon import thesaurus, write_lexicon
from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.stream import Reader
from multicse.data.streams.base import StreamConfig, Tokenize

LINES = [f"Sentence number {i} is about things." for i in range(25)]


def samples(folder: Path | str) -> list[RawSample]:
    found = [s for shard in ShardSet.open(str(folder)).shards for s in read(shard, range(shard.samples))]
    assert all(isinstance(s, RawSample) for s in found)
    return [s for s in found if isinstance(s, RawSample)]


def run(*arguments: object) -> int:
    """`pipelines/pack.py` with these arguments: its exit code."""
    return pack.main([str(argument) for argument in arguments])


def png(color: int = 0) -> bytes:
    data = io.BytesIO()
    Image.new("RGB", (4, 4), (color, 0, 0)).save(data, "PNG")
    return data.getvalue()


def write_pictures(folder: Path) -> Path:
    """Write twelve images of three classes (one name contains a dot), and files that systems write next to images."""
    for i, (name, extension) in enumerate([("dog", "png"), ("cat", "PNG"), ("cat/deep", "png"), ("bird.s", "jpeg")]):
        for j in range(3):
            path = folder / name / f"my pic.{j}.{extension}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(png(10 * i + j))
    for name in (".DS_Store", "Thumbs.db", "cat/Thumbs.db", "dog/desktop.ini", "__MACOSX/dog.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"")
    return folder


def write_text(path: Path) -> Path:
    """26 sentences with as many blank lines between them."""
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n\n".join([*LINES, "  ", "Ünï ḉode 漢字"]).encode())
    return path


def letters(texts: list[str], max_length: int = 32) -> dict[str, torch.Tensor]:
    """A tokenizer that can be read back: one token a character."""
    longest = max(map(len, texts))
    ids = torch.tensor([[ord(letter) for letter in text.ljust(longest, "\0")] for text in texts])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "token_type_ids": ids * 0}


def lengths(texts: list[str]) -> dict[str, torch.Tensor]:
    """A tokenizer with which texts of any lengths can be joined: one token a text."""
    return {"input_ids": torch.tensor([[len(text)] for text in texts])}


def reader(
    config: StreamConfig, tokenize: Tokenize | None = letters, batches: int = 20, name: str = "x", **more: Any
) -> Reader:
    """A stream of one worker, read in this process from its start. To be closed."""
    settings = {"seed": 5, "rank": 0, "world_size": 1, "inline": True, **more}
    return Reader(config, name, config.open(), tokenize=tokenize, batches=batches, **settings).__enter__()


def spelt(ids: torch.Tensor) -> list[str]:
    """Texts of ids (..., L)."""
    return ["".join(map(chr, row.tolist())).rstrip("\0") for row in ids.flatten(0, -2)]


def write_words(path: Path, *meanings: str) -> Path:
    """Write a lexicon of meanings ``part of speech | words | opposite words``, with commas between words."""
    rows = ({"pos": pos, "words": words, "opposites": other} for pos, words, other in (m.split("|") for m in meanings))
    write_lexicon(thesaurus((f"row {number}", row) for number, row in enumerate(rows)), path)
    return path
