"""A run notices that something it reads has changed, by content and not by place or time."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from multicse import plugins
from multicse.trainers.engine import inputs as module
from multicse.trainers.engine.inputs import difference, digest_of, inputs, places, start_over
from multicse.trainers.engine.run import Run
from multicse.trainers.recipe import Recipe, RecipeError
from tests.data.packing import write_words
from tests.worlds import text_only, write_text

METHOD = """
from typing import Literal
from multicse.trainers.simcse import SimCSEConfig

class MineConfig(SimCSEConfig):
    name: Literal["{name}"] = "{name}"

def loss():
    {code}
"""
FILES = {
    "dev.tsv": "sentence1\tsentence2\tscore\nthe cat\ta dog\t1\nthe old cat\tthe cat\t4\nred house\ta house\t3\n",
    "STSB.dev.raw.tsv": "score\tsentence1\tsentence2\n3.0\tone\ttwo\n1.0\ta cat\ta dog\n4.0\ta cat\tthe cat\n",
    "words.vec": "cat 0.1 0.2\ndog 0.3 0.4\n",
    "mine.py": METHOD.format(name="mine", code="return +1"),
    "mine_too.py": METHOD.format(name="mine_too", code="from formulas_of_mine import SIGN"),
    "formulas_of_mine.py": "SIGN = +1\n",
    "watch.py": "def watch(step, metrics, engine):\n    print(+1)\n",
}


@pytest.fixture
def folder(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with everything that a run may read, among it a lexicon that is found without a setting."""
    folder = tmp_path / "parts" / "inputs"
    write_text(folder / "text")
    shutil.copytree(recipe.flat()["encoder.path"], folder / "encoder")
    write_words(folder / "own.sqlite", "a|quick,speedy|slow")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    Path("wordnet.sqlite").symlink_to(folder / "own.sqlite")
    for name in ("mine.py", "mine_too.py"):
        plugins.load_file(folder / name)
    return folder


EDA = {"kind": "eda_text", "shards": "AT/text", "batch_size": 16}
WEIGHTS = ("encoder/model.safetensors", b"", b"\0\0\1\1")
KINDS: list[tuple[str, dict[str, Any], str, bytes, bytes]] = [
    ("streams.text.shards", {"streams.text.shards": "AT/text"}, "text/text-train-000001.tar", b"cat", b"dog"),
    ("evaluation task pairs:inputs/dev.tsv", {"evaluation.final": ("lee", "pairs:AT/dev.tsv")}, "dev.tsv", b"\t4", b"\t2"),
    (
        "evaluation task stsb-dev",
        {"evaluation.data": "AT", "evaluation.select": "stsb-dev"},
        "STSB.dev.raw.tsv",
        b"4.0",
        b"2.0",
    ),
    ("encoder.path", {"encoder.path": "AT/encoder"}, *WEIGHTS),
    ("method.negatives.guide", {"method.negatives": {"margin": 0.1, "guide": "AT/encoder"}}, *WEIGHTS),
    ("method.tower.path", {"method": {"name": "clip", "tower": {"kind": "vit", "path": "AT/encoder"}}}, *WEIGHTS),
    ("encoder.vectors", {"encoder": {"vectors": "AT/words.vec"}}, "words.vec", b"0.4", b"0.5"),
    ("streams.text.lexicon", {"streams.text": {**EDA, "lexicon": "AT/own.sqlite"}}, "own.sqlite", b"speedy", b"steady"),
    ("streams.text.lexicon", {"streams.text": EDA}, "own.sqlite", b"speedy", b"steady"),
    ("mine.py", {"method": {"name": "mine"}}, "mine.py", b"+1", b"-1"),
    ("formulas_of_mine.py", {"method": {"name": "mine_too"}}, "formulas_of_mine.py", b"+1", b"-1"),
    ("watch.py", {"run.callbacks": ("AT/watch.py:watch",)}, "watch.py", b"+1", b"-1"),
]
"""Name of an input in the message, changes of a recipe by which it is read from the folder AT, and a file in which the last
occurrence of some bytes, or its end, becomes another of the same length."""


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize(("name", "changes", "read", "old", "new"), KINDS)
def test_a_run_refuses_inputs_that_have_changed(
    name: str,
    changes: dict[str, Any],
    read: str,
    old: bytes,
    new: bytes,
    finished: bool,
    recipe: Recipe,
    folder: Path,
    tmp_path: Path,
) -> None:
    """Not inputs that were touched or copied, nor those of a finished run that were deleted."""
    made = text_only(recipe).changed(json.loads(json.dumps(changes).replace("AT", str(folder))))
    result = "delivered" if finished else "training"
    note = {"recipe": json.loads(made.to_json()), "inputs": inputs(made), "state": result}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(note))

    def again() -> object:
        """Run the same command in a new process."""
        return Run(Recipe.from_json(made.to_json())).state()

    assert again() == result

    for file in folder.rglob("*"):
        os.utime(file, (10**9, 10**9))
    assert again() == result
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    assert again() == result

    file = folder / read
    content = file.read_bytes()
    before, _, after = content.rpartition(old or content[-len(new) :])
    file.write_bytes(before + new + after)
    if file.name == "mine.py":
        plugins.load_file(file)
    way = "--run.overwrite" if finished else "--run.resume never"
    with pytest.raises(RecipeError, match=rf"^{name}.* ha(s|ve) changed .*Restore .* another run\.output_dir.*: {way}$"):
        again()
    if not finished:
        assert Run(made.replace("run.resume", "never")).state() == result
    assert Run(made.replace("run.overwrite", True)).state() == "new"

    file.write_bytes(content)
    if file.name == "mine.py":
        plugins.load_file(file)
    assert again() == result
    shutil.rmtree(folder)
    assert again() == result


