"""Zero-shot classification of pictures and sounds: the class whose name, put into prompts, lies nearest."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multicse.data.errors import did_you_mean
from multicse.data.streams.pairs import PLACEHOLDERS, class_name_mismatch, fill, words
from multicse.evaluation.task import Encoder, EvaluationError, Score, embed, unit
from multicse.evaluation.tasks.paired_items import Sample, Samples
from multicse.evaluation.tasks.retrieval import TIE

logger = logging.getLogger(__name__)

TEMPLATES = {"image": ("a photo of a {}.",), "audio": ("This is a sound of {}",)}  # CLIP's and CLAP's
PROMPTS = 4096  # prompts encoded at a time, about

TEMPLATE_LISTS: dict[str, tuple[str, ...]] = {}
"""Templates of plugins, by the names that ``zero-shot:SHARDS?templates=NAME`` takes."""

Name = str | tuple[str, ...]  # a class: its name, or several names for the same


class Prompts(NamedTuple):
    """Class names in the order of their numbers, and templates (none: the file has none)."""

    classes: tuple[Name, ...]
    templates: tuple[str, ...] = ()


class ZeroShotTask:
    """Top-1 accuracy, and top-5 when there are more than five classes, of pictures or sounds with a class. In points.

    A class is the normalised mean of the normalised vectors of all its prompts (Radford et al. 2021, section 3.1.4); a
    class with several names has the prompts of all of them. A sample whose class ties with others counts as the share of
    them that a draw would get right: an encoder that gives everything one vector is at chance, and classes of the same
    name (ImageNet has two of "missile" and of "sunglasses") share their samples.

    `classes` are the names of the class numbers 0, 1, ...; by default those of the shards, underscores read as blanks.
    `templates` hold ``{}`` or ``{label}``; by default one, CLIP's for pictures and CLAP's for sounds.

    Raises EvaluationError when the shards name another number of classes, or the same classes in another order.
    """

    primary = "accuracy"

    def __init__(
        self,
        name: str,
        shards: str | Path | Sequence[str],
        classes: Sequence[Name] | None = None,
        templates: Sequence[str] | None = None,
    ) -> None:
        self.name = name
        self.samples = Samples(name, shards)
        self.modality = self.samples.modality
        if self.modality not in TEMPLATES:
            raise EvaluationError(f"task {name}: the shards hold texts only; zero-shot classes are of pictures or sounds")
        self.classes: tuple[Name, ...] = tuple(classes or (words(name) for name in self.samples.classes))
        self.templates = tuple(templates or TEMPLATES[self.modality])
        self._check()

    def _check(self) -> None:
        if len(self.classes) < 2:
            raise EvaluationError(
                f"task {self.name}: {len(self.classes)} classes; the shards name none in a dataset.json, so give them: "
                "zero-shot:SHARDS?classes=FILE, where FILE is a JSON list of names in the order of the class numbers"
            )
        if wrong := class_name_mismatch(self.samples.classes, [_names(names)[0] for names in self.classes]):
            raise EvaluationError(f"task {self.name}: {wrong}, or leave the classes out")
        for template in self.templates:
            if not any(mark in template for mark in PLACEHOLDERS):
                raise EvaluationError(
                    f"task {self.name}: the template {template!r} has no place for the class; write {{}} or {{label}} there"
                )

    @property
    def hash(self) -> str:
        """sha256 of the shards, the class names and the templates."""
        prompts = json.dumps([self.samples.hash, self.classes, self.templates])
        return hashlib.sha256(prompts.encode()).hexdigest()

    def sentences(self) -> list[str]:
        """None: the prompts of many classes are encoded a chunk at a time, and only a vector a class is kept."""
        return []

    def score(self, encoder: Encoder) -> Score:
        """Accuracies; in the details that of every class, samples tied with a wrong one, classes without samples.

        `Score.examples` are which samples are right (N,), or None when some tie, since these are right in part.
        """
        weights = class_vectors(encoder, self.classes, self.templates)
        counts, labels = [], []
        for chunk in self.samples.chunks():
            found = [self._label(sample) for sample in chunk]
            vectors = unit(embed(encoder, [sample.item for sample in chunk], self.modality))
            if vectors.shape[1] != weights.shape[1]:
                raise EvaluationError(
                    f"task {self.name}: {self.modality}s and texts are of {vectors.shape[1]} and "
                    f"{weights.shape[1]} dimensions, not in one space"
                )
            scores = vectors @ weights.T
            ahead = scores - scores[np.arange(len(found)), found][:, None]
            counts.append(np.stack([(ahead > TIE).sum(1), (abs(ahead) <= TIE).sum(1)]))  # itself is among the equal
            labels += found
        higher, equal = np.concatenate(counts, axis=1)
        return self._score(higher, equal, np.asarray(labels))

    def _label(self, sample: Sample) -> int:
        label = sample.label()
        if label >= len(self.classes):
            raise EvaluationError(
                f"{sample.where}, sample {sample.key!r}: its class number is {label}, but the {len(self.classes)} classes "
                f"are 0 to {len(self.classes) - 1}; give the names of all classes"
            )
        return label

    def _score(self, higher: np.ndarray, equal: np.ndarray, labels: np.ndarray) -> Score:
        """From the number of classes that score higher than each sample's own, and as high (N,)."""
        if ties := int((equal > 1).sum()):
            logger.warning("task %s: %d of %d samples tie with a wrong class", self.name, ties, len(labels))
        first, fifth = (100 * ((k - higher) / equal).clip(0, 1) for k in (1, 5))
        metrics = {"accuracy": float(first.mean())}
        if len(self.classes) > 5:
            metrics["accuracy_top5"] = float(fifth.mean())
        names = [_names(name)[0] for name in self.classes]
        present = sorted(set(labels.tolist()))
        each = {f"{n} {names[n]}": float(first[labels == n].mean()) for n in present}
        absent = [name for n, name in enumerate(names) if n not in set(present)]
        if absent:
            logger.warning("task %s: no sample of %d classes (%s, ...)", self.name, len(absent), ", ".join(absent[:3]))
        details = {
            "samples": len(labels),
            "classes": len(self.classes),
            "templates": len(self.templates),
            "ties": ties,
            "classes_without_samples": len(absent),
            "mean_per_class": float(np.mean(list(each.values()))),
            "per_class": each,
        }
        return Score(metrics, details, None if ties else higher == 0)


