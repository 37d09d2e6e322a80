"""Words of pages, docstrings, help, comments and messages that the field does not use: their rates may only fall.

``python -m tests.test_language`` prints the table below with today's rates, to be pasted after a rewrite.
"""

from __future__ import annotations

import ast
import io
import math
import re
import tokenize
from collections.abc import Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CODE = ("data", "models", "evaluation", "trainers", "tune_spaces", "pipelines", "reproduction")
HISTORY = ("log.md", "decisions.md")
CASED = ("Of ...", "none: ...")
"""Patterns in which capital letters count."""

# (pattern, regular expression, rate of the anchors, rate of this project): hits per 10,000 words.
# The anchors are the READMEs, docs and docstrings of sentence-transformers, lightly, torchtitan, open_clip and nanochat
# (237,000 words, November 2026).
PATTERNS = (
    ("go on", r"\b(?:goes|going|go|went) on\b", 0.0, 0.0),
    ("begin", r"\b(?:begins?|began|begun|beginning)\b", 0.6, 0.2),
    ("anew", r"\banew\b", 0.0, 0.0),
    ("tell", r"\b(?:tells?|told)\b", 0.2, 0.1),
    ("say", r"\b(?:says?|said)\b", 0.0, 0.1),
    ("that of", r"\b(?:that|those) of\b", 0.2, 0.0),
    ("whose", r"\bwhose\b", 4.0, 4.1),
    ("of which", r"\bof (?:which|whom)\b", 0.1, 0.2),
    ("is there", r"\b(?:is|are) there\b", 0.0, 0.0),
    ("there is no", r"\bthere (?:is|are) no\b|\bwhere there (?:is|are)\b", 1.4, 0.5),
    ("where = if", r"\bwhere (?:it|there|an?|no|that|one)\b", 3.3, 0.4),
    ("behind", r"\bbehind\b", 0.7, 0.2),
    ("beside", r"\bbeside\b", 0.0, 0.0),
    ("who", r"\b(?:nobody|somebody|whoever|whom|who)\b", 0.3, 0.1),
    ("is no X", r"\b(?:is no|is none of)\b(?! (?:longer|more)\b)", 1.1, 0.5),
    ("none: ...", r"\b[nN]one:", 0.7, 0.3),
    ("picture", r"\bpictures?\b", 0.0, 0.0),
    ("sound", r"\bsounds?\b", 0.0, 0.2),
    ("rate", r"(?<!learning )(?<!error )(?<!sample )(?<!sampling )(?<!frame )\brates?\b", 0.7, 1.4),
    ("want", r"\bwants?\b|\bwanted\b", 2.3, 0.2),
    ("ask", r"\basks\b|\basked for\b", 0.4, 0.1),
    ("know", r"\bknows\b|\bknown to\b", 0.6, 0.1),
    ("a = per", r"\b(?:once|twice|\d+|rows?|samples|sentences|images) an? (?:line|second|step|sample|row)\b", 0.0, 0.0),
    ("of its own", r"\bof (?:its|their|your|his|ours|one's|my) own\b", 0.0, 0.0),
    ("the same", r"\bthe same(?=[.,;:)]| as\b| for\b)", 10.6, 0.5),
    ("lie", r"\b(?:lies?|lay|lain)\b", 0.0, 0.0),
    ("stand", r"\bstands?\b", 0.0, 0.0),
    ("hold", r"\b(?:holds?|held)\b", 1.6, 2.5),
    ("carry out", r"\bcarr(?:y|ied|ies) out\b", 0.0, 0.0),
    ("bring along", r"\b(?:brings|brought|comes? along)\b", 0.1, 0.1),
    ("mended", r"\b(?:parted|unfolds?|spoil(?:s|ed)?|mend(?:s|ed)?|spel[tl]s? out)\b", 0.1, 0.0),
    ("told apart", r"\btold apart\b", 0.0, 0.0),
    ("pay", r"\b(?:pays|paid)\b", 0.1, 0.0),
    ("turn", r"\bturns?\b", 3.1, 0.3),
    ("room", r"\brooms?\b", 0.1, 0.0),
    ("so many", r"\bso (?:many|much|few)\b", 0.2, 0.1),
    ("Of ...", r"(?:^|[.!?] )Of ", 0.0, 0.0),
    (
        "what = noun",
        r"\bwhat (?:is|was|are|an?|it|they|the|has|had|does|did|decides|makes|comes|goes|can|may|must|you|we)\b",
        2.7,
        0.4,
    ),
    ("as it is", r"\bas (?:it|they|he|\w+) (?:do|does|says?|has|is|was)\b", 0.2, 0.2),
    ("the one that", r"\bones? (?:that|which)\b", 0.1, 0.0),
    ("perhaps", r"\b(?:perhaps|likewise)\b|\belse\b", 1.1, 1.0),
    ("another one", r"\b(?:rather an?|another one)\b", 0.1, 0.0),
)


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


def test_the_language_of_the_field() -> None:
    """No pattern is more frequent than at its last count, or than twice its rate in the field."""
    wrong = []
    for (name, regex, anchors, counted), rate in zip(PATTERNS, rates().values(), strict=True):
        if rate > (limit := max(2 * anchors, counted)):
            most = sorted(((hits(name, regex, text), file) for file, text in prose().items()), reverse=True)[:5]
            files = ", ".join(f"{file} ({count})" for count, file in most if count)
            wrong.append(f"{name!r}: {rate:.1f} per 10,000 words, at most {limit:.1f}; most in {files}")
    assert not wrong, "\n".join(wrong)


def test_strings_and_comments_are_counted_and_code_is_not() -> None:
    source = '"""Picture."""\nX = f"no sound of {1}, `went on`"  # it goes on\nsound = "picture"\nY: int\n"""A sound."""\n'
    text = prose_of_python(source)
    assert [hits(name, regex, text) for name, regex, *_ in PATTERNS if name in ("go on", "picture", "sound")] == [1, 0, 2]
    assert prose_of_markdown("A `picture` and\n```bash\npicture\n```\na sound").split() == ["A", "CODE", "and", "a", "sound"]
    assert len(prose()) > 100 and words(prose().values()) > 50_000


if __name__ == "__main__":
    today = rates()
    for name, regex, anchors, _ in PATTERNS:
        print(f'    ("{name}", r"{regex}", {anchors}, {math.ceil(today[name] * 10) / 10}),')
