"""Readers of sentences: plain lines, pairs and triples, NLI, STS-B, the Leipzig corpora, GLUE, Web of Science, prompts.

The arguments of a reader are the paths ``wanted`` of a result in `sources.toml`, and its ``settings`` by name. Readers that
yield lines convert a table to a TSV.
"""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterable, Iterator
from itertools import compress
from pathlib import Path

import numpy as np
import pandas as pd

from multicse.data.errors import DataError
from multicse.data.order import permutation, seed_of
from multicse.data.pack import named_rows, table_rows, text_lines
from multicse.data.shard_writer import UnpackedSample
from multicse.data.text_files import read_cells, read_lines, read_rows, text_of
from multicse.reproduction.downloads import Content


def lines(*files: Path) -> Content:
    """Read files with one sentence per line."""
    return Content(text_lines(files), form="parquet")


def some_lines(file: Path, count: int) -> Content:
    """Read a fixed random sample of `count` sentences, one per line, in file order."""

    def drafts() -> Iterator[UnpackedSample]:
        total = sum(1 for _ in read_lines(file))
        if total < count:
            raise DataError(f"{file} has {total:,} sentences, but {count:,} are needed")
        chosen = np.zeros(total, bool)
        chosen[permutation(total, seed_of("some lines"))[:count]] = True
        yield from _drafts(compress((text for _, text in read_lines(file)), chosen))

    return Content(drafts(), form="parquet")


def columns(file: Path, names: tuple[str, ...], keep_empty: bool = False) -> Content:
    """Read columns of a .csv, .tsv or .jsonl, with rows that have empty cells if `keep_empty`."""
    return Content(table_rows(file, names, keep_empty=keep_empty), form="parquet")


def distinct_sentences(*files: Path) -> Content:
    """Read the distinct premises and hypotheses of SNLI and MultiNLI (.jsonl)."""
    names = ("sentence1", "sentence2")
    found = (row[name].strip() for file in files for _, row in named_rows(file, names) for name in names)
    return Content(_drafts(dict.fromkeys(found)), form="parquet")


def stsb_sentences(*files: Path) -> Content:
    """Read both sentences of every pair of STS-B, including duplicates.

    Files such as ``sts-train.csv`` have tabs, no header, and sentences in columns 6 and 7.
    """
    found = (text for file in files for _, cells in read_cells(file, 7, more=True) for text in cells[5:7])
    return Content(_drafts(found), form="parquet")


def numbered_lines(file: Path) -> Content:
    """Read lines of a number, a tab and a sentence: files ``*-sentences.txt`` of the Leipzig corpora."""
    return Content(_drafts(line.partition("\t")[2] for _, line in read_lines(file)), form="parquet")


def glue(train: Path, dev: Path, columns: tuple[str, ...], header: tuple[str, ...] = ()) -> Iterator[str]:
    """Convert a task of GLUE to the columns label, sentence (or sentence1 and sentence2) and split (SG-BERT, appendix A.4).

    `columns` are the label and the sentences, `header` all columns of files without a header. The labels of GLUE's test set
    are not published: the first tenth of its dev set is dev, the rest test.
    """
    yield "\t".join(["label", *(["sentence"] if len(columns) == 2 else ["sentence1", "sentence2"]), "split"])
    parts = [[[row[name] for name in columns] for row in _glue_rows(file, columns, header)] for file in (train, dev)]
    tenth = len(parts[1]) // 10
    for rows, name in ((parts[0], "train"), (parts[1][:tenth], "dev"), (parts[1][tenth:], "test")):
        yield from ("\t".join([*row, name]) for row in rows)


def _glue_rows(file: Path, columns: tuple[str, ...], header: tuple[str, ...]) -> Iterator[dict[str, str]]:
    if not header:
        yield from (row for _, row in read_rows(file, columns, quoted=False))
        return
    yield from (dict(zip(header, cells, strict=True)) for _, cells in read_cells(file, len(header)))


def web_of_science(book: Path, label: str) -> Iterator[str]:
    """Convert abstracts of Web of Science's ``Data.xlsx``, without empty ones, to the columns label, text and split.

    `label` is the column of the class (Y1: 7 classes, Y: 134). In file order, 80 % are train, 10 % dev and 10 % test.
    """
    try:
        table = pd.read_excel(book, usecols=[label, "Abstract"], dtype=str, keep_default_na=False)
    except ImportError as error:
        raise DataError(f"{book} needs the package openpyxl (extra `reproduction`): {error}") from error
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{book} is not an .xlsx file with the columns {label} and Abstract: {error}") from error
    yield "label\ttext\tsplit"
    for number, (name, abstract) in enumerate(zip(table[label], table["Abstract"], strict=True)):
        part = "train" if number < int(0.8 * len(table)) else "dev" if number < int(0.9 * len(table)) else "test"
        if text := " ".join(abstract.split()):
            yield f"{name}\t{text}\t{part}"


def imagenet_prompts(notebook: Path) -> Iterator[str]:
    """Extract ``{"classes": [...], "templates": [...]}`` from the notebook of the CLIP repository.

    They are the lists ``imagenet_classes`` and ``imagenet_templates`` of its cells.
    """
    lists = {}
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8-sig"))["cells"]
        for code in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
            for match in re.finditer(r"^imagenet_(classes|templates) = (\[.*?\])$", code, re.MULTILINE | re.DOTALL):
                lists[match[1]] = ast.literal_eval(match[2])
        yield json.dumps({name: lists[name] for name in ("classes", "templates")}, indent=0, ensure_ascii=False)
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        raise DataError(f"{notebook} is not CLIP's Prompt_Engineering_for_ImageNet.ipynb: {error!r}") from error


def _drafts(sentences: Iterable[str]) -> Iterator[UnpackedSample]:
    for sentence in sentences:
        if text := text_of(sentence.strip(), f"the sentence {sentence[:40]!r}"):
            yield UnpackedSample({"txt": text.encode()})
