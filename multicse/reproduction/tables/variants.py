"""Variants of the rows of a paper's method: as printed in the text, as released by the authors, and repaired."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from multicse.commands import registry
from multicse.reproduction.tables.runs import recipe_of
from multicse.reproduction.tables.table import Row
from multicse.trainers.engine.checks import check_settings

VARIANTS = {"as printed": ("-paper", "PRINTED"), "as released": ("-released", "RELEASED"), "repaired": ("", "")}
"""Ending of recipe names, or constant of the pipeline with settings, by variant; the default is the repaired recipe."""


def in_variants(rows: Sequence[Row], reference: str | None, pipelines: Sequence[str]) -> tuple[Row, ...]:
    """Expand the rows trained by a paper's own pipelines into variants; equal variants share a row.

    A row is compared with the same variant of its reference. If a recipe rejects a variant, the row shows the reason.
    """
    made: list[tuple[Row, dict[str, Row]]] = []
    for row in rows:
        pipeline, _, name = (row.recipe or "").partition("/")
        own = pipeline in pipelines and name not in ("paper", "released")
        made.append((row, _variants(row, pipeline, name) if own else {}))
    by_label = {row.label: variants for row, variants in made}

    def compared(row: Row, label: str, variant: str) -> Row:
        against = row.reference or reference
        found = by_label.get(against or "")
        return replace(row, label=label, reference=found[variant].label if found and variant in found else row.reference)

    out: dict[str, Row] = {}
    for row, variants in made:
        for variant, one in variants.items():
            out.setdefault(one.label, compared(one, one.label, variant))
        if not variants:
            out[row.label] = compared(row, row.label, "repaired")
    return tuple(out.values())


def _variants(row: Row, pipeline: str, name: str) -> dict[str, Row]:
    """Return the labelled rows of a row's variants; equal variants are one row under several keys."""
    module = registry.load(pipeline)
    recipes = module.RECIPES
    how: dict[str, tuple[str, Mapping[str, Any]]] = {}
    for names in row.variants or VARIANTS:
        shared = names.split(" and ")
        ending, constant = VARIANTS[shared[-1]]
        if ending and name + ending in recipes:
            how |= dict.fromkeys(shared, (name + ending, row.changes))
            continue
        given = recipes[name]().flat()
        settings = {
            path: value
            for pattern, value in getattr(module, constant, {}).items()
            for path in (fnmatch.filter(given, pattern) if "*" in pattern else [pattern])
        }
        how |= dict.fromkeys(shared, (name, {**settings, **row.changes}))
    found: dict[str, Row] = {}
    for variant, (recipe, changes) in how.items():
        same = [other for other, one in how.items() if one == how[variant]]
        label = row.label if len(same) == len(VARIANTS) else f"{row.label}, {' and '.join(same)}"
        found[variant] = _checked(replace(row, label=label, recipe=f"{pipeline}/{recipe}", changes=changes))
    return found


def _checked(row: Row) -> Row:
    """Return the row; if its recipe is invalid, a row that shows the reason instead."""
    try:
        check_settings(recipe_of(row))
    except ValueError as error:
        return replace(row, recipe=None, changes={}, lacks=f"cannot be run: {error}")
    return row
