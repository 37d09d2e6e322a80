"""MultiCSE: combinations of unpaired images and audio, guidance, synonyms, groups, cycles and whitening."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

if not __package__ and __name__ != "__mp_main__":  # run as a file
    import _clone  # noqa: F401

from multicse.commands.cli import main
from multicse.data.streams.text import TextStream
from multicse.data.streams.triplets import TripletTextStream
from multicse.pipelines import nonlingcse, parts
from multicse.trainers.method import named_updates
from multicse.trainers.multicse import MultiCSEConfig
from multicse.trainers.nonling import NonLingSettings
from multicse.trainers.recipe import Recipe


class Part(NamedTuple):
    """Settings of a recipe."""

    about: str
    kinds: tuple[str, ...] = ()
    """Streams in addition to the text."""
    changes: dict[str, Any] = {}
    synonyms: bool = False
    """Use triples of a sentence, a positive with a synonym and a negative with an antonym."""


PARTS = {
    "text": Part("SimCSE alone"),
    "images": Part("text and unpaired images", ("image",)),
    "audio": Part("text and unpaired audio", ("audio",)),
    "images-audio": Part("text, images and audio", ("image", "audio")),
    "guidance": Part("text and self-guidance", changes={"method.guidance": 1.0}),
    "guided": Part("text dominated by self-guidance", changes={"method.guidance": 10.0, "encoder.pooling": "pooler"}),
    "synonyms": Part("text with synonyms as positives and antonyms as hard negatives", synonyms=True),
    "grouped": Part("text and the grouped cosine", changes={"method.grouped": 0.1}),
    "cyclic": Part("text and images with cyclic consistency", ("image",), {"method.cyclic": 1.0}),
    "whitened": Part("text, whitened before the cosine", changes={"method.shrinkage": 0.5}),
}
WEIGHTS = {"image": 0.05, "audio": 0.01}
"""Weights of the released NonLing-CSE, for the sum of equation 1."""
CHOSEN = "images"
"""Part of the demo."""


def composed(base: Recipe, name: str, lexicon: str | None) -> Recipe:
    """Return a recipe of NonLing-CSE with the streams and settings of `PARTS[name]`, all trained in one update.

    Args:
        base: Recipe of NonLing-CSE with images and audio.
        name: Name of the part.
        lexicon: Lexicon of synonyms: ``small``, or None for the lexicon of WordNet.
    """
    part, given = PARTS[name], base.method
    assert isinstance(given, NonLingSettings)
    method = MultiCSEConfig(text=given.text, **{kind: getattr(given, kind) for kind in part.kinds})
    kinds = (*part.kinds, "text")
    changes: dict[str, Any] = {
        "method": method,
        "streams": {kind: base.streams[kind] for kind in kinds},
        "optim": dict.fromkeys(named_updates(kinds), base.optim["text"]),
    }
    recipe = base.model_copy(update=changes)
    changes = {f"method.{kind}.weight": WEIGHTS[kind] for kind in part.kinds} | part.changes
    if part.synonyms:
        text = recipe.streams["text"]
        assert isinstance(text, TextStream)
        shape = {"shards": text.shards, "batch_size": text.batch_size, "max_length": text.max_length}
        changes["streams.text"] = TripletTextStream(**shape, lexicon=lexicon, without_candidate="keep")
        changes["method.text.supervised"] = True
    return recipe.changed(changes)


def small(name: str) -> Recipe:
    """Return the recipe of `PARTS[name]` that trains in minutes on a laptop, offline."""
    return composed(nonlingcse.offline("nonlingcse").replace("name", "multicse/demo"), name, "small")


def bert_base(name: str) -> Recipe:
    """Return the recipe of `PARTS[name]` with BERT-base, and batch sizes and learning rate of NonLing-CSE's Table 1."""
    return composed(nonlingcse.bert_base().replace("name", "multicse/bert-base"), name, None)


def demo() -> Recipe:
    """Train in minutes on a laptop, offline: Wikipedia sentences, scanned digits, this project's small encoder."""
    return small(CHOSEN).replace("run.output_dir", "runs/multicse/demo")


def smoke() -> Recipe:
    """Train eight steps with all parts, for tests."""
    everything = small("images-audio")
    changes = {path: value for part in PARTS.values() for path, value in part.changes.items()}
    triplets = small("synonyms").streams["text"]
    changes |= {"streams.text": triplets, "method.text.supervised": True, "method.schedule": "cosine"}
    return parts.smoke(everything.changed(changes))


def _row(make: Callable[[str], Recipe], name: str, prefix: str, where: str) -> Callable[[], Recipe]:
    return parts.row(partial(make, name), f"{prefix}{name}", {}, f"{where}: {PARTS[name].about}.")


RECIPES: dict[str, Callable[[], Recipe]] = {
    "demo": demo,
    "smoke": smoke,
    **{name: _row(small, name, "", "Offline") for name in PARTS},
    **{f"bert-base-{name}": _row(bert_base, name, "bert-base-", "BERT-base, one million sentences") for name in PARTS},
}

if __name__ == "__main__":
    main(RECIPES, __doc__)
