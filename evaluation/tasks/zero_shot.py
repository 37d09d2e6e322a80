"""Zero-shot classification of pictures and sounds: the class whose name, put into prompts, lies nearest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from multicse.data.streams.pairs import PLACEHOLDERS, class_name_mismatch, fill, words
from multicse.evaluation.task import Encoder, EvaluationError, Score, embed, unit
from multicse.evaluation.tasks.paired_items import PairedTask
from multicse.evaluation.tasks.retrieval import TIE

TEMPLATES = {"image": ("a photo of a {}.",), "audio": ("This is a sound of {}",)}  # CLIP's and CLAP's
PROMPTS = 4096  # prompts encoded at a time, about

TEMPLATE_LISTS: dict[str, tuple[str, ...]] = {}
"""Templates of plugins, by the names that ``zero-shot:SHARDS?templates=NAME`` takes."""


class Prompts(NamedTuple):
    """Class names in the order of their numbers, and templates (none: the file has none)."""

    classes: tuple[str, ...]
    templates: tuple[str, ...] = ()


class ZeroShotTask(PairedTask):
    """Top-1 accuracy, and top-5 when there are more than five classes, of pictures or sounds with a class. In points.

    A class is the normalised mean of the normalised vectors of all its prompts (Radford et al. 2021, section 3.1.4). A
    sample whose class ties with others counts as the share of them that a draw would get right: an encoder that gives
    everything one vector is at chance, and classes of the same name (ImageNet has two of "missile" and of "sunglasses")
    share their samples.

    `classes` are the names of the class numbers 0, 1, ...; by default those of the shards, underscores read as blanks.
    `templates` hold ``{}`` or ``{label}``; by default one, CLIP's for pictures and CLAP's for sounds.

    Raises EvaluationError when the shards name another number of classes, or the same classes in another order.
    """

    primary = "accuracy"

    def __init__(
        self,
        name: str,
        shards: str | Path | Sequence[str],
        classes: Sequence[str] | None = None,
        templates: Sequence[str] | None = None,
    ) -> None:
        super().__init__(name, shards)
        self.classes = tuple(classes or (words(name) for name in self.samples.classes))
        self.templates = tuple(templates or TEMPLATES[self.modality])
        if len(self.classes) < 2:
            raise EvaluationError(
                f"task {self.name}: {len(self.classes)} classes in the shards' dataset.json; name them by "
                "zero-shot:SHARDS?classes=FILE, a JSON list in the order of the class numbers"
            )
        if wrong := class_name_mismatch(self.samples.classes, list(self.classes)):
            raise EvaluationError(f"task {self.name}: {wrong}, or leave the classes out")
        for template in self.templates:
            if not any(mark in template for mark in PLACEHOLDERS):
                raise EvaluationError(f"task {self.name}: the template {template!r} has no {{}} or {{label}} for the class")

    @property
    def hash(self) -> str:
        """sha256 of the shards, the class names and the templates."""
        prompts = json.dumps([self.samples.hash, self.classes, self.templates])
        return hashlib.sha256(prompts.encode()).hexdigest()

    def score(self, encoder: Encoder) -> Score:
        """Accuracies; in the details that of every class, samples tied with a wrong one, classes without samples.

        `Score.examples` are which samples are right (N,), or None when some tie, since these are right in part.
        """
        weights = class_vectors(encoder, self.classes, self.templates)
        counts, labels = [], []
        for chunk in self.samples.chunks():
            found = [sample.label(len(self.classes)) for sample in chunk]
            vectors = unit(embed(encoder, [sample.item for sample in chunk], self.modality))
            if vectors.shape[1] != weights.shape[1]:
                sizes = f"{vectors.shape[1]} and {weights.shape[1]}"
                raise EvaluationError(f"task {self.name}: {self.modality}s and texts are of {sizes} dimensions")
            scores = vectors @ weights.T
            ahead = scores - scores[np.arange(len(found)), found][:, None]
            counts.append(np.stack([(ahead > TIE).sum(1), (abs(ahead) <= TIE).sum(1)]))  # itself is among the equal
            labels += found
        higher, equal = np.concatenate(counts, axis=1)
        return self._score(higher, equal, np.asarray(labels))

    def _score(self, higher: np.ndarray, equal: np.ndarray, labels: np.ndarray) -> Score:
        """From the number of classes that score higher than each sample's own, and as high (N,)."""
        ties = int((equal > 1).sum())
        first, fifth = (100 * ((k - higher) / equal).clip(0, 1) for k in (1, 5))
        metrics = {"accuracy": float(first.mean())}
        if len(self.classes) > 5:
            metrics["accuracy_top5"] = float(fifth.mean())
        present = sorted(set(labels.tolist()))
        each = {f"{n} {self.classes[n]}": float(first[labels == n].mean()) for n in present}
        details = {
            "samples": len(labels),
            "classes": len(self.classes),
            "templates": len(self.templates),
            "ties": ties,
            "classes_without_samples": len(self.classes) - len(present),
            "mean_per_class": float(np.mean(list(each.values()))),
            "per_class": each,
        }
        return Score(metrics, details, None if ties else higher == 0)


def class_vectors(encoder: Encoder, classes: Sequence[str], templates: Sequence[str]) -> np.ndarray:
    """A unit vector (C, d), float64, for each class: the mean of the unit vectors of its prompts, normalised."""
    size = max(1, PROMPTS // len(templates))  # classes at a time
    means = []
    for start in range(0, len(classes), size):
        group = classes[start : start + size]
        vectors = unit(embed(encoder, [fill(template, name) for name in group for template in templates]))
        means.append(vectors.reshape(len(group), len(templates), -1).mean(1))
    return unit(np.concatenate(means))


# ----------------------------------------------------------------------------------------------------------------- prompts


def read_prompts(path: str | Path) -> Prompts:
    """Classes and templates of a JSON file, ``{"classes": [...], "templates": [...]}``, or classes alone, ``["dog", ...]``.

    Raises EvaluationError for a missing file, another form, and no names.
    """
    path = Path(path).expanduser()
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read as a JSON file: {error}") from error
    classes = record.get("classes") if isinstance(record, dict) else record
    if not isinstance(classes, list) or not classes or not all(name and isinstance(name, str) for name in classes):
        raise EvaluationError(f'{path} is neither a list of names nor {{"classes": [...], "templates": [...]}} with them')
    return Prompts(tuple(classes), tuple(record.get("templates", []) if isinstance(record, dict) else []))
