"""Recipes of rows at the small scale: by the section ``small`` of a paper's TOML file, or by a function of `OWN`."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from multicse.commands import registry
from multicse.pipelines import parts
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.plugins import own_module
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import content, filled
from multicse.trainers.recipe import Recipe

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"
NLI_SHARE = 27
"""Number of NLI triples in NonLing-CSE divided by the number of local ones."""
FEWER, SHORTER, SMALLER = 640, 10, 8
"""Sentences and epochs of GCLSR, and the factor by which batches are smaller: 100 steps instead of 400."""
CLIPS = {"shards/clotho-train": 3_839, "shards/audiocaps-train": 49_838, "shards/musiccaps-train": 2_858}
"""Training clips of CLAP's paper by dataset."""


def row(paper: str, recipe: Recipe, offline: Offline) -> Recipe:
    """Return the recipe of a row of a paper at the small scale, from its recipe at the paper's scale."""
    own = OWN.get(paper)
    return recipe.changed(changes(paper, recipe, offline)) if own is None else own(recipe, offline)


def changes(paper: str, recipe: Recipe, offline: Offline) -> dict[str, Any]:
    """Return the changes of a recipe by the sections ``small`` and ``small.PIPELINE`` of a paper's TOML file.

    Each section may contain ``set`` and ``unset`` (as in rows), ``most`` (upper limits of numbers), ``keep`` (settings that
    keep the value of the recipe) and ``places`` (replacements of shards and word vectors, see `Offline.stand_in`). Settings
    that the recipe does not have are skipped. Placeholders are ``{data}`` (folder of datasets), ``{shards}`` (folder of
    shards), ``{encoder}`` (small encoder) and ``{paper}`` (pipeline).
    """
    section, given = _section(paper, offline), recipe.flat()
    names = {"data": str(offline.data), "shards": str(offline.shards), "encoder": SMALL_ENCODER, "paper": recipe.paper}
    places = section.get("places", {})
    found: dict[str, Any] = {}
    for part in (section, section.get(recipe.paper, {})):
        found |= {path: min(given[path], most) for path, most in part.get("most", {}).items() if path in given}
        found |= {path: given[path] for path in part.get("keep", ()) if path in given}
        found |= filled(part.get("set", {}), names) | dict.fromkeys(part.get("unset", ()))
    found |= {path: offline.stand_in(places[place]) for path, place in given.items() if str(place) in places}
    return {path: value for path, value in found.items() if any(f"{name}.".startswith(f"{path}.") for name in given)}


def model(paper: str, spec: str, offline: Offline) -> str:
    """Return the model of an untrained row at the small scale, from the model at the paper's scale.

    The small encoder replaces a published model; WK uses all its layers. Word vectors, and sentences to fit on, are replaced
    by local ones.
    """
    places = _section(paper, offline).get("places", {})
    how, _, fit = spec.partition(":")
    path = re.split("[@+]", how)[0]
    place = offline.stand_in(places[path]) if path in places else SMALL_ENCODER
    return place + how[len(path) :].replace("@wk", "@wk0") + (f":{offline.stand_in(places[fit])}" if fit else "")


def _section(paper: str, offline: Offline) -> dict[str, Any]:
    """Return the section ``small`` of a paper; the datasets of its columns (``needs`` in `Offline`) are packed first."""
    section: dict[str, Any] = content(paper)["small"]
    for name in section.get("needs", ()):
        getattr(offline, name)()
    return section


def pipeline_of(name: str) -> ModuleType:
    """Return the module of a pipeline, or of the file with this name in examples/ of a clone."""
    file = EXAMPLES / f"{name}.py"
    return own_module(file) if file.is_file() else registry.load(name)


def nonlingcse(recipe: Recipe, offline: Offline) -> Recipe:
    """Return a row of NonLing-CSE: 200 steps of 64 sentences and 48 images or audio clips, selected on STS-B dev.

    Settings that differ between rows are kept: variant, losses, supervision, noise, language, mix-up and masks.
    """
    given = recipe.flat()
    kind = "demo-alternating" if given.get("method.summed") is False and recipe.paper == "uml" else "demo"
    demo: Recipe = pipeline_of(recipe.paper).RECIPES[kind]()
    small = demo.flat()
    own: dict[str, Any] = {}
    if given.get("method.supervised") or given.get("method.text.supervised"):
        own = {"streams.text": parts.nli(64), "run.epochs": recipe.run.epochs}
        if first := given["streams.text.first"]:
            own["streams.text.first"] = first // NLI_SHARE
    own |= changes("nonlingcse", recipe, offline)
    if (select := recipe.evaluation.select or "").startswith("hub:"):
        pairs = offline.data / "stsb_multi" / f"stsb-{select.split(':')[2]}-dev.tsv.gz"
        own["evaluation.select"] = f"pairs:{pairs}"
    if "audio" in recipe.streams:
        for axis in ("bins", "frames"):  # masks keep their relative width
            share = given[f"streams.audio.mask_{axis}"] / given[f"streams.audio.{axis}"]
            own[f"streams.audio.mask_{axis}"] = round(share * small[f"streams.audio.{axis}"])
    return demo.changed(own)


def gclsr(recipe: Recipe, offline: Offline) -> Recipe:
    """Return a row of GCLSR: 640 sentences, half the epochs, batches / 8, narrow layers, vectors of 20,000 sentences."""
    text, optim = recipe.streams["text"], recipe.optim["text"]
    batch = text.batch_size // SMALLER
    own = changes("gclsr", recipe, offline) | {
        "streams.text.batch_size": batch,
        "evaluation.eval_steps": SHORTER * math.ceil(FEWER / batch) // 4,
    }
    rates = {"optim.text.lr": optim.lr, "optim.text.groups.predictor.lr": optim.groups["predictor"].lr}
    return recipe.changed(own | {path: rate / SMALLER for path, rate in rates.items() if rate == optim.lr})


def clip(recipe: Recipe, offline: Offline) -> Recipe:
    """Return a row of CLIP or CLAP with small towers and datasets; losses, variant and relative warm-up are kept."""
    own = changes("clip", recipe, offline)
    if recipe.paper == "cyclip" and recipe.method.variant == "released":
        own["method.variant"] = "fixed"  # the released code truncates texts of CLIP's transformer; the small encoder is BERT
    if recipe.paper == "clap":  # the learning rate and the relative warm-up stay in proportion
        given: Any = recipe.optim["pairs"]
        steps = recipe.steps(CLIPS[recipe.streams["pairs"].shards])
        own["optim.pairs.lr"] = 1e-3 * given.lr / 9e-5
        if given.warmup >= 1:
            own["optim.pairs.warmup"] = round(given.warmup / steps * own["run.max_steps"])
    return recipe.changed(own)


OWN: dict[str, Callable[[Recipe, Offline], Recipe]] = {"nonlingcse": nonlingcse, "gclsr": gclsr, "clip": clip}
"""Functions for papers that need more than their section ``small``."""
