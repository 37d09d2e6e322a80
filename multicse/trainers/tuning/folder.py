"""Folder of a sweep: the record of its ID, settings and inputs, and the folders of others, which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ray.tune.search.sample import Categorical

from multicse.trainers.engine import record
from multicse.trainers.engine.inputs import difference, inputs
from multicse.trainers.engine.record import INPUTS, RUN, SWEEP
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.tuning.domains import shown
from multicse.trainers.tuning.sweep import Sweep, records_of

OUTPUT, SETTINGS = "output", "settings"
"""Fields of the record besides name, inputs and ID: folder and settings of the sweep."""
WRITTEN = (
    "best",
    "best.json",
    "checkpoint",
    "export",
    "figures",
    "recipe.json",
    "summary.json",
    "trials",
    "trials.json",
    "tune",
)
"""Files and folders of runs and sweeps."""


def refuse_other(made: Sweep, folder: Path) -> None:
    """Raise RecipeError if a folder, or the storage of the sweep, contains anything else than this sweep of these inputs."""
    if folder.exists() and not folder.is_dir():
        raise RecipeError(f"--output={str(folder)!r} is a file; give a folder")
    note, found = record.read(folder), [name for name in WRITTEN if (folder / name).exists()]
    if found and not note and not records_of(made, folder).read(made.identity()):  # the record may have been lost
        raise RecipeError(f"--output={str(folder)!r} contains {', '.join(found)}, but not of a sweep; give another folder")
    if note and SWEEP not in note:
        raise RecipeError(f"--output={str(folder)!r} is the folder of a run; give another folder")
    if note and note["identity"] != made.identity():
        state = "a finished" if "summary" in note else "an unfinished"
        different = _differences(made, note[SETTINGS])
        raise RecipeError(f"{folder} contains {state} sweep with other settings: {different}. Give another --output")
    there = _in_storage(made, folder)
    if there and (there[RUN] != note[RUN] or _is_copy(note, folder) if note else there[OUTPUT] != str(folder)):
        raise RecipeError(
            f"run.storage contains the trials of the same sweep in {there[OUTPUT]}. To resume it, give this folder as "
            "--output; to start another one, set another run.storage"
        )
    before = (note or there).get(INPUTS, {})
    if text := difference(before, _inputs(made), f"the sweep in {folder}", "or give another --output for a new sweep"):
        raise RecipeError(text)


def _inputs(made: Sweep) -> dict[str, str]:
    """Return the digests of everything that the trials read, also of inputs that the space names."""
    found = inputs(made.recipe)
    for path, domain in made.domains.items():
        for value in domain.categories if isinstance(domain, Categorical) else ():
            others = inputs(made.recipe.replace(path, value)) if isinstance(value, (str, list, dict)) else {}
            found |= {f"{name} ({path}={value})": digest for name, digest in others.items() if found.get(name) != digest}
    return found


def claim(made: Sweep, folder: Path) -> str:
    """Write the record of the sweep into its folder and its storage, and return the sweep's ID, which never changes."""
    note = record.read(folder) or _in_storage(made, folder)
    if not note or _is_copy(note, folder):
        note[RUN] = record.new_id()
    note[INPUTS] = _inputs(made) | note.get(INPUTS, {})
    note |= {SWEEP: made.name, "identity": made.identity(), OUTPUT: str(folder), SETTINGS: _settings(made)}
    folder.mkdir(parents=True, exist_ok=True)
    record.update(folder, note)
    if made.recipe.run.storage:
        note.pop(record.FILES, None)
        records_of(made, folder).keep(record.NOTE, note)
    return str(note[RUN])


def _is_copy(note: dict[str, Any], folder: Path) -> bool:
    """Return whether a record is in a copy of the sweep's folder, which still exists."""
    return note[OUTPUT] != str(folder) and record.read(Path(note[OUTPUT])).get(RUN) == note[RUN]


def _in_storage(made: Sweep, folder: Path) -> dict[str, Any]:
    """Return the record in the storage; empty if there is none."""
    return records_of(made, folder).kept(record.NOTE) if made.recipe.run.storage else {}


def _settings(made: Sweep) -> dict[str, Any]:
    """Return everything that determines the trials, as JSON."""
    how: dict[str, Any] = {name: getattr(made, name) for name in ("trials", "searcher", "scheduler")}
    space = {path: shown(domain) for path, domain in made.domains.items()}
    return {**how, "seeds": list(made.seeds), "space": space, "recipe": json.loads(made.recipe.to_json())}


def _differences(made: Sweep, there: dict[str, Any]) -> str:
    """Return the settings that differ from those in a record, with both values."""
    here = _settings(made)
    pairs = {f"--{name}": (here[name], there.get(name)) for name in ("trials", "searcher", "scheduler", "seeds")}
    both = {path: (here["space"].get(path), there["space"].get(path)) for path in {**here["space"], **there["space"]}}
    pairs |= {f"space {path}": values for path, values in both.items()}
    try:
        pairs |= made.recipe.differences(Recipe.from_json(json.dumps(there["recipe"])))
    except RecipeError:
        pairs |= {"recipe": ("this one", "of another version")}
    different = [f"{name}: {other} there, {ours} here" for name, (ours, other) in pairs.items() if ours != other]
    return "; ".join(different)
