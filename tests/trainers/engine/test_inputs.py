"""A run notices that something it reads has changed, by content and not by place or time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from multicse import plugins
from multicse.models.config import WordEncoderConfig
from multicse.models.towers import ViTTower
from multicse.reproduction.streams.eda import EDATextStream
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.engine import inputs as module
from multicse.trainers.engine.inputs import difference, digest_of, inputs, places, start_over
from multicse.trainers.engine.run import Run
from multicse.trainers.recipe import Recipe, RecipeError
from multicse.trainers.simcse import NegativesConfig, SimCSEConfig
from tests.data.packing import write_words
from tests.worlds import text_only, write_text


class Input(NamedTuple):
    """Something that a run reads."""

    recipe: Recipe
    name: str
    """Name in the message."""
    file: Path
    """File to change: the last occurrence of `old` becomes `new`, which is as long."""
    old: bytes
    new: bytes


def _shards(recipe: Recipe, folder: Path) -> Input:
    write_text(folder / "text")
    file = folder / "text" / "text-train-000001.tar"
    return Input(recipe.replace("streams.text.shards", str(folder / "text")), "streams.text.shards", file, b"cat", b"dog")


def _pairs(recipe: Recipe, folder: Path) -> Input:
    file = folder / "dev.tsv"
    file.write_text("sentence1\tsentence2\tscore\nthe cat\ta dog\t1\nthe old cat\tthe cat\t4\nred house\ta house\t3\n")
    own = recipe.replace("evaluation.final", ("lee", f"pairs:{file}"))
    return Input(own, f"evaluation task pairs:{folder.name}/dev.tsv", file, b"\t4", b"\t2")


def _data(recipe: Recipe, folder: Path) -> Input:
    file = folder / "STSB.dev.raw.tsv"
    file.write_text("score\tsentence1\tsentence2\n3.0\tone\ttwo\n1.0\ta cat\ta dog\n4.0\ta cat\tthe cat\n")
    own = recipe.changed({"evaluation.data": str(folder), "evaluation.select": "stsb-dev"})
    return Input(own, "evaluation task stsb-dev", file, b"4.0", b"2.0")


def _encoder(recipe: Recipe, folder: Path) -> Input:
    place = shutil.copytree(recipe.flat()["encoder.path"], folder / "encoder")
    file = place / "model.safetensors"
    return Input(recipe.replace("encoder.path", str(place)), "encoder.path", file, file.read_bytes()[-4:], b"\0\0\1\1")


def _guide(recipe: Recipe, folder: Path) -> Input:
    one = _encoder(recipe, folder)
    method = SimCSEConfig(head="none", negatives=NegativesConfig(margin=0.1, guide=str(folder / "encoder")))
    content = recipe.model_dump() | {"method": method}
    return one._replace(recipe=Recipe.model_validate(content), name="method.negatives.guide")


def _tower(recipe: Recipe, folder: Path) -> Input:
    one = _encoder(recipe, folder)
    content = recipe.model_dump() | {"method": CLIPConfig(tower=ViTTower(path=str(folder / "encoder")))}
    return one._replace(recipe=Recipe.model_validate(content), name="method.tower.path")


def _vectors(recipe: Recipe, folder: Path) -> Input:
    file = folder / "words.vec"
    file.write_text("cat 0.1 0.2\ndog 0.3 0.4\n")
    content = recipe.model_dump() | {"encoder": WordEncoderConfig(vectors=str(file))}
    return Input(Recipe.model_validate(content), "encoder.vectors", file, b"0.4", b"0.5")


def _lexicon(recipe: Recipe, folder: Path) -> Input:
    place = write_words(folder / "own.sqlite", "a|quick,speedy|slow")
    return _with_lexicon(recipe, place, str(place))


def _found_lexicon(recipe: Recipe, folder: Path) -> Input:
    """A lexicon that is not in a setting but found."""
    place = write_words(folder / "found.sqlite", "a|quick,speedy|slow")
    Path("wordnet.sqlite").symlink_to(place)
    return _with_lexicon(recipe, place, None)


def _with_lexicon(recipe: Recipe, place: Path, setting: str | None) -> Input:
    stream = EDATextStream(shards=recipe.streams["text"].shards, batch_size=16, lexicon=setting)
    content = recipe.model_dump() | {"streams": {"text": stream}}
    return Input(Recipe.model_validate(content), "streams.text.lexicon", place, b"speedy", b"steady")


METHOD = """
from typing import Literal
from multicse.trainers.simcse import SimCSEConfig

class MineConfig(SimCSEConfig):
    name: Literal["mine"] = "mine"

SIGN = +1
"""


def _method(recipe: Recipe, folder: Path) -> Input:
    file = folder / "mine.py"
    file.write_text(METHOD)
    content = recipe.model_dump() | {"method": plugins.load_file(file).MineConfig(head="none")}
    return Input(Recipe.model_validate(content), "mine.py", file, b"+1", b"-1")


def _imported(recipe: Recipe, folder: Path) -> Input:
    (folder / "mine_too.py").write_text(f"{METHOD}\ndef loss():\n    from formulas_of_mine import SIGN\n")
    file = folder / "formulas_of_mine.py"
    file.write_text("SIGN = +1\n")
    content = recipe.model_dump() | {"method": plugins.load_file(folder / "mine_too.py").MineConfig(head="none")}
    return Input(Recipe.model_validate(content), "formulas_of_mine.py", file, b"+1", b"-1")


def _callback(recipe: Recipe, folder: Path) -> Input:
    file = folder / "watch.py"
    file.write_text("def watch(step, metrics, engine):\n    print(+1)\n")
    return Input(recipe.replace("run.callbacks", (f"{file}:watch",)), "watch.py", file, b"+1", b"-1")


KINDS = [
    *(_shards, _pairs, _data, _encoder, _guide, _tower, _vectors, _lexicon, _found_lexicon),
    *(_method, _imported, _callback),
]


@pytest.mark.parametrize("finished", [False, True], ids=["unfinished", "finished"])
@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__[1:])
def test_a_run_refuses_inputs_that_have_changed(
    make: Callable[[Recipe, Path], Input],
    finished: bool,
    recipe: Recipe,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not inputs that were touched or copied, nor those of a finished run that were deleted."""
    folder = tmp_path / "parts" / "inputs"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(tmp_path)
    one = make(text_only(recipe), folder)
    result = "delivered" if finished else "training"
    note = {"recipe": json.loads(one.recipe.to_json()), "inputs": inputs(one.recipe), "state": result}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps(note))

    def again() -> object:
        """Run the same command in a new process."""
        return Run(Recipe.from_json(one.recipe.to_json())).state()

    assert again() == result

    for file in folder.rglob("*"):
        os.utime(file, (10**9, 10**9))
    assert again() == result
    shutil.copytree(folder, tmp_path / "copy", symlinks=True)
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "copy", folder)
    assert again() == result

    before, _, after = one.file.read_bytes().rpartition(one.old)
    one.file.write_bytes(before + one.new + after)
    if one.file.name == "mine.py":
        plugins.load_file(one.file)
    way = "--run.overwrite" if finished else "--run.resume never"
    with pytest.raises(RecipeError, match=rf"^{one.name}.* ha(s|ve) changed .*Restore .* another run\.output_dir.*: {way}$"):
        again()
    if not finished:
        assert Run(one.recipe.replace("run.resume", "never")).state() == result
    assert Run(one.recipe.replace("run.overwrite", True)).state() == "new"

    shutil.copy(tmp_path / "copy" / one.file.relative_to(folder), one.file)
    if one.file.name == "mine.py":
        plugins.load_file(one.file)
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
