"""Zero-shot accuracy against a naive version, prompts of every form, and the ways to pair names with wrong numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicse.evaluation.task import EvaluationError
from multicse.evaluation.tasks import zero_shot
from multicse.evaluation.tasks.zero_shot import Prompts, ZeroShotTask, read_prompts
from tests.evaluation.evaluation_helpers import Bag, unit
from tests.evaluation.paired_helpers import Coded, decoded, image_shards, sound_shards


class Noisy(Bag):
    """Texts as bags of words; item i lies near the prompt of class i % 7, in one of three cases nearer to another."""

    names = ("dog", "cat", "red car", "house", "food", "guitar", "woman")

    def __init__(self, constant: bool = False) -> None:
        super().__init__()
        self.constant = constant

    def encode(self, items: list[Any], modality: str = "text") -> np.ndarray:
        if self.constant:
            return np.ones((len(items), self.width))
        if modality == "text":
            return super().encode(items)
        return np.stack([self.item(decoded(item)) for item in items])

    def item(self, number: int) -> np.ndarray:
        near = number % 7 if number % 3 else (number + 1) % 7
        noise = np.random.default_rng(number).standard_normal(self.width)
        return 3 * Bag().encode([self.names[near]])[0] + 0.7 * noise


LABELS = [i % 7 for i in range(70)]
NOTHING: list[list[str]] = [[]] * 70


@pytest.mark.parametrize("modality", ["image", "audio"])
def test_against_a_naive_version(tmp_path: Path, modality: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zero_shot, "PROMPTS", 5)  # several chunks of prompts
    shards = (image_shards if modality == "image" else sound_shards)(tmp_path, NOTHING, LABELS)
    templates = ["the {}", "a small {label} runs", "{}"]
    encoder = Noisy()
    score = ZeroShotTask("x", shards, Noisy.names, templates).score(encoder)
    texts = list(encoder.seen)

    prompts = [[t.replace("{label}", name).replace("{}", name) for t in templates] for name in Noisy.names]
    assert texts == [text for group in prompts for text in group]  # each once
    classes = [unit(np.mean([unit(Bag().encode([text])[0]) for text in group], axis=0)) for group in prompts]
    order = np.argsort([[-unit(encoder.item(i)) @ c for c in classes] for i in range(70)], axis=1)
    right = order[:, 0] == LABELS
    assert 0.3 < right.mean() < 0.9
    assert score.metrics == pytest.approx(
        {"accuracy": 100 * right.mean(), "accuracy_top5": 100 * np.mean([LABELS[i] in order[i, :5] for i in range(70)])}
    )
    assert score.details["ties"] == 0
    assert score.examples is not None and (score.examples == right).all()
    each = {f"{c} {name}": 100 * right[np.asarray(LABELS) == c].mean() for c, name in enumerate(Noisy.names)}
    assert score.details["per_class"] == pytest.approx(each)
    assert score.details["mean_per_class"] == pytest.approx(np.mean(list(each.values())))


def test_one_vector_for_everything_is_at_chance(tmp_path: Path) -> None:
    task = ZeroShotTask("x", image_shards(tmp_path, NOTHING, LABELS), Noisy.names)
    metrics, details, examples = task.score(Noisy(constant=True))
    assert examples is None  # nothing is simply right or wrong
    assert metrics == pytest.approx({"accuracy": 100 / 7, "accuracy_top5": 500 / 7}) and details["ties"] == 70


def test_classes_of_one_name_share_their_samples(tmp_path: Path) -> None:
    task = ZeroShotTask("x", image_shards(tmp_path, [[]] * 3, [0, 1, 2]), ["c0", "c1", "c1"], ["{}"])
    details = task.score(Coded()).details  # the third picture lies somewhere, but ties with the other of its name
    assert details["ties"] == 2
    assert [details["per_class"][name] for name in ("0 c0", "1 c1")] == [100, 50]


def test_defaults_come_from_the_shards(tmp_path: Path) -> None:
    task = ZeroShotTask("x", image_shards(tmp_path, [[]] * 2, [0, 1], classes=["c0_a", "c1 b"]))
    assert (task.classes, task.templates) == (("c0 a", "c1 b"), ("a photo of a {}.",))
    sounds = sound_shards(tmp_path / "s", [[]] * 2, [0, 1])
    assert ZeroShotTask("x", sounds, ["a", "b"]).templates == ("This is a sound of {}",)
    assert task.score(Coded()).metrics == {"accuracy": 100.0}  # two classes: top-5 would say nothing


@pytest.mark.parametrize(("labels", "sample"), [([0, 1, 2], "0002"), (None, "0000")])
def test_labels_that_do_not_fit(tmp_path: Path, labels: list[int] | None, sample: str) -> None:
    shards = image_shards(tmp_path, [[]] * 3, labels)
    with pytest.raises(EvaluationError, match=sample):
        ZeroShotTask("x", shards, ["c0", "c1"]).score(Coded())


# ----------------------------------------------------------------------------------------------------------------- prompts


def test_read_prompts(tmp_path: Path) -> None:
    file = tmp_path / "p.json"
    for content, want in (
        (["dog", "sea waves"], Prompts(("dog", "sea waves"))),
        ({"classes": ["a", "b"], "templates": ["a {}"]}, Prompts(("a", "b"), ("a {}",))),
    ):
        file.write_text(json.dumps(content))
        assert read_prompts(file) == want
