"""What Table 5 of nonling.toml is measured by, and its rows at the small scale."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multicse.evaluation.load import load_model
from multicse.evaluation.registry import make_tasks
from multicse.pipelines import parts, registry
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.table import Table, read_tables, small_changes
from multicse.trainers.recipe import Recipe

FILE = Path(__file__).with_suffix(".toml")


def chosen_on(model: str, table: Table, data: Path) -> dict[str, float]:
    """Spearman on the pairs on which the run chose its checkpoint; `model` is the run's export."""
    recipe = Recipe.from_json((Path(model).parent / "recipe.json").read_text(encoding="utf-8"))
    assert recipe.evaluation.select is not None
    (task,) = make_tasks([recipe.evaluation.select], data)
    return {table.columns[0]: task.score(load_model(model)).metrics["spearman"]}


TABLES = read_tables(FILE, globals())


# ---------------------------------------------------------------------------------------------------------- the small scale

NLI_SHARE = 27
"""How many times as many triples the paper's NLI has as the one at hand."""


def mini(recipe: Recipe, offline: Offline) -> Recipe:
    """The row on the small encoder of 2 layers: 200 steps of 64 sentences and 48 pictures or sounds, chosen on STS-B dev.

    It keeps what rows vary: variant, losses, supervision, noise, language, mix-up and masks.
    """
    demo: Recipe = registry.load(recipe.paper).RECIPES["demo"]()
    given, small = recipe.flat(), demo.flat()
    changes: dict[str, Any] = {}
    method = "method" if recipe.paper == "simcse" else "method.text"
    if given[f"{method}.supervised"]:
        changes = {"streams.text": parts.nli(64), f"{method}.supervised": True, "run.epochs": recipe.run.epochs}
        if first := given["streams.text.first"]:
            changes["streams.text.first"] = first // NLI_SHARE
        if given["streams.text.kind"] == "noisy_text":
            changes |= {"streams.text.kind": "noisy_text", "streams.text.lexicon": "small"}
            noise = (f"streams.text.{name}" for name in ("deletion", "insertions", "swaps"))
            changes |= {path: given[path] for path in noise}
    changes |= small_changes(FILE, recipe, offline)
    if (select := recipe.evaluation.select or "").startswith("hub:"):
        pairs = offline.data / "stsb_multi" / f"stsb-{select.split(':')[2]}-dev.tsv.gz"
        changes["evaluation.select"] = f"pairs:{pairs}"
    if "audio" in recipe.streams:
        for axis in ("bins", "frames"):  # masks as wide a share
            share = given[f"streams.audio.mask_{axis}"] / given[f"streams.audio.{axis}"]
            changes[f"streams.audio.mask_{axis}"] = round(share * small[f"streams.audio.{axis}"])
    return demo.changed(changes)
