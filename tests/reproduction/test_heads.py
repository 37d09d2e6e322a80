"""The papers' heads of `classify:`, found by their names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from multicse.evaluation.registry import make_tasks
from multicse.evaluation.task import EvaluationError, Probing
from multicse.pipelines.evaluate import Arguments, _check_probing, run
from multicse.reproduction.tasks import probe
from multicse.reproduction.tasks.probe import three_layers
from tests.evaluation.evaluation_helpers import WORDS, Bag
from tests.evaluation.tasks.test_classification import examples, write


@pytest.mark.parametrize("head", ["senteval", "three-layers"])
def test_scores(head: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(probe.PRESETS, "test", probe.TEST.replace(batch=8))
    path = write(tmp_path / "words.tsv", examples(420, tuple(WORDS[:7])))
    (task,) = make_tasks([f"classify:{path}?head={head}"], probing=Probing(seed=3))
    metrics, details, _ = task.score(Bag(32))
    assert list(metrics) == ["accuracy", "precision", "recall", "f1", "matthews"]
    assert metrics["accuracy"] > 75
    assert 100 * np.trace(details["confusion"]) / 42 == pytest.approx(metrics["accuracy"])
    assert details["protocol"]["seed"] == 3 and details["head"] == head
    assert metrics == task.score(Bag(32)).metrics


def test_an_unknown_head(tmp_path: Path) -> None:
    path = write(tmp_path / "words.tsv", examples(40))
    with pytest.raises(EvaluationError, match="Did you mean 'three-layers'"):
        make_tasks([f"classify:{path}?head=threelayers"])


def test_settings_that_the_usual_head_does_not_have_are_refused(tmp_path: Path) -> None:
    plain = f"classify:{write(tmp_path / 'words.tsv', examples(40))}"
    with pytest.raises(EvaluationError, match=r"^--protocol and --hidden: .*classify:words .*head=senteval"):
        run(Arguments(model="none", tasks=(plain,), protocol="fast", hidden=50))
    _check_probing(Probing(), [plain], make_tasks([plain]))
    _check_probing(Probing(hidden=50), [plain, "mr"], make_tasks([plain]))  # which has them
    _check_probing(Probing(hidden=50), [f"{plain}?head=senteval"], make_tasks([f"{plain}?head=senteval"]))


def test_the_papers_head() -> None:
    shapes = [tuple(p.shape) for p in three_layers(768, 7).parameters() if p.ndim == 2]
    assert shapes == [(3072, 768), (768, 3072), (7, 768)]
