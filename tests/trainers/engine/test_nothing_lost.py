"""A run in its folder as a state machine: random sequences of commands, deaths, losses, damage and outages.

* No command deletes or replaces what its run did not write, nor permanent checkpoints without ``--run.overwrite``.
* The same command goes on at the newest checkpoint, wherever the process was killed.
* Journal and MLflow run have every step once.
* A finished run stays finished; only what could not be sent is sent.

The real `run_recipe`, its records, journal and stores run with stand-ins for training, which writes small checkpoints, and
for MLflow. ``MULTICSE_SEQUENCES=500`` sets the number of sequences.
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
from typing import Any

import pytest

from multicse.trainers.engine import launch, record
from multicse.trainers.engine import run as engine_run
from multicse.trainers.engine.hosts import Host
from multicse.trainers.engine.journal import Journal, retire
from multicse.trainers.engine.mlflow_server import TrackingError
from multicse.trainers.engine.store import CheckpointError, Store, name_of
from multicse.trainers.engine.tracking import FoundRun, Tracker
from multicse.trainers.recipe import Recipe, RecipeError
from tests.worlds import text_only

pytest.importorskip("hypothesis", reason="random sequences are made by the package hypothesis (extra `test`)")
from hypothesis import HealthCheck, event, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

SEQUENCES = int(os.environ.get("MULTICSE_SEQUENCES", "20"))
STEPS = 8
MOMENTS = 60
"""About as many moments before and after a write as a command has."""
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
class Tracked:
    """A run in MLflow."""

    tags: dict[str, str]
    status: str = "RUNNING"
    steps: list[int] = field(default_factory=list)


@dataclass
class World:
    """The stand-ins, and what they have seen of the current command."""

    dies_at: int | None = None
    """Step of training at which the process is killed."""
    moments: int | None = None
    """The process is killed at this one of the moments before and after it writes something."""
    away: bool = False
    """MLflow does not respond."""
    started: int | None = None
    saved: set[int] = field(default_factory=set)
    """Steps of which the newest checkpoint may be: the last one that was saved, and one that was being saved."""
    read_state: dict[str, Any] | None = None
    line: int = 0
    stores: list[Store] = field(default_factory=list)
    runs: dict[str, Tracked] = field(default_factory=dict)
    """MLflow's runs by ID."""

    def moment(self) -> None:
        if self.moments is not None:
            self.moments -= 1
            if not self.moments:
                raise Died

    def around(self, write: Any) -> Any:
        """Return a function that writes something, with the moments before and after it."""

        def wrapped(*given: Any, **named: Any) -> Any:
            self.moment()
            found = write(*given, **named)
            self.moment()
            return found

        return wrapped

    def responds(self) -> None:
        if self.away:
            raise TrackingError("MLflow is away")

    def send(self, journal: Path, run_id: str, status: str = "") -> bool:
        """Instead of `drain`."""
        self.moment()
        if not self.away:
            known = self.runs[run_id]
            steps = (line["step"] for _, line in Journal(journal).lines())
            known.steps += [step for step in steps if step > max(known.steps, default=0)]
            known.status = status or known.status
        self.moment()
        return not self.away


def saves(step: int, keep_every: int | None) -> bool:
    """Whether a run saves a checkpoint at a step."""
    return step % 2 == 0 or (keep_every is not None and step % keep_every == 0)


def engine(world: World) -> type:
    class Training:
        """Instead of `Engine`: saves a checkpoint every second step, and every permanent one."""

        def __init__(self, recipe: Recipe, host: Host, log: Tracker) -> None:
            self.recipe, self.host, self.log = recipe, host, log

        def train(self) -> dict[str, Any]:
            run, at = self.recipe.run, 0
            world.stores.append(self.host.store)
            with self.host.checkpoint() as folder:
                if folder is not None:
                    world.read_state = json.loads((folder / "state.pt").read_text())
                    at = world.read_state["step"]
                    self.log.resume(folder)
            world.started, world.saved = at, {at}
            for step in range(at + 1, STEPS + 1):
                if step == world.dies_at:
                    raise Died
                self.log.log(step, {"train/text": step})
                world.send(self.log.path, self.log.run_id)
                if saves(step, run.keep_every):
                    world.saved.add(step)
                    self.host.save(self.writer(step), {"step": step}, last=step == STEPS)
                    world.saved = {step}
            return {"steps": STEPS, "skipped": {"text": [["a key", "damaged"]]}, "skips": {"text": 1}}

        def writer(self, step: int) -> Any:
            state = {"step": step, "identity": self.recipe.identity(), "line": world.line}
            files = {"method.safetensors": f"{self.recipe.identity()} {step} {world.line}", "state.pt": json.dumps(state)}

            def write(folder: Path) -> None:
                for name, text in (files | {"recipe.json": self.recipe.to_json()}).items():
                    (folder / name).write_text(text)
                    world.moment()
                self.log.store(folder)

            return write

    return Training


