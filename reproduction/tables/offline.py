"""The data sets at hand, packed once for the small scale of the tables."""

from __future__ import annotations

import contextlib
import csv
import gzip
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from multicse.data.errors import DataError
from multicse.pipelines.pack import main as pack


@dataclass(frozen=True)
class Offline:
    """A folder of public data sets (`sts`, `senteval`, `text_unlabeled`, `nli`, `cifar10`, ...) and one for shards."""

    data: Path
    shards: Path

    def wikipedia(self) -> str:
        """73,604 sentences of Wikipedia, one a sample."""
        return self.pack("text", self.data / "text_unlabeled" / "wiki_combined.en.txt.gz", "wiki")

    def sentences(self, count: int | None) -> list[str]:
        """The first so many of them, None: all."""
        with gzip.open(self.data / "text_unlabeled" / "wiki_combined.en.txt.gz", "rt", encoding="utf-8") as lines:
            return [line.strip() for line in islice(lines, count)]

    def nli(self) -> str:
        """10,075 triples of premise, entailment and contradiction: sent0, sent1, hard_neg."""
        columns = ("--columns", "sent0", "sent1", "hard_neg")
        return self.pack("table", self.data / "nli" / "nli_triples.csv.gz", "nli", *columns)

    def nli_sentences(self) -> str:
        """Their texts, each distinct one once."""
        with gzip.open(self.data / "nli" / "nli_triples.csv.gz", "rt", encoding="utf-8", newline="") as lines:
            return self.lines([text for row in csv.DictReader(lines) for text in row.values()], "nli-sentences")

    def stsb(self) -> str:
        """Both sentences of all pairs of STS-B's three parts, without their ratings, each distinct one once."""
        rows = [row for part in ("train", "dev", "test") for row in self.rows(self.data / "sts" / f"STSB.{part}.raw.tsv")]
        return self.lines([row[name] for row in rows for name in ("sentence1", "sentence2")], "stsb-sentences")

    def pictures(self) -> str:
        """5,000 pictures of CIFAR-10 with their classes."""
        return str(self.data / "cifar10" / "cifar10-train-{00000..00004}.tar")

    def speech(self) -> str:
        """2,500 spoken digits; the class is the speaker."""
        root = ("--root", self.unpacked(self.data / "fsdd" / "fsdd_flac.tar"))
        return self.pack("audio", self.data / "fsdd" / "fsdd.tsv", "fsdd", "--label", "speaker", *root)

    def unpacked(self, archive: Path) -> str:
        """Return a folder next to the shards with the files of a tar."""
        folder = self.shards / archive.stem
        if not folder.exists():
            partial = folder.with_suffix(".partial")  # of an interrupted run too
            shutil.rmtree(partial, ignore_errors=True)
            shutil.unpack_archive(archive, partial, filter="data")
            partial.rename(folder)
        return str(folder)

    def lines(self, sentences: Sequence[str], name: str) -> str:
        """The folder of shards with each distinct sentence, in its order."""
        self.shards.mkdir(parents=True, exist_ok=True)
        source = self.shards / f"{name}.txt"
        source.write_text("\n".join(dict.fromkeys(sentences)) + "\n", encoding="utf-8")
        return self.pack("text", source, name)

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> str:
        """The folder of shards with a row a sample."""
        return self.pack("table", self.write(columns, rows, name), name, "--columns", *columns)

    def write(self, columns: Sequence[str], rows: Sequence[Sequence[str]], name: str) -> Path:
        """A TSV beside the shards, for `pack`."""
        self.shards.mkdir(parents=True, exist_ok=True)
        source = self.shards / f"{name}.tsv"
        with source.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_NONE, quotechar=None)
            writer.writerows([columns, *rows])
        return source

    def pack(self, kind: str, source: Path, name: str, *options: str) -> str:
        """The folder of shards of `source`, packed by ``pipelines/pack.py KIND`` where it is not there yet."""
        out = self.shards / name
        if not (out / "dataset.json").exists():
            with contextlib.redirect_stdout(sys.stderr):
                status = pack([kind, str(source), "--out", str(out), *options])
            if status:
                raise DataError(f"{source} could not be packed, see above")
        return str(out)

    @staticmethod
    def rows(file: Path) -> list[dict[str, str]]:
        """The rows of a TSV, perhaps .gz, without quoting."""
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        return list(csv.DictReader(content.decode().splitlines(), delimiter="\t", quoting=csv.QUOTE_NONE))
