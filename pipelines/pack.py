"""Make shards: ``python pipelines/pack.py text wiki.txt.gz --out shards/wiki --licence CC-BY-SA-4.0``."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import tyro

if not __package__:  # run as a file: this clone comes first, not an installed copy
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from multicse.data.errors import DataError, cli_errors
from multicse.data.pack import (
    Missing,
    files_of,
    folder_files,
    manifest_files,
    table_parts,
    table_rows,
    text_lines,
)
from multicse.data.shard_urls import table_kind
from multicse.data.shard_writer import Form, Output, Parts, left_out_lines, pack, upload
from multicse.data.shards import Manifest, read_manifest
from multicse.data.streams.decode import IMAGES, SOUNDS


@dataclass(frozen=True, kw_only=True)
class Common:
    out: Path
    """Folder of the shards; one folder for each split."""
    name: str | None = None
    """Shards are called NAME-SPLIT-000000.tar. Default: the name of the folder."""
    split: str = "train"
    """Part of the set that this is, as train, dev or test; it stands in the names of the shards."""
    shard_size: int | None = None
    """Most samples in a shard. Default: 10,000 texts, 1,000 pictures or sounds."""
    shuffle: bool = True
    """Mix the samples before they are cut into shards. Streams mix only within a window, so sorted sources need it."""
    seed: int = 0
    """Seed of that mixing: equal input and seed give equal bytes."""
    licence: str = "unknown"
    """Licence of the data, e.g. CC-BY-SA-4.0; it goes into the model cards of what is trained on it."""
    source: str = "unknown"
    """Where the data comes from, e.g. a web address."""
    language: str = ""
    """Code of the language of the texts, e.g. de; it goes into the model cards as well."""
    overwrite: bool = False
    """Replace the shards that are in the folder."""
    workers: int = 1
    """Processes that read and write: of a large source as many as there are cores. The shards are the same."""

    def output(self, shard_size: int, form: Form = "tar") -> Output:
        name = self.out.resolve().name if self.name is None else self.name
        size = shard_size if self.shard_size is None else self.shard_size
        if self.seed and not self.shuffle:
            raise DataError(f"--seed {self.seed}: --no-shuffle draws no order; leave one of them out")
        facts = (self.licence, self.source, self.overwrite, self.language)
        return Output(self.out, name, self.split, size, self.shuffle, self.seed, *facts, form, self.workers)


@dataclass(frozen=True, kw_only=True)
class Columns(Common):
    label: str | None = None
    """Column with the class; its names become the integers of the field cls, sorted."""
    where: tuple[str, ...] = ()
    """COLUMN=VALUE: only rows with this value (several: all of them)."""
    classes_from: Path | None = None
    """Folder of an earlier packed split whose class numbers are kept."""

    def conditions(self) -> dict[str, str]:
        if bad := [text for text in self.where if "=" not in text]:
            raise DataError(f"--where {bad[0]!r}; write COLUMN=VALUE")
        return {column: value for column, _, value in (text.partition("=") for text in self.where)}

    def classes(self) -> tuple[str, ...] | None:
        if self.classes_from is None:
            return None
        manifest = read_manifest(str(self.classes_from))
        if manifest is None or not manifest.classes:
            raise DataError(f"--classes-from {self.classes_from}: no dataset.json with classes in this folder")
        return manifest.classes


@dataclass(frozen=True, kw_only=True)
class Text(Common):
    """Sentences, one a line (.txt, .gz): field txt. Empty lines are dropped and counted."""

    files: tyro.conf.Positional[tuple[Path, ...]]
    """Text files, a sentence a line."""
    format: Form = "parquet"
    """Form of the shards: parquet is about half as large as the texts; tar is read by webdataset too, a kilobyte a text."""

    def run(self) -> Manifest:
        if not self.files:
            raise DataError("name at least one text file, e.g. wiki.txt.gz")
        parts = Parts([partial(text_lines, (file,)) for file in self.files])
        return pack(parts, self.output(10_000, self.format))


@dataclass(frozen=True, kw_only=True)
class Table(Columns):
    """Texts, pairs and triples of a table: .csv .tsv .jsonl (.gz), .parquet .arrow. Several columns become the field json,
    one becomes txt."""

    file: tyro.conf.Positional[str]
    """A file, a pattern, a range, a folder of tables, a URL, or hf://NAME#split=train. Of an odd CSV:
    'x.csv#separator=^'."""
    columns: tuple[str, ...]
    """The texts, by name and in order: sent0 sent1 hard_neg. A column in a column is OUTER.INNER."""
    format: Form = "parquet"
    """Form of the shards: parquet is about half as large as the texts; tar is read by webdataset too, a kilobyte a text."""
    keep_empty: bool = False
    """Keep rows with an empty text beside others; streams read them with keep_empty."""

    def run(self) -> Manifest:
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
        return pack(parts, self.output(10_000, self.format), classes=self.classes())


@dataclass(frozen=True, kw_only=True)
class _Files(Columns):
    path: tyro.conf.Positional[str]
    """Folder of class folders, or a manifest that names files."""
    root: Path | None = None
    """Folder with the manifest's files. Default: the manifest's folder."""
    file_column: str = "file"
    """Column with the path of the file, or a pattern of columns: '{ytid}.wav', 'fold{fold}/{slice_file_name}'."""
    captions: tuple[str, ...] = ()
    """Columns with captions. One column of a table becomes the field txt, otherwise json {"captions": [...]}."""
    group: bool = False
    """Rows that name the same file are one sample with all their captions (AudioCaps' val and test)."""
    missing: Missing = "raise"
    """What a file does that is not there, of another kind or cannot be decoded: stop, or be left out and counted."""

    def pack(self, extensions: tuple[str, ...]) -> Manifest:
        output, classes, path = self.output(1_000), self.classes(), Path(self.path)
        if "://" in self.path or table_kind(self.path) in ("parquet", "arrow"):
            raise DataError(
                f"{path} needs no packing: name it in place of shards (--streams.NAME.shards); if it holds names "
                "of files instead of their bytes, write it as .csv or .jsonl"
            )
        files = files_of(path, self.root)
        if path.is_dir():
            options = ("captions", "label", "where", "root", "group", "file_column")
            if given := [f"--{name.replace('_', '-')}" for name in options if getattr(self, name) != getattr(_Files, name)]:
                raise DataError(f"{' '.join(given)}: for a manifest, and {self.path} is a folder; leave it out")
            return pack(folder_files(path, extensions, self.missing), output, files, classes)
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
        return pack(drafts, output, files, classes)


@dataclass(frozen=True, kw_only=True)
class Images(_Files):
    """Pictures (jpg jpeg png webp): a folder of class folders, or a manifest (.csv, .tsv, .jsonl) naming files."""

    def run(self) -> Manifest:
        return self.pack(IMAGES)


@dataclass(frozen=True, kw_only=True)
class Audio(_Files):
    """Sounds (wav flac ogg mp3): a folder of class folders, or a manifest (.csv, .tsv, .jsonl) naming files."""

    def run(self) -> Manifest:
        return self.pack(SOUNDS)


@dataclass(frozen=True)
class Upload:
    """Packed shards to a store that every node of a cluster can read, e.g. s3://bucket/shards/wiki."""

    folder: tyro.conf.Positional[Path]
    """Folder that pack.py made."""
    url: tyro.conf.Positional[str]
    """Where the shards go in the store."""

    def run(self) -> str:
        upload(self.folder, self.url)
        return f"copied to {self.url}"


def report(packed: Manifest) -> str:
    """What was packed, in one or two lines."""
    record = packed.record
    size = f"{record['filesize'] / 1e6:.1f} MB"
    lines = [f"{packed.folder}: {record['nsamples']:,} samples in {len(packed.shards)} shards, {size}"]
    lines += left_out_lines(record["left_out"])
    if packed.classes:
        lines.append(f"{len(packed.classes)} classes: {json.dumps(packed.classes[:10], ensure_ascii=False)[1:-1]}")
    return "\n".join(lines)


@cli_errors
def main(argv: list[str] | None = None) -> int:
    """The command line; 2 when the input was bad."""
    arguments: Text | Table | Images | Audio | Upload = tyro.cli(
        Text | Table | Images | Audio | Upload,
        args=argv,
        description="Pack texts, pictures or sounds into WebDataset shards with a dataset.json beside them.",
    )
    done = arguments.run()
    print(done if isinstance(done, str) else report(done))
    return 0


if __name__ == "__main__":
    sys.exit(main())
