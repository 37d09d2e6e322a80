"""Helpers of the tests of data."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from multicse.data.shards import RawSample, ShardSet, read
from multicse.data.stream import Reader
from multicse.data.streams.base import StreamConfig, Tokenize
from multicse.data.wordnet import Pos
from multicse.pipelines import pack

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


NAMES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}

Pointer = tuple[str, int, int, int]
"""Symbol, index of the other synset in `SYNSETS`, number of the source word and of the target word."""

SYNSETS: list[tuple[Pos, str, list[str], list[Pointer]]] = [
    ("a", "a", ["fast", "swift"], [("!", 1, 1, 1), ("&", 2, 0, 0)]),
    ("a", "a", ["slow"], [("!", 0, 1, 1)]),
    ("a", "s", ["quick", "speedy", "in_no_time(p)"], [("&", 0, 0, 0)]),
    ("a", "a", ["quick", "alive(p)"], [("!", 4, 1, 1), ("!", 1, 2, 1)]),
    ("a", "a", ["dead"], [("!", 3, 1, 1)]),
    ("n", "n", ["Slow", "sluggard"], []),
    ("n", "n", ["quick", "core"], []),
    ("v", "v", ["walk", "stroll"], [("!", 8, 0, 0)]),
    ("v", "v", ["run", "race"], []),
    ("r", "r", ["quickly", "fast"], []),
]
"""Part of speech, type, words, pointers."""


def write_wordnet(folder: Path) -> Path:
    """Write a folder of database files with `SYNSETS`; senses of a word are in the order of the list."""
    folder.mkdir(exist_ok=True)
    licence = b"  1 first line of a licence  \n  2 and the last\n"
    offsets: list[int] = []
    lines: dict[str, bytes] = {}
    for _ in range(2):  # the second time with the offsets found in the first, which change no length
        places, made = iter(offsets or [0] * len(SYNSETS)), dict.fromkeys(NAMES, licence)
        known, offsets = list(offsets or [0] * len(SYNSETS)), []
        for pos, kind, words, pointers in SYNSETS:
            offsets.append(len(made[pos]))
            fields = [f"{next(places):08d} 00 {kind} {len(words):02x}", *(f"{word} 0" for word in words)]
            fields += [f"{len(pointers):03d}"]
            for mark, to, source, target in pointers:
                fields.append(f"{mark} {known[to]:08d} {SYNSETS[to][0]} {source:02x}{target:02x}")
            made[pos] += (" ".join(fields) + " | a gloss with ! in it  \n").encode()
        lines = made
    for part_of_speech, name in NAMES.items():
        (folder / f"data.{name}").write_bytes(lines[part_of_speech])
        senses: dict[str, list[int]] = {}
        for offset, (part, _, words, _) in zip(offsets, SYNSETS, strict=True):
            for word in words if part == part_of_speech else ():
                senses.setdefault(word.lower().removesuffix("(p)"), []).append(offset)
        rows = []
        for word, found in senses.items():
            rows.append(f"{word} {part_of_speech} {len(found)} 1 ! {len(found)} 0 {' '.join(f'{o:08d}' for o in found)}  \n")
        (folder / f"index.{name}").write_bytes(licence + "".join(sorted(rows)).encode())
        (folder / f"{name}.exc").write_text("ran run\nrunning run\n" if part_of_speech == "v" else "")
    (folder / "cntlist.rev").write_text("quick%1:08:00:: 1 1\nquick%3:00:02:: 2 5\nquick%5:00:00:fast:00 1 30\n")
    return folder
