"""Readers of sentences: plain lines, pairs and triples, NLI, STS-B, the Leipzig corpora, GLUE, Web of Science, prompts."""

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
from multicse.data.text_files import read_cells, read_lines, read_rows
from multicse.data.texts import text_of
from multicse.reproduction.downloads import Content


def lines(*files: Path) -> Content:
    """A sentence a line."""
    return Content(text_lines(files), form="parquet")


def some_lines(file: Path, count: int) -> Content:
    """`count` of the sentences of a file, drawn at random (always the same ones), in their order."""

    def drafts() -> Iterator[UnpackedSample]:
        total = sum(1 for _ in read_lines(file))
        if total < count:
            raise DataError(f"{file} has {total:,} sentences, {count:,} are to be drawn from it")
        chosen = np.zeros(total, bool)
        chosen[permutation(total, seed_of("some lines"))[:count]] = True
        yield from _drafts(compress((text for _, text in read_lines(file)), chosen))

    return Content(drafts(), form="parquet")


def columns(file: Path, names: tuple[str, ...], keep_empty: bool = False) -> Content:
    """Some columns of a .csv, .tsv or .jsonl."""
    return Content(table_rows(file, names, keep_empty=keep_empty), form="parquet")


def distinct_sentences(*files: Path) -> Content:
    """Premises and hypotheses of SNLI and MultiNLI (.jsonl), each distinct one once."""
    names = ("sentence1", "sentence2")
    found = (row[name].strip() for file in files for _, row in named_rows(file, names) for name in names)
    return Content(_drafts(dict.fromkeys(found)), form="parquet")


def stsb_sentences(*files: Path) -> Content:
    """Both sentences of every pair of STS-B (``sts-train.csv``: tabs, no header, sentences in columns 6 and 7); a sentence
    of several pairs comes as often."""
    found = (text for file in files for _, cells in read_cells(file, 7, more=True) for text in cells[5:7])
    return Content(_drafts(found), form="parquet")


def numbered_lines(file: Path) -> Content:
    """A number, a tab and a sentence a line, as in the files ``*-sentences.txt`` of the Leipzig corpora."""
    return Content(_drafts(line.partition("\t")[2] for _, line in read_lines(file)), form="parquet")


def glue(train: Path, dev: Path, columns: tuple[str, ...], header: tuple[str, ...] = ()) -> Iterator[str]:
    """A set of GLUE as a TSV ``label sentence split``, of pairs ``label sentence1 sentence2 split``.

    The labels of GLUE's own test part are not published: the first tenth of its dev part is dev, the rest test (SG-BERT,
    appendix A.4). `columns` are its label and sentences; a file without a first line of names has those of `header`.
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
    """Web of Science's ``Data.xlsx`` as a TSV ``label text split`` of abstracts, without empty ones: 80, 10 and 10 % in the
    order of the file are train, dev and test. `label` is the column with the class (Y1: 7 classes, Y: 134)."""
    try:
        table = pd.read_excel(book, usecols=[label, "Abstract"], dtype=str, keep_default_na=False)
    except ImportError as error:
        raise DataError(f"{book} is read with the package openpyxl (extra `reproduction`): {error}") from error
    except (ValueError, KeyError, zipfile.BadZipFile) as error:
        raise DataError(f"{book} is no .xlsx file with the columns {label} and Abstract: {error}") from error
    yield "label\ttext\tsplit"
    for number, (name, abstract) in enumerate(zip(table[label], table["Abstract"], strict=True)):
        part = "train" if number < int(0.8 * len(table)) else "dev" if number < int(0.9 * len(table)) else "test"
        if text := " ".join(abstract.split()):
            yield f"{name}\t{text}\t{part}"


def imagenet_prompts(notebook: Path) -> Iterator[str]:
    """``{"classes": [...], "templates": [...]}`` of the notebook of the CLIP repository, in whose cells they are the lists
    ``imagenet_classes`` and ``imagenet_templates``."""
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
