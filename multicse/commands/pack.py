"""Make shards: ``python pipelines/pack.py text wiki.txt.gz --out shards/wiki --licence CC-BY-SA-4.0``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import tyro

from multicse.commands import read_options
from multicse.data.errors import DataError, cli_errors
from multicse.data.lexicon import thesaurus, write_lexicon
from multicse.data.pack import (
    Missing,
    files_of,
    folder_files,
    manifest_files,
    named_rows,
    table_parts,
    table_rows,
    text_lines,
)
from multicse.data.shard_urls import table_kind
from multicse.data.shard_writer import Form, Parts, Target, left_out_lines, pack, upload
from multicse.data.shards import Manifest, read_manifest
from multicse.data.streams.decode import IMAGES, SOUNDS
from multicse.data.text_files import text_of


@dataclass(frozen=True, kw_only=True)
class Common:
    """Options of all kinds of sources."""

    out: Path
    """Folder of the shards; each split needs its own folder."""
    name: str | None = None
    """Shards are called NAME-SPLIT-000000.tar. Default: the name of the folder."""
    split: str = "train"
    """Split of the data set, such as train, dev or test; it is a part of the shards' names."""
    shard_size: int | None = None
    """Maximum number of samples in a shard. Default: 10,000 texts, 1,000 images or audio clips."""
    shuffle: bool = True
    """Shuffle the samples before they are cut into shards. Streams shuffle only within a window, so sorted sources need
    this."""
    seed: int = 0
    """Seed of the shuffle: equal input and seed give equal bytes."""
    licence: str = "unknown"
    """Licence of the data, e.g. CC-BY-SA-4.0, for the cards of models that are trained on it."""
    source: str = "unknown"
    """Source of the data, e.g. a web address."""
    language: str = ""
    """Code of the language of the texts, e.g. de, for model cards."""
    overwrite: bool = False
    """Replace the shards in the folder."""
    workers: int = 1
    """Processes that read and write; for a large source use all cores. The shards do not depend on their number."""

    def target(self, shard_size: int, form: Form = "tar") -> Target:
        """Return the settings of the shards. Raises DataError for a seed without shuffle.

        Args:
            shard_size: Default number of samples in a shard.
            form: Form of the shards.
        """
        name = self.out.resolve().name if self.name is None else self.name
        size = shard_size if self.shard_size is None else self.shard_size
        if self.seed and not self.shuffle:
            raise DataError(f"--seed {self.seed}: --no-shuffle draws no order; leave one of them out")
        facts = (self.licence, self.source, self.overwrite, self.language)
        return Target(self.out, name, self.split, size, self.shuffle, self.seed, *facts, form, self.workers)


@dataclass(frozen=True, kw_only=True)
class Columns(Common):
    """Options of tables and manifests."""

    label: str | None = None
    """Column with the class; the sorted names become the integers of the field cls."""
    where: tuple[str, ...] = ()
    """Pack only rows with this value: COLUMN=VALUE. Several conditions must all be true."""
    classes_from: Path | None = None
    """Folder of an earlier packed split, for the same class numbers."""

    def conditions(self) -> dict[str, str]:
        """Return the values of `where` by column. Raises DataError for another form."""
        if bad := [text for text in self.where if "=" not in text]:
            raise DataError(f"--where {bad[0]!r}; write COLUMN=VALUE")
        return {column: value for column, _, value in (text.partition("=") for text in self.where)}

    def classes(self) -> tuple[str, ...] | None:
        """Return the classes of the earlier split, if given. Raises DataError if it has none."""
        if self.classes_from is None:
            return None
        manifest = read_manifest(str(self.classes_from))
        if manifest is None or not manifest.classes:
            raise DataError(f"--classes-from {self.classes_from}: no dataset.json with classes in this folder")
        return manifest.classes


@dataclass(frozen=True, kw_only=True)
class Text(Common):
    """Pack sentences, one per line (.txt, .gz), as the field txt. Blank lines are left out and counted."""

    files: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="FILE")]
    """Text files, one sentence per line."""
    format: Form = "parquet"
    """Form of the shards. parquet: half the size of the texts; tar: a kilobyte per text, also for webdataset."""

    def run(self) -> Manifest:
        """Pack the source. Raises DataError for invalid options or input."""
        if not self.files:
            raise DataError("name at least one text file, e.g. wiki.txt.gz")
        parts = Parts([partial(text_lines, (file,)) for file in self.files])
        return pack(parts, self.target(10_000, self.format))


@dataclass(frozen=True, kw_only=True)
class Table(Columns):
    """Pack texts, pairs and triples of a table: .csv .tsv .jsonl (.gz), .parquet .arrow.

    Several columns become the field json, one becomes txt.
    """

    file: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TABLE")]
    """A file, a pattern, a range, a folder of tables, a URL, or hf://NAME#split=train. The separator of a CSV can be added:
    'x.csv#separator=^'."""
    columns: tuple[str, ...]
    """Columns with the texts, in order: sent0 sent1 hard_neg. A nested column is OUTER.INNER."""
    format: Form = "parquet"
    """Form of the shards. parquet: half the size of the texts; tar: a kilobyte per text, also for webdataset."""
    keep_empty: bool = False
    """Keep rows with an empty text next to other texts; streams read them with keep_empty."""

    def run(self) -> Manifest:
        """Pack the source. Raises DataError for invalid options or input."""
        if self.keep_empty and len(self.columns) == 1:
            raise DataError("--keep-empty: for several columns, since a single empty text is no sample; leave it out")
        read = partial(
            table_rows,
            columns=self.columns,
            label=self.label,
            where=self.conditions(),
            keep_empty=self.keep_empty,
        )
        parts = Parts([partial(read, file, part=part) for file, part in table_parts(self.file)])
        return pack(parts, self.target(10_000, self.format), classes=self.classes())


