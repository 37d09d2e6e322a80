"""A small lexicon of our own in the format of WordNet's database files."""

from __future__ import annotations

from pathlib import Path

from multicse.data.wordnet import Pos

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