def deliver(world: World) -> Any:
    def stand_in(recipe: Recipe, result: dict[str, Any], checkpoint: Path) -> dict[str, Any]:
        folder = Path(recipe.run.output_dir)
        names = ["export/modules.json", "export/model.txt", "figures/one.svg"]
        record.take(folder, names)
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(f"{recipe.identity()} {name}")
            world.moment()
        return result

    return stand_in


@dataclass
class Handle:
    """Instead of `RunHandle`."""

    world: World
    run_id: str
    uri: str
    journal: Path

    def drain(self, journal: Path) -> bool:
        return self.world.send(journal, self.run_id)

    def finish(self, status: str, ended: float | None) -> bool:
        return self.world.send(self.journal, self.run_id, status)


@contextlib.contextmanager
def stand_ins(world: World) -> Iterator[None]:
    def open_run(uri: str, _: str, name: str, params: object, tags: Any = (), run_id: Any = None, **more: Any) -> Handle:
        world.moment()
        world.responds()
        if run_id is None:
            run_id = f"tracked-{len(world.runs)}"
            world.runs[run_id] = Tracked(dict(tags))
        world.runs[run_id].status = "RUNNING"
        world.moment()
        retire(more["journal"], run_id)
        return Handle(world, run_id, uri, more["journal"])

    def find_runs(uri: str, experiment: str, tags: dict[str, str]) -> list[FoundRun]:
        world.responds()
        return [FoundRun(name, one.status, one.tags) for name, one in world.runs.items() if tags.items() <= one.tags.items()]

    with pytest.MonkeyPatch.context() as patch:
        for name in ("check_files", "check_encoder", "check_vectors"):
            patch.setattr(launch, name, lambda recipe: None)
        for name, stand_in in {
            "Engine": engine(world),
            "write_model": deliver(world),
            "prepare_encoder": lambda recipe: None,
            "Tracker": lambda path, uri, run_id, show: Tracker(path, "", run_id),
            "RunHandle": lambda run_id, uri, journal=None: Handle(world, run_id, uri, journal),
            "open_run": open_run,
            "find_runs": find_runs,
            "connect": lambda uri: None,
        }.items():
            patch.setattr(engine_run, name, stand_in)
        for owner, writes in {
            record: ("write_json",),
            engine_run.Run: ("clear",),
            Store: ("claim", "make_way", "remove", "_send"),
        }.items():
            for name in writes:
                before = getattr(owner, name)
                after = world.around(before)
                patch.setattr(owner, name, after if owner is record else _method(after))
        patch.setattr(Store, "save", _save)
        yield


def _method(write: Any) -> Any:
    """Return a function as a method of a class."""
    return lambda self, *given, **named: write(self, *given, **named)


