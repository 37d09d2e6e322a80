"""Words of pages, docstrings, help, comments and messages that the field does not use: their rates may only fall.

``python -m docs.words`` (a part of ``make check``) fails for a word of ``words.toml`` that is more frequent than at its last
count and than twice its rate in the field.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ("data", "models", "evaluation", "trainers", "tune_spaces", "pipelines", "reproduction")
HISTORY = ("log.md", "decisions.md")
CASED = ("Of ...", "none: ...")
"""Patterns in which capital letters count."""

PATTERNS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())["words"]


def prose_of_markdown(text: str) -> str:
    """Return a page without its code."""
    return _without_code(re.sub(r"^ *```.*?^ *```", "", text, flags=re.MULTILINE | re.DOTALL))


def prose_of_python(source: str) -> str:
    """Return the docstrings, the other strings of several words and the comments of a module, one per line.

    Templates of captions (with a placeholder) and lists of more than 30 words without punctuation are data, not prose.
    """
    strings = (node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant))
    found = [text for text in strings if isinstance(text, str) and re.search(r"\w \w", text) and not _is_data(text)]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return _without_code("\n".join([*found, *(token.string for token in tokens if token.type == tokenize.COMMENT)]))


def _is_data(text: str) -> bool:
    return bool(re.search(r"\{\w*\}", text)) or (len(text.split()) > 30 and not re.search(r"[.,:;()]", text))


def _without_code(text: str) -> str:
    return re.sub(r"(`+)[^`]+\1", "CODE", text)


@cache
def prose() -> dict[str, str]:
    """Return the prose of each page and module."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    modules = [file for folder in CODE for file in sorted((ROOT / "multicse" / folder).rglob("*.py"))]
    texts = {file: prose_of_markdown(file.read_text()) for file in pages if file.name not in HISTORY}
    texts |= {file: prose_of_python(file.read_text()) for file in modules}
    return {str(file.relative_to(ROOT)): text for file, text in texts.items()}


def hits(name: str, regex: str, text: str) -> int:
    """Count the occurrences of a pattern."""
    return len(re.findall(regex, text, re.MULTILINE | (0 if name in CASED else re.IGNORECASE)))


def words(texts: Iterable[str]) -> int:
    """Count words; numbers and signs are none."""
    return sum(len(re.findall(r"[^\W\d_][\w'-]*", text)) for text in texts)


def rates() -> dict[str, float]:
    """Return the hits of each pattern per 10,000 words."""
    everything = "\n".join(prose().values())
    total = words([everything])
    return {name: hits(name, regex, everything) / total * 1e4 for name, regex, *_ in PATTERNS}


def main() -> int:
    """Print the words that are too frequent, with the files that have most of them."""
    wrong = 0
    for (name, regex, anchors, counted), rate in zip(PATTERNS, rates().values(), strict=True):
        if rate > (limit := max(2 * anchors, counted)):
            most = sorted(((hits(name, regex, text), file) for file, text in prose().items()), reverse=True)[:5]
            files = ", ".join(f"{file} ({count})" for count, file in most if count)
            print(f"{name!r}: {rate:.1f} per 10,000 words, at most {limit:.1f}; most in {files}")
            wrong += 1
    return wrong


if __name__ == "__main__":
    sys.exit(main())
