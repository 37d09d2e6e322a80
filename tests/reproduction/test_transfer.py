"""SentEval's files, pair features, order of the folds, and the seven tasks compared with scikit-learn."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from multicse.data.errors import DataError
from multicse.evaluation.report import TRANSFER
from multicse.evaluation.task import EvaluationError, encode_once
from multicse.reproduction.tasks import transfer
from multicse.reproduction.tasks.classifiers import Protocol
from multicse.reproduction.tasks.transfer import make
from tests.evaluation.evaluation_helpers import Bag
from tests.reproduction.miniatures import put, senteval

QUICK = Protocol(kfold=2, batch=4, tenacity=9, l2=(1e-5, 1e-2))


@pytest.mark.parametrize("name", TRANSFER)
def test_the_seven_tasks(name: str, tmp_path: Path) -> None:
    data = senteval(tmp_path / "downstream")
    assert transfer.Transfer.found(data, []) == list(TRANSFER)
    task, encoder = make(name, data, QUICK), Bag(32)
    metrics, details, _ = task.score(encode_once([task], encoder))
    assert encoder.calls == 1
    assert len(set(encoder.seen)) == len(encoder.seen)
    assert metrics["accuracy"] > 85
    assert set(metrics) == ({"accuracy", "f1"} if name == "mrpc" else {"accuracy"})
    assert json.loads(json.dumps(details))["protocol"]["kfold"] == 2
    folds = 2 if "all" in details else 1
    assert len(details["l2"]) == len(details["folds"]) == folds
    assert sum(details.get(part, 0) for part in ("all", "train", "dev", "test")) == 24 * (len(task.data.parts))


COUNTS = {"mr": 10662, "cr": 3775, "subj": 10000, "mpqa": 10606, "sst2": 67349 + 872 + 1821, "trec": 5952, "mrpc": 5801}
"""Numbers of rows of the published datasets."""


@pytest.mark.parametrize("name", TRANSFER)
def test_published_sizes(name: str, datasets: Path) -> None:
    parts = make(name, datasets / "senteval" / "downstream").data.parts
    assert sum(map(len, parts.values())) == COUNTS[name]
    if name == "mrpc":
        assert any('"' in row.text for row in parts["train"]), "quotes are text, not quotation of a field"
        assert not any("\ufeff" in row.text for row in parts["train"])


def test_encodings_and_blanks(tmp_path: Path) -> None:
    latin, utf8 = "DESC:def Qu\u00e9 es ?\n".encode("latin-1"), "HUM:ind Qui\u00e9n  es\u0085 ?\n".encode()
    put(tmp_path, {"TREC/train_5500.label": latin * 2 + b"HUM:ind who\n" * 2, "TREC/TREC_10.label": utf8})
    task = make("trec", tmp_path, QUICK)
    assert {row.text for row in task.data.parts["train"]} == {"Qué es ?", "who"}
    assert task.data.parts["test"][0].text == "Quién es ?"
    put(tmp_path, {"CR/custrev.pos": "good\n\nfine\ngreat\n", "CR/custrev.neg": "bad\nawful\n \nworse\n"})
    task = make("cr", tmp_path, QUICK)
    assert len(task.data.parts["all"]) == 8  # the published counts of CR include blank lines
    assert task.score(Bag()).details["blank"] == 2


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("mr", "MR/rt-polarity.pos", None, "rt-polarity.pos"),
        ("cr", "CR/custrev.pos", "good\n", "2 folds need 4"),
        ("sst2", "SST/binary/sentiment-dev", "good film\n", "sentiment-dev, line 1"),
        ("trec", "TREC/TREC_10.label", "HUM:a who\nNUM:b x\n", "TREC_10.label, line 2"),
        ("mrpc", "MRPC/msr_paraphrase_test.txt", "header\n1\t2\t3\ta b\n", "test.txt, line 2"),
    ],
)
def test_bad_files(name: str, file: str, content: str | None, message: str, tmp_path: Path) -> None:
    folder = senteval(tmp_path)
    (folder / file).unlink(missing_ok=True) if content is None else put(folder, {file: content})
    with pytest.raises((EvaluationError, DataError), match=message):
        make(name, folder, QUICK)
