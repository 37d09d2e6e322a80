"""Zero-shot classification of images and audio: the predicted class is the one with the most similar prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from multicse import plugins
from multicse.data.settings import Place
from multicse.data.streams.pairs import PLACEHOLDERS, class_name_mismatch, fill, words
from multicse.data.text_files import read_text
from multicse.evaluation.kind import Kind
from multicse.evaluation.task import Encoder, EvaluationError, Score, Task, embed, metric_name, unit
from multicse.evaluation.tasks.paired_items import PairedTask
from multicse.evaluation.tasks.retrieval import TIE

TEMPLATES = {"image": ("a photo of a {}.",), "audio": ("This is a sound of {}",)}  # CLIP's and CLAP's
PROMPTS = 4096  # approximate number of prompts encoded at a time


class Prompts(NamedTuple):
    """Class names in the order of their numbers, and templates; empty if the file has none."""

    classes: tuple[str, ...]
    templates: tuple[str, ...] = ()


class ZeroShotTask(PairedTask):
    """Top-1 accuracy of labelled images or audio clips, and top-5 accuracy for more than five classes, in points.

    A class is represented by the normalised mean of the unit vectors of its prompts (Radford et al. 2021, section 3.1.4). If
    the right class ties with others, the sample counts as the probability that a random choice among them is right: constant
    embeddings are at chance level, and classes with equal names (ImageNet has two of "missile" and "sunglasses") share
    samples.

    Args:
        classes: Names of the classes 0, 1, .... Default: the names in the shards, with spaces instead of underscores.
        templates: Prompts with ``{}`` or ``{label}``. Default: CLIP's for images, CLAP's for audio.
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
                f"task {self.name}: the dataset.json of the shards names {len(self.classes)} classes; pass "
                "zero-shot:SHARDS?classes=FILE, a JSON list in the order of the class numbers"
            )
        if wrong := class_name_mismatch(self.samples.classes, list(self.classes)):
            raise EvaluationError(f"task {self.name}: {wrong}, or omit the option classes")
        for template in self.templates:
            if not any(mark in template for mark in PLACEHOLDERS):
                raise EvaluationError(f"task {self.name}: the template {template!r} has no {{}} or {{label}} for the class")

    @property
    def hash(self) -> str:
        """SHA-256 of shards, class names and templates."""
        prompts = json.dumps([self.samples.hash, self.classes, self.templates])
        return hashlib.sha256(prompts.encode()).hexdigest()

    def score(self, encoder: Encoder) -> Score:
        """Return accuracies; details are the accuracy per class, the number of ties and of classes without samples.

        `Score.examples` is whether each sample is right, (N,), or None if there are ties.
        """
        weights = self._class_vectors(encoder)
        counts, labels = [], []
        for chunk in self.samples.chunks():
            found = [sample.label(len(self.classes)) for sample in chunk]
            vectors = unit(embed(encoder, [sample.item for sample in chunk], self.modality))
            if vectors.shape[1] != weights.shape[1]:
                sizes = f"{vectors.shape[1]} and {weights.shape[1]}"
                raise EvaluationError(f"task {self.name}: embeddings of {self.modality} and text have {sizes} dimensions")
            scores = vectors @ weights.T
            ahead = scores - scores[np.arange(len(found)), found][:, None]
            counts.append(np.stack([(ahead > TIE).sum(1), (abs(ahead) <= TIE).sum(1)]))  # the right class is equal to itself
            labels += found
        higher, equal = np.concatenate(counts, axis=1)
        return self._score(higher, equal, np.asarray(labels))

    def _score(self, higher: np.ndarray, equal: np.ndarray, labels: np.ndarray) -> Score:
        """Compute the result from the number of classes that score higher than, and equal to, the right class (N,)."""
        ties = int((equal > 1).sum())
        first, fifth = (100 * ((k - higher) / equal).clip(0, 1) for k in (1, 5))
        metrics = {"accuracy": float(first.mean())}
        if len(self.classes) > 5:
            metrics["accuracy_top5"] = float(fifth.mean())
        present = sorted(set(labels.tolist()))
        each = {f"{n} {self.classes[n]}": float(first[labels == n].mean()) for n in present}
        counts = {"samples": len(labels), "classes": len(self.classes), "templates": len(self.templates), "ties": ties}
        details = {
            **counts,
            "classes_without_samples": len(self.classes) - len(present),
            "mean_per_class": float(np.mean(list(each.values()))),
            "per_class": each,
        }
        return Score(metrics, details, None if ties else higher == 0)

    def _class_vectors(self, encoder: Encoder) -> np.ndarray:
        """Return the normalised mean of the unit vectors of every class's prompts, (classes, d), float64."""
        size = max(1, PROMPTS // len(self.templates))  # classes at a time
        means = []
        for start in range(0, len(self.classes), size):
            group = self.classes[start : start + size]
            vectors = unit(embed(encoder, [fill(template, name) for name in group for template in self.templates]))
            means.append(vectors.reshape(len(group), len(self.templates), -1).mean(1))
        return unit(np.concatenate(means))


class ZeroShot(Kind):
    """Shards of labelled images or audio."""

    kind: Literal["zero-shot"] = "zero-shot"
    classes: Place | None = None
    """JSON file of the names of the classes, in the order of their numbers. If None, the names in the shards."""
    templates: Place | None = None
    """JSON file of templates, or the name of a list of the kit. If None, the templates in `classes`, otherwise CLIP's for
    images and CLAP's for audio."""

    def make(self, seed: int) -> Task:
        """Return the task; a set that is measured with several lists of templates has a score for each."""
        prompts, title = read_prompts(self.classes) if self.classes else Prompts(()), self.title
        templates = prompts.templates
        if self.templates is not None:
            templates = plugins.every("templates").get(self.templates) or read_prompts(self.templates).templates
            if not templates:
                raise EvaluationError(
                    f"task {title}: {self.templates} contains no templates; it needs {{'templates': ['... {{}} ...']}}"
                )
            title += f"-{metric_name(Path(self.templates).stem)}"
        return ZeroShotTask(title, self.place, prompts.classes, templates)


# ----------------------------------------------------------------------------------------------------------------- prompts


def read_prompts(path: str | Path) -> Prompts:
    """Read a JSON file: ``{"classes": [...], "templates": [...]}``, or a list of classes."""
    path = Path(path).expanduser()
    try:
        record = json.loads(read_text(path))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read as a JSON file: {error}") from error
    classes = record.get("classes") if isinstance(record, dict) else record
    if not isinstance(classes, list) or not classes or not all(name and isinstance(name, str) for name in classes):
        raise EvaluationError(f'{path}: expected a list of names or {{"classes": [...], "templates": [...]}}')
    return Prompts(tuple(classes), tuple(record.get("templates", []) if isinstance(record, dict) else []))