def class_vectors(encoder: Encoder, classes: Sequence[Name], templates: Sequence[str]) -> np.ndarray:
    """A unit vector (C, d), float64, for each class: the mean of the unit vectors of its prompts, normalised."""
    prompts = [[fill(template, name) for name in _names(names) for template in templates] for names in classes]
    size = max(1, PROMPTS // max(map(len, prompts)))  # classes at a time
    vectors = []
    for start in range(0, len(prompts), size):
        group = prompts[start : start + size]
        ends = np.cumsum([len(texts) for texts in group])[:-1]
        parts = np.split(unit(embed(encoder, [text for texts in group for text in texts])), ends)
        vectors += [part.mean(0) for part in parts]
    return unit(np.stack(vectors))


def _names(names: Name) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


# ----------------------------------------------------------------------------------------------------------------- prompts


def read_prompts(path: str | Path, name: str | None = None) -> Prompts:
    """Classes and templates of a JSON file, of its set `name` where it holds several (upper and lower case are alike).

    A set is ``{"classes": [...], "templates": [...]}``, where a class may be a list of names; its classes alone,
    ``["dog", ...]``; or class numbers by name, ``{"dog": 0, "crying_baby": 1, ...}``, with underscores for blanks.

    Raises EvaluationError for a missing file, an unknown set, no names, and numbers that are not 0, 1, ....
    """
    path = Path(path).expanduser()
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise EvaluationError(f"{path} cannot be read as a JSON file: {error}") from error
    where = str(path)
    several = isinstance(record, dict) and record and all(isinstance(value, dict) for value in record.values())
    if several != (name is not None):
        sets = f"holds several sets; name one of {', '.join(record)}" if several else f"holds one set; leave {name!r} out"
        raise EvaluationError(f"{path} {sets}")
    if name is not None:
        key = next((key for key in record if key.lower() == name.lower()), None)
        if key is None:
            raise EvaluationError(f"{path} has no set {name!r}.{did_you_mean(name, record)} Sets are {', '.join(record)}")
        record, where = record[key], f"{path}, set {name}"
    if isinstance(record, dict) and record and all(type(number) is int for number in record.values()):
        if sorted(record.values()) != list(range(len(record))):
            raise EvaluationError(f"{where}: the class numbers are not 0 to {len(record) - 1}, each once")
        return Prompts(tuple(words(label) for label in sorted(record, key=record.__getitem__)))
    if isinstance(record, list):
        record = {"classes": record}
    classes = record.get("classes") if isinstance(record, dict) else None
    if not classes or not all(names and all(name and isinstance(name, str) for name in _listed(names)) for names in classes):
        raise EvaluationError(
            f'{where} is neither a list of names (or lists of names), {{"classes": [...], "templates": [...]}}, nor class '
            "numbers by name"
        )
    single = (names[0] if len(names) == 1 else tuple(names) for names in map(_listed, classes))
    return Prompts(tuple(single), tuple(record.get("templates", [])))


def _listed(names: Any) -> list[Any]:
    return names if isinstance(names, list) else [names]