def _save(store: Store, step: int, write_files: Any, wait: bool = False) -> None:
    """Instead of `Store.save`: in this thread, in which a kill ends the command."""
    store._attempt(step, write_files)
    assert store.trouble is None


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
        self.expected: set[int] = set()
        """Steps at one of which the last command must go on if it is repeated; empty if that is open."""
        self.finished = False
        """Whether the last command has finished and nothing has happened since then."""
        self.moved = False
        """Whether the folder of the last command was moved since then; a store does not know of it yet."""
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

    def command(self, asked: Command, dies_at: int | None, moments: int | None) -> str:
        """Carry out a command, compare all files, and return how it ended."""
        folder, world = self.root / asked.folder, self.world
        line = world.line = self.lines.setdefault(asked.folder, next(NUMBERS))
        # Without a record, a folder is the one that was at its path.
        lines = self.ancestors(line) | (self.ran.get(asked.folder, set()) if not record.read(folder) else set())
        self.ran.setdefault(asked.folder, set()).add(line)
        world.dies_at, world.moments, world.started, world.read_state, world.stores = dies_at, moments, None, None, []
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
        except TrackingError:
            ended = "away"
        except Died:
            ended = "died"
        note(f"{ended}, started at {world.started}")
        event(ended)
        self.compare(before, lines, line, known | ids(record.read(folder)), asked, ended, folder)
        if state := world.read_state:
            assert state["identity"] == recipe.identity(), "a checkpoint of another recipe was read"
            assert state["line"] in lines, "a checkpoint of another folder was read"
        self.check_steps(folder, ended)
        return ended

    def check_steps(self, folder: Path, ended: str) -> None:
        """Journal and MLflow have every step once, and the newest checkpoint is complete."""
        journal = [line["step"] for _, line in Journal(folder / "journal.jsonl").lines()]
        assert journal == sorted(set(journal)), f"steps in the journal: {journal}"
        tracked = [one.tags["run"] for one in self.world.runs.values()]
        assert len(tracked) == len(set(tracked)), "a run has two MLflow runs"
        if self.world.started is None:
            return
        (store,) = self.world.stores
        newest = Store(store.place, self.root / "downloads", run=store.run).newest()
        step = int(newest.name[5:]) if newest else 0
        assert step in self.world.saved, f"newest checkpoint: step {step} instead of {self.world.saved}"
        shutil.rmtree(self.root / "downloads", ignore_errors=True)
        if ended == "finished":
            assert journal == [*range(1, STEPS + 1)], f"steps in the journal: {journal}"
            assert self.world.saved == {STEPS}
            self.check_sent(folder)

    def check_sent(self, folder: Path) -> None:
        run = self.world.runs[json.loads((folder / "summary.json").read_text())["mlflow_run_id"]]
        if not self.world.away:
            assert (run.steps, run.status) == ([*range(1, STEPS + 1)], "FINISHED")

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
            inside = any(file.is_relative_to(store._root) for store in self.world.stores)
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
        moments=st.sampled_from((None, None, *range(1, MOMENTS))),
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
        moments: int | None,
    ) -> None:
        self.carry_out(Command(folder, storage, seed, keep, resume, overwrite), dies_at, moments)

    @precondition(lambda self: self.last is not None)
    @rule(
        keep=st.sampled_from((None, 2, 3)),
        dies_at=st.sampled_from((None, 3, 5, 7, 8)),
        moments=st.sampled_from((None, None, *range(1, MOMENTS))),
        loses=st.sampled_from((None, None, "folder", "run.json")),
    )
    def repeat(self, keep: int | None, dies_at: int | None, moments: int | None, loses: str | None) -> None:
        """The same command goes on where the run was, also with another `keep_every` and after a loss."""
        assert self.last is not None
        if loses and self.moved:
            self.expected = set()
        if loses == "folder":
            self.lose_a_disk(self.last.folder)
        elif loses:
            (self.root / self.last.folder / loses).unlink(missing_ok=True)
            self.files.pop(self.root / self.last.folder / loses, None)
            self.finished = False
        expected, finished, before = self.expected, self.finished, self.found()
        ended = self.carry_out(replace(self.last, keep_every=keep, resume="auto", overwrite=False), dies_at, moments)
        if finished:
            folder = self.root / self.last.folder
            assert ended in ("finished", "died") and self.world.started is None, "a finished run was not finished"
            changed = {file.name for file, content in self.found().items() if before.get(file) != content}
            assert changed <= {"summary.json", "recipe.json", "run.json"}, changed
            self.finished = True
            if ended == "finished":
                self.check_sent(folder)
        if expected == {STEPS} and ended == "finished" and self.world.started is None:
            expected = set()  # trained: only the export was missing
        if expected and self.world.started is not None:
            assert self.world.started in expected, f"started at {self.world.started} instead of {expected}"
        if expected and ended != "finished" and self.world.started is None:
            assert ended != "refused", "the same command was refused"
            self.expected = expected
        assert not (expected and ended == "finished" and self.world.started is None), "the same command did nothing"

    def carry_out(self, asked: Command, dies_at: int | None, moments: int | None) -> str:
        ended = self.command(asked, dies_at, moments)
        self.last, self.finished, self.moved = asked, ended == "finished", False
        self.expected = self.world.saved if ended == "died" and self.world.started is not None else set()
        return ended

    @rule(away=st.booleans())
    def server(self, away: bool) -> None:
        """MLflow is down, or up again."""
        self.world.away = away

    def runs_files(self) -> list[Path]:
        return sorted(file for file, one in self.files.items() if one.line != USER)

    @precondition(lambda self: self.runs_files())
    @rule(data=st.data())
    def lose_or_damage_a_file(self, data: Any) -> None:
        names = ("run.json", "recipe.json", "owner.json", "manifest.json", "state.pt", "summary.json", "journal.jsonl")
        name = data.draw(st.sampled_from(names))
        if files := [file for file in self.runs_files() if file.name == name]:
            file = data.draw(st.sampled_from(files))
            if data.draw(st.booleans()):
                file.unlink()
                del self.files[file]
            else:
                content = file.read_bytes()
                file.write_bytes(content[: len(content) // 2])
                self.files[file] = replace(self.files[file], content=self.found()[file], permanent=False)
            self.finished = False
            if name not in ("owner.json", "run.json", "journal.jsonl"):
                self.expected = set()

    @rule(folder=st.sampled_from(FOLDERS))
    def lose_a_disk(self, folder: str) -> None:
        """A storage is sufficient to go on."""
        if (self.root / folder).exists():
            shutil.rmtree(self.root / folder)
            self.files = {file: one for file, one in self.files.items() if not file.is_relative_to(self.root / folder)}
            self.finished = False
            if self.last is not None and self.last.folder == folder and not self.last.storage:
                self.expected = set()

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
            self.expected = kept if moved else set()
            self.moved = True
            self.finished = False

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
            self.expected, self.finished = set(), False

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
        self.expected, self.finished = set(), False


def _renamed(file: Path, root: Path) -> list[Path]:
    """The files that this file may be now, if it or a folder above it was renamed because a run needed the name."""
    names = [part for part in (file, *file.parents) if part.is_relative_to(root) and part != root]
    others = [other / file.relative_to(part) for part in names for other in part.parent.glob(f"{part.name}.before*")]
    return [other for other in others if other.is_file()]


def test_a_run_survives_every_order_of_commands_deaths_and_losses(recipe: Recipe) -> None:
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
