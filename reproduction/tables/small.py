"""The small scale: rows by the section ``small`` of a paper's file, and by functions where that cannot say it."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from multicse.pipelines import parts, registry
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import content, filled
from multicse.trainers.recipe import Recipe

NLI_SHARE = 27
"""How many times as many triples the NLI of NonLing-CSE has as the one at hand."""
FEWER, SHORTER, SMALLER = 640, 10, 8
"""GCLSR's sentences, epochs, and by how much batches are smaller: 100 steps where the paper has 400."""


CLIPS = {"clotho": 3_839, "audiocaps": 49_838, "musiccaps": 2_858}
"""Sounds that CLAP's paper trains on, of each of its sets."""


def row(paper: str, recipe: Recipe, offline: Offline) -> Recipe:
    """The recipe of a row on the small encoder and the data at hand."""
    own = OWN.get(paper)
    return recipe.changed(changes(paper, recipe, offline)) if own is None else own(recipe, offline)


def changes(paper: str, recipe: Recipe, offline: Offline) -> dict[str, Any]:
    """What the section ``small`` of a paper's file, and ``small.PIPELINE`` of it, change of a recipe at the small scale.

    Each may have ``set`` and ``unset`` as a row has, ``most``, numbers that settings are cut to, and ``keep``, settings that
    are the recipe's own where something else is changed; a setting that the recipe does not have is left out. ``{data}``
    and ``{shards}`` in a text are the folders of data sets and of packed ones, ``{encoder}`` the small encoder and
    ``{paper}`` the pipeline. ``places``: what stands in for shards and word vectors, see `Offline.stand_in`.
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
    """The model of an untrained row at the small scale: the small encoder, with all its layers for WK, in the place of a
    published one, and what stands in for word vectors and for the sentences that are fitted on."""
    places = _section(paper, offline).get("places", {})
    how, _, fit = spec.partition(":")
    path = re.split("[@+]", how)[0]
    place = offline.stand_in(places[path]) if path in places else SMALL_ENCODER
    return place + how[len(path) :].replace("@wk", "@wk0") + (f":{offline.stand_in(places[fit])}" if fit else "")


def _section(paper: str, offline: Offline) -> dict[str, Any]:
    """The section ``small`` of a paper, once the sets are packed that its columns name: ``needs``, methods of `Offline`."""
    section: dict[str, Any] = content(paper)["small"]
    for name in section.get("needs", ()):
        getattr(offline, name)()
    return section


def nonlingcse(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder of 2 layers: 200 steps of 64 sentences and 48 pictures or sounds, chosen on STS-B dev.

    It keeps what rows vary: variant, losses, supervision, noise, language, mix-up and masks.
    """
    demo: Recipe = registry.load(recipe.paper).RECIPES["demo"]()
    given, small = recipe.flat(), demo.flat()
    own: dict[str, Any] = {}
    method = "method" if recipe.paper == "simcse" else "method.text"
    if given.get(f"{method}.supervised"):
        own = {"streams.text": parts.nli(64), f"{method}.supervised": True, "run.epochs": recipe.run.epochs}
        if first := given["streams.text.first"]:
            own["streams.text.first"] = first // NLI_SHARE
        if given["streams.text.kind"] == "noisy_text":
            own |= {"streams.text.kind": "noisy_text", "streams.text.lexicon": "small"}
            noise = (f"streams.text.{name}" for name in ("deletion", "insertions", "swaps"))
            own |= {path: given[path] for path in noise}
    own |= changes("nonlingcse", recipe, offline)
    if (select := recipe.evaluation.select or "").startswith("hub:"):
        pairs = offline.data / "stsb_multi" / f"stsb-{select.split(':')[2]}-dev.tsv.gz"
        own["evaluation.select"] = f"pairs:{pairs}"
    if "audio" in recipe.streams:
        for axis in ("bins", "frames"):  # masks as wide a share
            share = given[f"streams.audio.mask_{axis}"] / given[f"streams.audio.{axis}"]
            own[f"streams.audio.mask_{axis}"] = round(share * small[f"streams.audio.{axis}"])
    return demo.changed(own)


def gclsr(recipe: Recipe, offline: Offline) -> Recipe:
    """The row with 640 sentences, half the epochs, an eighth of its batch, narrow layers, vectors from 20,000 sentences."""
    text, optim = recipe.streams["text"], recipe.optim["text"]
    batch = text.batch_size // SMALLER
    own = changes("gclsr", recipe, offline) | {
        "streams.text.batch_size": batch,
        "evaluation.eval_steps": SHORTER * math.ceil(FEWER / batch) // 4,
    }
    rates = {"optim.text.lr": optim.lr, "optim.text.groups.predictor.lr": optim.groups["predictor"].lr}
    return recipe.changed(own | {path: rate / SMALLER for path, rate in rates.items() if rate == optim.lr})


def clip(recipe: Recipe, offline: Offline) -> Recipe:
    """The row with its losses, variant and share of warm-up (of sounds also its rate), on small towers and sets."""
    own = changes("clip", recipe, offline)
    if recipe.paper == "cyclip" and recipe.method.variant == "released":
        own["method.variant"] = "fixed"  # that code cuts the texts of CLIP's own transformer, and the small encoder is BERT
    if recipe.paper == "clap":  # the rate and the share of the run that is warm-up stay in proportion
        clips = {f"shards/{name}-train": number for name, number in CLIPS.items()}
        given: Any = recipe.optim["pairs"]
        steps = recipe.steps(clips[recipe.streams["pairs"].shards])
        own["optim.pairs.lr"] = 1e-3 * given.lr / 9e-5
        if given.warmup >= 1:
            own["optim.pairs.warmup"] = round(given.warmup / steps * own["run.max_steps"])
    return recipe.changed(own)


OWN: dict[str, Callable[[Recipe, Offline], Recipe]] = {"nonlingcse": nonlingcse, "gclsr": gclsr, "clip": clip}
"""Papers of which rows take more than their section."""
