"""Readers of what is neither text, picture nor sound: a spreadsheet and a notebook. They give the lines of a file."""

from __future__ import annotations

import ast
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from multicse.data.errors import DataError

_MAIN = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"


def web_of_science(book: Path, label: str) -> Iterator[str]:
    """Web of Science's ``Data.xlsx`` as a TSV ``label text split`` of abstracts, without empty ones: 80, 10 and 10 % in the
    order of the file are train, dev and test. `label` is the column with the class (Y1: 7 classes, Y: 134)."""
    rows = [(row[label], " ".join(row["Abstract"].split())) for row in sheet(book, (label, "Abstract"))]
    yield "label\ttext\tsplit"
    for number, (name, text) in enumerate(rows):
        part = "train" if number < int(0.8 * len(rows)) else "dev" if number < int(0.9 * len(rows)) else "test"
        if text:
            yield f"{name}\t{text}\t{part}"


def sheet(book: Path, columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """Rows of the first sheet of an ``.xlsx`` file, whose first row names the columns; empty cells are "".

    An .xlsx file is a zip of XML (ECMA-376): cells hold a number, their text, or the position of it in a common list.

    Raises DataError for a file of another kind, or without one of `columns`.
    """
    try:
        with zipfile.ZipFile(book) as parts:
            shared = _shared(parts)
            cells = (_cells(row, shared) for row in _elements(parts, "xl/worksheets/sheet1.xml", "row"))
            names = next(cells, {})
            if lacking := set(columns) - set(names.values()):
                raise DataError(f"{book}: no column {min(lacking)!r}; it has {', '.join(names.values()) or 'none'}")
            for row in cells:
                yield {name: row.get(place, "") for place, name in names.items()}
    except (zipfile.BadZipFile, KeyError, ElementTree.ParseError) as error:
        raise DataError(f"{book} is no .xlsx file: {error}") from error


def _shared(parts: zipfile.ZipFile) -> list[str]:
    """Texts that several cells may have in common."""
    name = "xl/sharedStrings.xml"
    return [_text(item) for item in _elements(parts, name, "si")] if name in parts.namelist() else []


def _elements(parts: zipfile.ZipFile, name: str, tag: str) -> Iterator[ElementTree.Element]:
    """The elements `tag` of a part, each forgotten when the next is read."""
    with parts.open(name) as file:
        for _, element in ElementTree.iterparse(file):
            if element.tag == _MAIN + tag:
                yield element
                element.clear()


def _cells(row: ElementTree.Element, shared: list[str]) -> dict[str, str]:
    """Text of each cell by its column: A, B, ..."""
    found = {}
    for cell in row.iter(f"{_MAIN}c"):
        value = cell.findtext(f"{_MAIN}v", "")
        text = shared[int(value)] if cell.get("t") == "s" else _text(cell) if cell.get("t") == "inlineStr" else value
        found[re.sub(r"\d", "", cell.get("r", ""))] = text
    return found


def _text(element: ElementTree.Element) -> str:
    """Text of all runs (of one font each) of a cell."""
    return "".join(run.text or "" for run in element.iter(f"{_MAIN}t"))


def imagenet_prompts(notebook: Path) -> Iterator[str]:
    """``{"classes": [...], "templates": [...]}`` of the notebook of the CLIP repository, in whose cells they are the lists
    ``imagenet_classes`` and ``imagenet_templates``."""
    lists = {}
    try:
        cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
        for code in ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"):
            for match in re.finditer(r"^imagenet_(classes|templates) = (\[.*?\])$", code, re.MULTILINE | re.DOTALL):
                lists[match[1]] = ast.literal_eval(match[2])
        yield json.dumps({name: lists[name] for name in ("classes", "templates")}, indent=0, ensure_ascii=False)
    except (ValueError, KeyError, TypeError, SyntaxError) as error:
        raise DataError(f"{notebook} is not CLIP's Prompt_Engineering_for_ImageNet.ipynb: {error!r}") from error
