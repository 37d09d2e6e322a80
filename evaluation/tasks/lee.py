"""The Lee corpus: 50 short news documents, all 1,225 pairs rated by people (Lee, Pincombe and Welsh 2005).

gensim carries it, so it is there on a machine that downloads nothing. It is split by document, so that no document
of the development pairs is seen in the test pairs.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np

from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks.sts import Pairs, PairTask

DEV = frozenset(number for number in range(50) if number % 5 in (0, 1))
PARTS = {  # documents: 30 with 435 pairs, 20 with 190, 50 with 1,225
    "lee": sorted(set(range(50)) - DEV),
    "lee-dev": sorted(DEV),
    "lee-all": list(range(50)),
}


def lee(name: str) -> PairTask:
    """The task ``lee``, ``lee-dev`` or ``lee-all``; ratings are the mean of the raters over 5, so 0.2 to 1.

    Raises EvaluationError when gensim or its test data is absent.
    """
    spec = importlib.util.find_spec("gensim")  # importing gensim costs a second; its files are all that is needed
    folder = Path(spec.origin or "").parent / "test" / "test_data" if spec else Path()
    corpus, ratings = folder / "lee.cor", folder / "similarities0-1.txt"
    if not corpus.is_file() or not ratings.is_file():
        raise EvaluationError("the Lee tasks read the corpus that gensim carries with its test data: pip install gensim")
    texts = corpus.read_text(encoding="latin-1").splitlines()
    gold = np.loadtxt(ratings)  # upper triangle; gold[i, j] for i < j
    pairs = [(i, j) for i in PARTS[name] for j in PARTS[name] if i < j]
    first, second = zip(*((texts[i], texts[j]) for i, j in pairs), strict=True)
    return PairTask(name, Pairs(first, second, tuple(float(gold[i, j]) for i, j in pairs), ("all",) * len(pairs)))
