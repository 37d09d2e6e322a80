"""The Lee corpus: 50 short news documents, all 1,225 pairs rated by people (Lee, Pincombe and Welsh 2005).

gensim carries it, so it is there on a machine that downloads nothing. It is split by document, so that no document
of the development pairs is seen in the test pairs: documents 0, 1, 5, 6, 10, 11, ... (number modulo 5 is 0 or 1) are
``lee-dev`` (20 documents, 190 pairs), the others ``lee`` (30 documents, 435 pairs). ``lee-all`` is all 1,225 pairs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from evaluation.task import EvaluationError
from evaluation.tasks.sts import Pairs, PairTask

PARTS = ("lee", "lee-dev", "lee-all")
DOCUMENTS = 50


def documents(name: str) -> list[int]:
    """Numbers of the documents of a part."""
    dev = {number for number in range(DOCUMENTS) if number % 5 in (0, 1)}
    return [n for n in range(DOCUMENTS) if name == "lee-all" or (n in dev) == (name == "lee-dev")]


def lee(name: str) -> PairTask:
    """The task ``lee``, ``lee-dev`` or ``lee-all``; ratings are the mean of the raters over 5, so 0.2 to 1."""
    texts, gold = _corpus()
    numbers = documents(name)
    pairs = [(i, j) for at, i in enumerate(numbers) for j in numbers[at + 1 :]]
    first, second = zip(*((texts[i], texts[j]) for i, j in pairs), strict=True)
    return PairTask(name, Pairs(first, second, tuple(float(gold[i, j]) for i, j in pairs), ("all",) * len(pairs)))


def _corpus() -> tuple[list[str], np.ndarray]:
    spec = importlib.util.find_spec("gensim")  # importing gensim costs a second; its files are all that is needed
    if spec is None or spec.origin is None:
        raise EvaluationError("the Lee tasks read the corpus that gensim carries: pip install gensim")
    folder = Path(spec.origin).parent / "test" / "test_data"
    corpus, ratings = folder / "lee.cor", folder / "similarities0-1.txt"
    for path in (corpus, ratings):
        if not path.is_file():
            raise EvaluationError(f"no file {path}: this gensim was installed without its test data; reinstall it")
    texts = corpus.read_text(encoding="latin-1").splitlines()
    gold = np.loadtxt(ratings)  # upper triangle; gold[i, j] for i < j
    if len(texts) != DOCUMENTS or gold.shape != (DOCUMENTS, DOCUMENTS):
        raise EvaluationError(f"{corpus} has {len(texts)} documents and {ratings} {gold.shape}; 50 and (50, 50) expected")
    return texts, gold