@dataclass(frozen=True, kw_only=True)
class _Files(Columns):
    path: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="FOLDER")]
    """Folder of class folders, or a manifest that names files."""
    root: Path | None = None
    """Folder with the files of the manifest. Default: the folder of the manifest."""
    file_column: str = "file"
    """Column with the path of the file, or a pattern of columns: '{ytid}.wav', 'fold{fold}/{slice_file_name}'."""
    captions: tuple[str, ...] = ()
    """Columns with captions. One column of a table becomes the field txt; otherwise they become json {"captions": [...]}."""
    group: bool = False
    """Make one sample with all captions of the rows that name the same file (AudioCaps' val and test)."""
    missing: Missing = "raise"
    """Files that do not exist, are of another kind or cannot be decoded: stop with an error, or leave them out and count
    them."""

    def pack(self, extensions: tuple[str, ...]) -> Manifest:
        """Pack files with these extensions. Raises DataError for options that do not fit the source."""
        target, classes, path = self.target(1_000), self.classes(), Path(self.path)
        if "://" in self.path or table_kind(self.path) in ("parquet", "arrow"):
            raise DataError(
                f"{path} needs no packing: name it instead of shards (--streams.NAME.shards); if it contains names "
                "of files instead of their bytes, write it as .csv or .jsonl"
            )
        files = files_of(path, self.root)
        if path.is_dir():
            options = ("captions", "label", "where", "root", "group", "file_column")
            if given := [f"--{name.replace('_', '-')}" for name in options if getattr(self, name) != getattr(_Files, name)]:
                raise DataError(f"{' '.join(given)}: for a manifest, and {self.path} is a folder; leave it out")
            return pack(folder_files(path, extensions, self.missing), target, files, classes)
        drafts = manifest_files(
            path,
            extensions,
            files,
            file=self.file_column,
            captions=self.captions,
            label=self.label,
            where=self.conditions(),
            group=self.group,
            missing=self.missing,
        )
        return pack(drafts, target, files, classes)


@dataclass(frozen=True, kw_only=True)
class Images(_Files):
    """Pack images (jpg jpeg png webp) of a folder of class folders, or a manifest (.csv, .tsv, .jsonl) with file names."""

    def run(self) -> Manifest:
        """Pack the source. Raises DataError for invalid options or input."""
        return self.pack(IMAGES)


@dataclass(frozen=True, kw_only=True)
class Audio(_Files):
    """Pack audio (wav flac ogg mp3) of a folder of class folders, or a manifest (.csv, .tsv, .jsonl) with file names."""

    def run(self) -> Manifest:
        """Pack the source. Raises DataError for invalid options or input."""
        return self.pack(SOUNDS)


@dataclass(frozen=True)
class Upload:
    """Copy packed shards to a store that every node of a cluster can read, e.g. s3://bucket/shards/wiki."""

    folder: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
    """Folder that pack.py made."""
    url: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="URL")]
    """Folder of the shards in the store."""

    def run(self) -> str:
        """Copy the shards and return a message."""
        upload(self.folder, self.url)
        return f"copied to {self.url}"


@dataclass(frozen=True)
class Lexicon:
    """Make a lexicon of synonyms and antonyms from a thesaurus, for --streams.text.lexicon: any language."""

    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="WORDS")]
    """Table (.csv .tsv .jsonl) of meanings. The column words contains synonyms with commas between them; the columns
    opposites (antonyms) and pos (n, v, a or r) may be missing."""
    out: Path
    """Path of the new file, for example words.sqlite."""
    overwrite: bool = False
    """Replace the file if it exists."""

    def run(self) -> str:
        """Write the lexicon and return a message. Raises DataError for invalid input, or if the file exists."""
        if self.out.exists() and not self.overwrite:
            raise DataError(f"--out {self.out} exists; choose another file, or add --overwrite")
        named = ((f"{self.file}, row {number}", row) for number, row in named_rows(self.file, ("words",)))
        count = write_lexicon(thesaurus((place, _texts(place, row)) for place, row in named), self.out)
        return f"{self.out}: {count:,} words; read them with --streams.text.lexicon {self.out}"


def _texts(place: str, row: dict[str, Any]) -> dict[str, str]:
    return {name: text_of(row.get(name), f"{place}, {name}") for name in ("words", "opposites", "pos")}


def report(packed: Manifest) -> str:
    """Return a summary of packed shards."""
    record = packed.record
    size = f"{record['filesize'] / 1e6:.1f} MB"
    lines = [f"{packed.folder}: {record['nsamples']:,} samples in {len(packed.shards)} shards, {size}"]
    lines += left_out_lines(record["left_out"])
    if packed.classes:
        lines.append(f"{len(packed.classes)} classes: {json.dumps(packed.classes[:10], ensure_ascii=False)[1:-1]}")
    return "\n".join(lines)


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code; 2 for invalid input."""
    arguments: Text | Table | Images | Audio | Lexicon | Upload = read_options(
        Text | Table | Images | Audio | Lexicon | Upload,
        argv,
        description="Pack texts, images or audio into WebDataset shards with a dataset.json next to them.",
    )
    done = arguments.run()
    print(done if isinstance(done, str) else report(done))
    return 0