def test_the_paths_of_all_kinds_of_settings(recipe: Recipe) -> None:
    """Names of files may contain the characters that separate options; a user's own setting counts if it is absolute."""
    changes = {
        "streams.text.shards": "/a/R&D/x-{0..1}.tar::s3://b/y#split=train",
        "evaluation.watch": ("zero-shot:/p/q#1.tsv?classes=%2Fg%26h.txt", "lee-dev"),
        "evaluation.select": None,
        "name": "/own/file",
    }
    found = [(setting, place) for setting, _, place in places(recipe.changed(changes)) if setting in changes]
    assert found == [
        ("name", "/own/file"),
        ("streams.text.shards", "/a/R&D/x-{0..1}.tar"),
        ("streams.text.shards", "s3://b/y"),
        ("evaluation.watch", "/p/q#1.tsv"),
        ("evaluation.watch", "/g&h.txt"),
    ]


def test_another_encoder_of_the_same_name_is_another_input(recipe: Recipe, tmp_path: Path) -> None:
    """`Recipe.identity` contains the last two parts of a path; the inputs contain the content."""
    places = [tmp_path / name / "models" / "bert" for name in ("one", "copy", "other")]
    for place in places:
        shutil.copytree(recipe.flat()["encoder.path"], place)
    weights = load_file(places[2] / "model.safetensors")
    save_file({name: weight + 1 for name, weight in weights.items()}, places[2] / "model.safetensors")
    one, copy, other = (recipe.replace("encoder.path", str(place)) for place in places)
    assert one.identity() == other.identity()
    assert inputs(one) == inputs(copy) and {*dict(inputs(one).items() ^ inputs(other).items())} == {"encoder.path"}


def test_of_a_large_file_every_tensor_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    file = tmp_path / "model.safetensors"
    weights = {
        f"layer.{i}.{kind}": rng.normal(size=n).astype(np.float32) for i in range(40) for kind, n in (("w", 999), ("b", 2))
    }
    save_file(weights, file)
    whole = digest_of(tmp_path)
    monkeypatch.setattr(module, "WHOLE", 2**10)
    monkeypatch.setattr(module, "BLOCK", 2**6)
    monkeypatch.setattr(module, "BEGINNING", 2**3)
    module._file.cache_clear()
    sampled = digest_of(tmp_path)
    assert whole.startswith("sha256:") and sampled.startswith("sampled-sha256:")
    (tmp_path / "README.md").write_text("changed")
    (tmp_path / ".cache").write_text("changed")
    for time, name in enumerate(weights):
        save_file(weights | {name: weights[name] + 1}, file)
        os.utime(file, (time, time))
        assert digest_of(tmp_path) != sampled, name
    save_file(weights, file)
    assert digest_of(tmp_path) == sampled
    module._file.cache_clear()


def test_the_message_names_everything_that_has_changed() -> None:
    before = {"encoder.path": "1", "my.py": "1", "gone": "1"}
    assert difference(before, {"encoder.path": "1", "new": "2"}, "the run in x", start_over("--again")) is None
    assert difference(before, {"encoder.path": "2", "my.py": "2"}, "the run in x", start_over("--again")) == (
        "encoder.path, my.py have changed since the run in x was started. Restore them, set another run.output_dir, or "
        "start over: --again"
    )
