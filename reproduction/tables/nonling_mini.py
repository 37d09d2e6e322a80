"""NonLing-CSE's rows at the small scale."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multicse.pipelines import parts, registry
from multicse.reproduction.tables.offline import Offline
from multicse.trainers.recipe import Recipe

STEPS = 200
NLI_SHARE = 27
"""How many times as many triples the paper's NLI has as the one at hand."""


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder of 2 layers: 200 steps of 64 sentences and 48 pictures or sounds, chosen on STS-B dev.

    It keeps what rows vary: variant, losses, supervision, noise, language, mix-up and masks.
    """
    demo: Callable[[], Recipe] = registry.load(recipe.paper).RECIPES["demo"]
    changes: dict[str, Any] = {
        "name": f"{recipe.paper}/mini",
        "run.max_steps": STEPS,
        "evaluation.data": str(offline.data / "sts"),
        "evaluation.select": "stsb-dev",
        "evaluation.watch": (),
        "evaluation.final": (),
        "evaluation.every": 50,
        "evaluation.choose_untrained": recipe.evaluation.choose_untrained,
        **_text(recipe, offline),
    }
    given = recipe.flat()
    if "image" in recipe.streams:
        changes |= {
            "streams.image.shards": offline.pictures(),
            "streams.image.flip": 0.5,
            "streams.image.jitter": (0.4, 0.4, 0.4, 0.1),
            "streams.image.grayscale_probability": 0.2,
        }
    if "audio" in recipe.streams:
        small = demo().flat()
        changes |= {
            "streams.audio.shards": offline.speech(),
            "streams.audio.mixup_probability": given["streams.audio.mixup_probability"],
        }
        for axis in ("bins", "frames"):  # masks as wide a share
            share = given[f"streams.audio.mask_{axis}"] / given[f"streams.audio.{axis}"]
            changes[f"streams.audio.mask_{axis}"] = round(share * small[f"streams.audio.{axis}"])
    for stream in recipe.streams.keys() - {"text"}:
        kept = ("method.variant", f"method.{stream}.loss", f"method.{stream}.temperature")
        changes |= {path: given[path] for path in kept}
    return demo().changed(changes)


def _text(recipe: Recipe, offline: Offline) -> dict[str, Any]:
    """What the text stream and its loss are at the small scale."""
    given = recipe.flat()
    method = "method" if recipe.paper == "simcse" else "method.text"
    select = recipe.evaluation.select or ""
    if select.startswith("hub:"):
        code = select.split(":")[2]
        place = offline.data / "stsb_multi"
        rows = offline.rows(place / f"stsb-{code}-train.tsv.gz")
        sentences = [row[name] for row in rows for name in ("sentence1", "sentence2")]
        return {
            "streams.text.shards": offline.lines(sentences, f"stsb-{code}"),
            "evaluation.select": f"pairs:{place / f'stsb-{code}-dev.tsv.gz'}",
        }
    if not given[f"{method}.supervised"]:
        return {"streams.text.shards": offline.wikipedia()}
    changes: dict[str, Any] = {
        "streams.text": parts.nli(64),
        "streams.text.shards": offline.nli(),
        f"{method}.supervised": True,
        "run.epochs": recipe.run.epochs,
    }
    if first := given["streams.text.first"]:
        changes["streams.text.first"] = first // NLI_SHARE
    if given["streams.text.kind"] == "noisy_text":
        changes |= {"streams.text.kind": "noisy_text", "streams.text.lexicon": "small"}
        changes |= {f"streams.text.{name}": given[f"streams.text.{name}"] for name in ("deletion", "insertions", "swaps")}
    return changes
