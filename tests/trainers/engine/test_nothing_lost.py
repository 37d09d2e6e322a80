"""No command deletes or replaces what its run did not write: random sequences of commands, deaths and losses.

The real `run_recipe`, `Output` and `Store` run with a stand-in for training, which writes small checkpoints, and for MLflow.
``MULTICSE_SEQUENCES=500`` sets the number of sequences.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from multicse.trainers.engine import launch, output, record
from multicse.trainers.engine.checkpoint import CheckpointError, Store, name_of
from multicse.trainers.engine.hosts import Host
from multicse.trainers.recipe import Recipe, RecipeError
from tests.small import text_only

pytest.importorskip("hypothesis", reason="random sequences are made by the package hypothesis (extra `test`)")
from hypothesis import HealthCheck, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

SEQUENCES = int(os.environ.get("MULTICSE_SEQUENCES", "20"))
STEPS = 8
FOLDERS = ("one/runs/x", "two/runs/x", "one/runs/y")
"""Output folders. In a storage, the names of the first two are the same."""
STORAGES = ("", "disk", "file://")
NUMBERS, USER = itertools.count(1), 0
CONTROL = (".lock", ".writer.lock")
USER_FILES = (
    *("notes.txt", "summary.json", "recipe.json", "skipped.json", "export/model.txt", "export/notes.txt"),
    *("figures/one.svg", "figures/mine.svg", "checkpoint/notes.txt", "checkpoint/step-00000003/method.safetensors"),
)


class Died(BaseException):
    """The process was killed."""


@dataclass(frozen=True)
class Command:
    """What a user types."""

    folder: str
    storage: str
    seed: int
    keep_every: int | None
    resume: str = "auto"
    overwrite: bool = False


@dataclass
class Written:
    """What the test knows of a file."""

    content: str
    line: int
    """Number of the folder whose command wrote it, or `USER`."""
    run: str | None
    """ID in the record of the command that wrote it."""
    permanent: bool = False


@dataclass
class World:
    """The stand-ins, and what they have seen of the current command."""

    dies_at: int | None = None
    dies_in: str | None = None
    started: int | None = None
    read_state: dict[str, Any] | None = None
    line: int = 0
    stores: list[str] = field(default_factory=list)
    tracked: dict[str, dict[str, str]] = field(default_factory=dict)
    """Tags of the MLflow runs by ID."""

    def die(self, place: str) -> None:
        if self.dies_in == place:
            raise Died(place)


def saves(step: int, keep_every: int | None) -> bool:
    """Whether a run saves a checkpoint at a step."""
    return step % 2 == 0 or (keep_every is not None and step % keep_every == 0)


def engine(world: World) -> type:
    class Training:
        """Instead of `Engine`: saves a checkpoint every second step, and every permanent one."""

        def __init__(self, recipe: Recipe, host: Host, log: object) -> None:
            self.recipe, self.host = recipe, host

        def run(self) -> dict[str, Any]:
            run, at = self.recipe.run, 0
            world.stores.append(self.host.store._root)
            with self.host.checkpoint() as folder:
                if folder is not None:
                    world.read_state = json.loads((folder / "state.pt").read_text())
                    at = world.read_state["step"]
            world.started = at
            for step in range(at + 1, STEPS + 1):
                if step == world.dies_at:
                    self.host.store.settle()
                    raise Died
                if saves(step, run.keep_every):
                    self.host.save(self.writer(step), {"step": step}, last=step == STEPS)
            return {}

        def writer(self, step: int) -> Any:
            state = {"step": step, "identity": self.recipe.identity(), "line": world.line}

            def write(folder: Path) -> None:
                (folder / "method.safetensors").write_text(f"{self.recipe.identity()} {step} {world.line}")
                (folder / "state.pt").write_text(json.dumps(state))
                (folder / "recipe.json").write_text(self.recipe.to_json())

            return write

    return Training


def deliver(world: World) -> Any:
    def stand_in(recipe: Recipe, handle: Any, result: dict[str, Any], checkpoint: Path, folder: Path) -> dict[str, Any]:
        names = ["export/modules.json", "export/model.txt", "figures/one.svg", "skipped.json"]
        record.take(folder, names)
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(f"{recipe.identity()} {name}")
            world.die("deliver")
        summary = {"export": str(folder / "export"), "checkpoint": str(checkpoint), "skipped": {}}
        return summary | {"mlflow_run_id": handle.run_id, "tracking_uri": handle.uri}

    return stand_in


@contextlib.contextmanager
def stand_ins(world: World) -> Iterator[None]:
    def open_run(uri: str, experiment: str, name: str, params: object, tags: Any = (), run_id: Any = None, **_: Any) -> Any:
        world.die("open_run")
        if run_id is None:
            run_id = f"tracked-{len(world.tracked)}"
            world.tracked[run_id] = dict(tags)
        return SimpleNamespace(run_id=run_id, uri=uri, drain=lambda journal: True, finish=lambda status: True)

    def find_runs(uri: str, experiment: str, tags: dict[str, str]) -> list[Any]:
        found = [(run_id, own) for run_id, own in world.tracked.items() if tags.items() <= own.items()]
        return [SimpleNamespace(run_id=run_id, tags=own) for run_id, own in found]

    claim = Store.claim

    def claimed(store: Store, folder: str) -> None:
        world.die("claim")
        claim(store, folder)

    clear = output.Output.clear

    def cleared(self: output.Output, **given: bool) -> None:
        clear(self, **given)
        world.die("clear")

    with pytest.MonkeyPatch.context() as patch:
        for name, stand_in in {
            "Engine": engine(world),
            "deliver": deliver(world),
            "check_recipe": lambda recipe: None,
            "check_vectors": lambda recipe: None,
            "drain": lambda *_: True,
            "prepare_encoder": lambda recipe: None,
            "Tracker": lambda *_: contextlib.nullcontext(),
        }.items():
            patch.setattr(launch, name, stand_in)
        for name, stand_in in {"open_run": open_run, "find_runs": find_runs, "connect": lambda uri: None}.items():
            patch.setattr(output, name, stand_in)
        patch.setattr(Store, "claim", claimed)
        patch.setattr(output.Output, "clear", cleared)
        yield


def ids(content: dict[str, Any] | None) -> set[str]:
    """The run's ID and the former ones in a record."""
    return {one for one in [(content or {}).get("run"), *(content or {}).get("former", ())] if one}


