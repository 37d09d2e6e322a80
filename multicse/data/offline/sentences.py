"""Sentences from the test data of gensim."""

from __future__ import annotations

import bz2
import html
import re
from collections.abc import Iterator
from pathlib import Path

WIKI_EXCERPT = "enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
LEE_BACKGROUND, LEE_EVALUATION = "lee_background.cor", "lee.cor"


def wiki_sentences() -> list[str]:
    """Return about 20,000 different English sentences of 5 to 60 words, from 101 Wikipedia articles and 300 news texts.

    Both are included in gensim (its Wikipedia excerpt, CC BY-SA, and the background documents of the Lee corpus). Sentences
    of the 50 rated documents of the Lee corpus are left out, because the demo is evaluated on these documents.
    """
    from gensim.corpora.wikicorpus import extract_pages, filter_wiki
    from gensim.test.utils import datapath

    def paragraphs() -> Iterator[str]:
        with bz2.open(datapath(WIKI_EXCERPT)) as file:
            for _, text, _ in extract_pages(file, filter_namespaces=("0",)):
                yield from _plain(filter_wiki(text))
        news = Path(datapath(LEE_BACKGROUND)).read_text(encoding="utf-8")
        yield from re.sub(r"</?\w+>", "", news).splitlines()

    rated = Path(datapath(LEE_EVALUATION)).read_text(encoding="latin-1").splitlines()
    banned = {_letters(sentence) for document in rated for sentence in _split_sentences(document)}
    found: dict[str, str] = {}  # letters of a sentence, by which sentences are compared -> the sentence
    for paragraph in paragraphs():
        for sentence in _split_sentences(paragraph):
            if 5 <= len(sentence.split()) <= 60 and (letters := _letters(sentence)) not in banned:
                found.setdefault(letters, sentence)
    return list(found.values())


_MARKUP = re.compile(r"[{}|\[\]<>=\\_~]|https?:|\.(?:jpe?g|png|svg|gif)\b|^\s*[*#:;!]", re.IGNORECASE)


def _plain(text: str) -> Iterator[str]:
    """Yield paragraphs of prose, without headings, lists, captions and remains of tables and templates."""
    for line in text.splitlines():
        line = html.unescape(re.sub(r"'{2,}", "", line))
        line = re.sub(r"\(\s*[;,\s]*\)|\(\s*[;,]\s*(?=\w)", lambda m: "(" if m[0].endswith(("; ", ", ")) else "", line)
        line = re.sub(r"\s+", " ", line).strip()
        line = re.sub(r" ([,.;:)])", r"\1", line)
        if len(line) > 60 and not _MARKUP.search(line):
            yield line


_ABBREVIATION = re.compile(
    r"(?:\b(?:Mr|Mrs|Ms|Dr|Prof|St|Mt|Jr|Sr|vs|etc|ca|cf|al|No|Vol|pp|Gen|Col|Capt|Lt|Sgt|Rev|Hon|Gov|Sen|Rep|Inc|Ltd|Co|Corp|"
    r"Jan|Feb|Mar|Apr|Aug|Sept|Oct|Nov|Dec|approx|fl|esp|i\.e|e\.g|c|v|d|b)|\b[A-Z]|\b[A-Za-z]\.[A-Za-z])\.$"
)
_END = re.compile(r"[.!?][\"'”’)\]]*(?=\s+[\"'“‘(]*[A-Z0-9])")


def _split_sentences(text: str) -> list[str]:
    """Split an English paragraph after . ! ? before a capital or digit, except after abbreviations, to sentences."""
    sentences, start = [], 0
    for end in _END.finditer(text):
        if not _ABBREVIATION.search(text[start : end.start() + 1]):
            sentences.append(text[start : end.end()].strip())
            start = end.end()
    sentences.append(text[start:].strip())
    return [sentence for sentence in sentences if re.fullmatch(r"[\"'“‘(]*[A-Z0-9].*[.!?][\"'”’)\]]*", sentence)]


def _letters(sentence: str) -> str:
    return re.sub(r"\W+", " ", sentence).strip().casefold()