class Commands(RuleBasedStateMachine):
    """Random commands on three folders and two storages."""

    recipe: Recipe

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="nothing-lost-")).resolve()
        self.world = World()
        self.lines: dict[str, int] = {}
        """Number of the folder at a path, which goes with it when it is moved."""
        self.ran: dict[str, set[int]] = {}
        """Numbers of the folders that commands ran in, by path."""
        self.parents: dict[int, set[int]] = {}
        """Numbers of the folders that a folder is a copy of."""
        self.files: dict[Path, Written] = {}
        self.last: Command | None = None
        self.expected: int | None = None
        """Step at which the last command must go on if it is repeated, or None if that is open."""
        self.users = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def found(self) -> dict[Path, str]:
        """The content of every file."""
        files = (file for file in self.root.rglob("*") if file.is_file() and file.name not in CONTROL)
        return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    def ancestors(self, line: int) -> set[int]:
        """A folder and those that it is a copy of."""
        return {line, *self.parents.get(line, ())}

    def place(self, storage: str) -> str | None:
        return {"": None, "disk": str(self.root / "disk"), "file://": f"file://{self.root}/url"}[storage]

    def command(self, asked: Command, dies_at: int | None, dies_in: str | None) -> str:
        """Carry out a command, compare all files, and return how it ended."""
        folder, world = self.root / asked.folder, self.world
        line = world.line = self.lines.setdefault(asked.folder, next(NUMBERS))
        # Without a record, a folder is the one that was at its path.
        lines = self.ancestors(line) | (self.ran.get(asked.folder, set()) if not record.read(folder) else set())
        self.ran.setdefault(asked.folder, set()).add(line)
        world.dies_at, world.dies_in, world.started, world.read_state, world.stores = dies_at, dies_in, None, None, []
        recipe = self.recipe.changed(
            {
                "run.output_dir": str(folder),
                "run.storage": self.place(asked.storage),
                "run.seed": asked.seed,
                "run.keep_every": asked.keep_every,
                "run.resume": asked.resume,
                "run.overwrite": asked.overwrite,
            }
        )
        known = ids(record.read(folder))
        for file in self.root.rglob("owner.json"):
            owner = record.read_json(file) or {}
            if owner.get("output") == str(folder) or file.is_relative_to(folder):
                known |= ids(owner)
        before = self.found()
        ended = "finished"
        try:
            with stand_ins(world):
                launch.run_recipe(recipe)
        except (RecipeError, CheckpointError) as error:
            ended = "refused"
            note(f"refused: {error}")
        except Died:
            ended = "died"
        note(f"{ended}, started at {world.started}")
        event(ended)
        self.compare(before, lines, line, known | ids(record.read(folder)), asked, ended, folder)
        if state := world.read_state:
            assert state["identity"] == recipe.identity(), "a checkpoint of another recipe was read"
            assert state["line"] in lines, "a checkpoint of another folder was read"
        return ended

    def compare(
        self, before: dict[Path, str], lines: set[int], line: int, known: set[str], asked: Command, ended: str, folder: Path
    ) -> None:
        after, now = self.found(), record.read(folder).get("run")
        for file, content in before.items():
            one = self.files[file]
            if after.get(file) == content or any(after[other] == content for other in _renamed(file, self.root)):
                continue
            where = file.relative_to(self.root)
            assert ended != "refused", f"a refused command changed {where}"
            assert one.line in lines, f"{where} of {one.line} was deleted or replaced"
            assert one.run in known, f"{where} of run {one.run} was deleted or replaced; the records name {known}"
            if one.permanent and file.name == "method.safetensors":
                assert asked.overwrite, f"the permanent {where} was deleted"
        for file, content in after.items():
            if before.get(file) == content:
                continue
            moved = next((self.files[old] for old, text in before.items() if text == content and old not in after), None)
            if ".before" in str(file) and moved:
                self.files[file] = replace(moved)
                continue
            step = int(file.parent.name[5:]) if file.parent.name.startswith("step-") else 0
            inside = any(file.is_relative_to(store) for store in self.world.stores)
            former = self.files.get(file)
            permanent = bool(inside and step and asked.keep_every and step % asked.keep_every == 0)
            permanent |= bool(former and former.permanent and former.content == content)
            self.files[file] = Written(content, line, now, permanent)
        self.files = {file: one for file, one in self.files.items() if file in after}

    @rule(
        folder=st.sampled_from(FOLDERS),
        storage=st.sampled_from(STORAGES),
        seed=st.sampled_from((1, 1, 2)),
        keep=st.sampled_from((None, 2, 3)),
        resume=st.sampled_from(("auto", "auto", "auto", "never", "must")),
        overwrite=st.sampled_from((False, False, True)),
        dies_at=st.sampled_from((None, 1, 3, 6, 8)),
        dies_in=st.sampled_from((None, None, None, "claim", "open_run", "clear", "deliver")),
    )
    def start(
        self,
        folder: str,
        storage: str,
        seed: int,
        keep: int | None,
        resume: str,
        overwrite: bool,
        dies_at: int | None,
        dies_in: str | None,
    ) -> None:
        asked = Command(folder, storage, seed, keep, resume, overwrite)
        self.carry_out(asked, dies_at, dies_in)

    @precondition(lambda self: self.last is not None)
    @rule(
        keep=st.sampled_from((None, 2, 3)),
        dies_at=st.sampled_from((None, 3, 5, 7, 8)),
        dies_in=st.sampled_from((None, None, None, "claim", "open_run", "deliver")),
        loses=st.sampled_from((None, None, "folder", "run.json")),
    )
    def repeat(self, keep: int | None, dies_at: int | None, dies_in: str | None, loses: str | None) -> None:
        """The same command goes on where the run was, also with another `keep_every` and after a loss."""
        assert self.last is not None
        if loses == "folder":
            self.lose_a_disk(self.last.folder)
        elif loses:
            (self.root / self.last.folder / loses).unlink(missing_ok=True)
            self.files.pop(self.root / self.last.folder / loses, None)
        expected = self.expected
        self.carry_out(replace(self.last, keep_every=keep, resume="auto", overwrite=False), dies_at, dies_in)
        if expected is not None and self.world.started is not None:
            assert self.world.started == expected, f"started at {self.world.started} instead of {expected}"
        if expected is not None and dies_in is None:
            assert self.world.started is not None, "the same command was refused"

    def carry_out(self, asked: Command, dies_at: int | None, dies_in: str | None) -> None:
        ended = self.command(asked, dies_at, dies_in)
        self.last = asked
        self.expected = None
        if ended == "died" and dies_at is not None and dies_in is None and self.world.started is not None:
            saved = (step for step in range(self.world.started + 1, dies_at) if saves(step, asked.keep_every))
            self.expected = max(saved, default=self.world.started)

    def runs_files(self) -> list[Path]:
        return sorted(file for file, one in self.files.items() if one.line != USER)

    @precondition(lambda self: self.runs_files())
    @rule(data=st.data())
    def lose_a_file(self, data: Any) -> None:
        names = ("run.json", "recipe.json", "owner.json", "manifest.json", "state.pt", "summary.json", "journal.jsonl")
        name = data.draw(st.sampled_from(names))
        if files := [file for file in self.runs_files() if file.name == name]:
            file = data.draw(st.sampled_from(files))
            file.unlink()
            del self.files[file]
            if not (name == "owner.json" and self.expected):
                self.expected = None

    @rule(folder=st.sampled_from(FOLDERS))
    def lose_a_disk(self, folder: str) -> None:
        """A storage is sufficient to go on."""
        if (self.root / folder).exists():
            shutil.rmtree(self.root / folder)
            self.files = {file: one for file, one in self.files.items() if not file.is_relative_to(self.root / folder)}
            if self.last is not None and self.last.folder == folder and not self.last.storage:
                self.expected = None

    @rule(where=st.sampled_from(FOLDERS), goal=st.sampled_from(FOLDERS), copies=st.booleans())
    def move(self, where: str, goal: str, copies: bool) -> None:
        """Move a folder, or copy it."""
        old, new = self.root / where, self.root / goal
        if not old.exists() or new.exists():
            return
        new.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(old, new) if copies else old.rename(new)
        inside = {file: one for file, one in self.files.items() if file.is_relative_to(old)}
        line = self.lines.get(where)
        if line is None:
            pass  # no command has run in it
        elif copies:
            self.lines[goal] = next(NUMBERS)
            self.parents[self.lines[goal]] = self.ancestors(line)
        else:
            self.lines[goal] = self.lines.pop(where)
        for file, one in inside.items():
            if not copies:
                del self.files[file]
            mine = one.line if one.line == USER or not copies else self.lines[goal]
            self.files[new / file.relative_to(old)] = replace(one, line=mine)
        if self.last is not None and self.last.folder in (where, goal):
            moved = not copies and self.last.folder == where
            self.last, kept = replace(self.last, folder=goal if moved else self.last.folder), self.expected
            self.expected = kept if moved else None

    @rule(folder=st.sampled_from(FOLDERS), name=st.sampled_from(USER_FILES))
    def write_a_file(self, folder: str, name: str) -> None:
        """A user's own file, also under a name that a run will use."""
        file = self.root / folder / name
        named = name in record.read(self.root / folder).get(record.FILES, ())  # by a run that died before it wrote the file
        if not file.exists() and not named:
            self.users += 1
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"of the user, number {self.users}")
            self.files[file] = Written(self.found()[file], USER, None)
            self.expected = None

    @precondition(lambda self: self.runs_files())
    @rule(data=st.data())
    def copy_a_checkpoint(self, data: Any) -> None:
        """A user copies a checkpoint to the folder of another run."""
        manifests = [file for file in self.runs_files() if file.name == "manifest.json"]
        stores = (self.root / folder / "checkpoint" for folder in FOLDERS)
        targets = sorted({*stores, *(file.parent.parent for file in manifests)})
        if not manifests:
            return
        source, target = data.draw(st.sampled_from(manifests)).parent, data.draw(st.sampled_from(targets))
        runs = [(record.read_json(file) or {}).get("run") for file in target.parent.rglob("*.json")]
        new = target / name_of(data.draw(st.sampled_from((1, 5, 7))))
        line = self.files[source / "manifest.json"].line
        there = self.lines.get(str(target.parent.relative_to(self.root)), USER)
        own = (record.read_json(source / "manifest.json") or {}).get("run") in runs or line in self.ancestors(there)
        own = own or any(one.line == line for file, one in self.files.items() if file.is_relative_to(target))
        if new.exists() or own:
            return
        shutil.copytree(source, new)
        for file in new.iterdir():
            self.files[file] = Written(self.found()[file], USER, None)
        self.expected = None


def _renamed(file: Path, root: Path) -> list[Path]:
    """The files that this file may be now, if it or a folder above it was renamed because a run needed the name."""
    names = [part for part in (file, *file.parents) if part.is_relative_to(root) and part != root]
    others = [other / file.relative_to(part) for part in names for other in part.parent.glob(f"{part.name}.before*")]
    return [other for other in others if other.is_file()]


def test_only_what_a_run_wrote_is_deleted_and_permanent_checkpoints_only_by_overwrite(recipe: Recipe) -> None:
    class Seeded(Commands):
        pass

    Seeded.recipe = text_only(recipe)
    run_state_machine_as_test(
        Seeded,
        settings=settings(
            max_examples=SEQUENCES,
            stateful_step_count=14,
            deadline=None,
            derandomize="MULTICSE_SEQUENCES" not in os.environ,
            suppress_health_check=list(HealthCheck),
        ),
    )
