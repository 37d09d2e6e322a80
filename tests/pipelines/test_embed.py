"""Test `multicse.embed`: vectors of sentence-transformers, every form of data, deaths, refusals and bad rows."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sentence_transformers import SentenceTransformer

import multicse
from multicse.commands import embed as command
from multicse.data.errors import DataError
from multicse.data.shards import Manifest, RawSample, ShardSet
from multicse.evaluation import vectors
from multicse.evaluation.load import load_model
from multicse.evaluation.task import EvaluationError
from multicse.trainers.engine import record
from multicse.trainers.engine.text_fit import baseline_sentences
from multicse.trainers.recipe import Recipe
from tests import worlds
from tests.conftest import ROOT
from tests.data import test_forms
from tests.evaluation.evaluation_helpers import Bag, texts, tiny_bert
from tests.evaluation.multimodal_helpers import tiny_clap, tiny_clip
from tests.models.test_model_folders import READ, TEXTS, vectors_of_sentence_transformers
from tests.worlds import write_tar


class Named(Bag):
    """An encoder of texts that needs no folder."""

    name = hash = "bag"
    protocol: dict[str, Any] = {"pooling": "mean"}


@pytest.fixture
def bag(monkeypatch: pytest.MonkeyPatch) -> Named:
    model = Named()
    monkeypatch.setattr(vectors, "load_for", lambda *_, **__: model)
    return model


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_bert(tmp_path_factory.mktemp("model"))


def lines(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join(json.dumps(row if isinstance(row, dict) else {"text": row}) + "\n" for row in rows))
    return file


def rows_of(found: Manifest | Path) -> pa.Table:
    """The rows of all files in order."""
    folder = Path(found.folder) if isinstance(found, Manifest) else found
    return pa.concat_tables(pq.read_table(file) for file in sorted(folder.glob("*.parquet")))


def vectors_of(found: Manifest) -> np.ndarray:
    return np.stack(rows_of(found)["vector"].to_numpy())


@pytest.mark.parametrize("name", READ)
def test_vectors_are_those_of_sentence_transformers(name: str, tmp_path: Path) -> None:
    folder, given = READ[name](tmp_path / "model"), [text for text in TEXTS if text]
    found = multicse.embed(folder, lines(tmp_path / "x.jsonl", given), tmp_path / "out", device="cpu")
    assert rows_of(found)["text"].to_pylist() == given
    assert np.abs(vectors_of(found) - vectors_of_sentence_transformers(folder, given)).max() < 1e-5


@pytest.mark.parametrize("form", test_forms.FORMS)
def test_every_form_of_data_gives_the_same_rows(form: str, tmp_path: Path, bag: Named) -> None:
    name, write, _ = test_forms.FORMS[form]
    place, options = name.partition("#")[0], name.partition("#")[2]
    said = ["old house", None, "the  red\ttree", "a cat", ""]
    rows = [
        {"said": said[i % 5], "heard": "b", "kind": i, "about": {"place": "c", "n": i}, "captions": ["d"]} for i in range(20)
    ]
    write(tmp_path / place.removeprefix("memory://"), rows)
    data = place if place.startswith("memory://") else str(tmp_path / place)
    found = multicse.embed("bag", data + ("#" + options if options else ""), tmp_path / "out", column="said", keep=["kind"])
    table = rows_of(found)
    assert table["text"].to_pylist() == ["old house", "the red tree", "a cat"] * 4
    assert table["kind"].to_pylist() == [str(i) for i in range(20) if i % 5 in (0, 2, 3)]
    assert np.allclose(vectors_of(found), bag.encode(table["text"].to_pylist()), atol=1e-6)
    assert found.record["dropped"] == 8
    again = ShardSet.open(str(tmp_path / "out"))
    assert (
        again.samples == 12 and isinstance(sample := again.sample(1), RawSample) and sample.fields["txt"] == "the red tree"
    )


def corpus(folder: Path, shards: int = 6, rows: int = 50) -> Path:
    """Shards of texts, some of which are empty."""
    folder.mkdir()
    for shard in range(shards):
        lines(folder / f"{shard}.jsonl", [text if row % 9 else " " for row, text in enumerate(texts(rows + shard))])
    return folder


@pytest.mark.parametrize("seed", range(10))
def test_rows_after_any_death_are_those_of_an_uninterrupted_run(
    seed: int, tmp_path: Path, bag: Named, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child ends without any cleanup when its timer fires, wherever it is."""
    monkeypatch.setattr(vectors, "PART", 30)
    monkeypatch.setitem(vectors.AT_ONCE, "text", 7)
    data, out, rng, deaths = corpus(tmp_path / "data"), tmp_path / "out", random.Random(seed), 0
    whole = rows_of(multicse.embed("bag", data, tmp_path / "whole"))
    while True:
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(0.001, 0.05) * 1.5**deaths)
            multicse.embed("bag", data, out)
            os._exit(0)
        if os.waitpid(child, 0)[1] == 0:
            break
        rng.random()
        deaths += 1
    assert rows_of(out).equals(whole) and len(whole) == sum(50 + n - -(-(50 + n) // 9) for n in range(6))
    assert not list(out.glob("*.partial")) and json.loads((out / "dataset.json").read_text())["nsamples"] == len(whole)


def test_only_new_changed_and_damaged_files_are_made_again(tmp_path: Path, bag: Named) -> None:
    data, out = corpus(tmp_path / "data"), tmp_path / "out"
    multicse.embed("bag", data, out)
    before = rows_of(out)
    times = {file.name: file.stat().st_mtime_ns for file in out.glob("*.parquet")}
    (out / "1.jsonl.parquet").write_bytes((out / "1.jsonl.parquet").read_bytes()[:-50])
    lines(data / "9.jsonl", ["a new dog"])
    lines(data / "2.jsonl", ["a changed cat"])
    calls = bag.calls
    found = multicse.embed("bag", data, out)
    made = {name for name, time in times.items() if (out / name).stat().st_mtime_ns != time}
    assert made == {"1.jsonl.parquet", "2.jsonl.parquet"} and bag.calls - calls == 1 + 3
    kept = [text for key, text in zip(*rows_of(found).select(["key", "text"]).to_pydict().values(), strict=True)]
    was = [(k, t) for k, t in zip(before["key"].to_pylist(), before["text"].to_pylist(), strict=True)]
    assert kept == [t for k, t in was if k < "2.jsonl"] + ["a changed cat"] + [t for k, t in was if k >= "3"] + ["a new dog"]


UNOPENED = "no-such-model"
"""A model that would be an error if it were opened: what needs no model is checked before, as opening takes seconds."""
CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "precision": ({"precision": "int8"}, 'precision "fp32", not "int8"'),
    "dimensions": ({"dimensions": 8}, "dimensions 16, not 8"),
    "prompt": ({"prompt": "a "}, 'prompt null, not "a "'),
    "pooling": ({"pooling": "cls"}, 'pooling "mean", not "cls"'),
    "column": ({"column": "other"}, 'column "txt", not "other"'),
    "texts": ({"without_text": True}, "text true, not false"),
    "further columns": ({"keep": ["other"]}, 'keep [], not ["other"]'),
}


@pytest.mark.parametrize("change", CHANGES)
def test_vectors_of_other_settings_are_refused_by_name(change: str, bert: Path, tmp_path: Path) -> None:
    options, message = CHANGES[change]
    data, out = lines(tmp_path / "x.jsonl", [{"text": "a dog", "other": "a cat"}]), tmp_path / "out"
    multicse.embed(bert, data, out, device="cpu")
    before = rows_of(out)
    with pytest.raises(DataError) as refused:
        multicse.embed(bert, data, out, device="cpu", **options)
    assert message in str(refused.value) and "--overwrite" in str(refused.value) and rows_of(out).equals(before)
    assert not rows_of(multicse.embed(bert, data, out, device="cpu", overwrite=True, **options)).equals(before)


def test_another_model_other_data_and_strange_files_are_refused(tmp_path: Path, bag: Named) -> None:
    data, out = corpus(tmp_path / "data", 2), tmp_path / "out"
    multicse.embed("bag", data, out)
    bag.hash = "other"
    with pytest.raises(DataError, match=r"model bag \(bag\), not bag \(other\)"):
        multicse.embed("bag", data, out)
    bag.hash = "bag"
    with pytest.raises(DataError, match=r"contains 0\.jsonl\.parquet, the vectors of other data"):
        multicse.embed("bag", data / "1.jsonl", out)
    for overwrite in (False, True):
        with pytest.raises(DataError, match="is the folder of the data"):
            multicse.embed(UNOPENED, out, out, overwrite=overwrite)
        (tmp_path / "own").mkdir(exist_ok=True)
        pq.write_table(pa.table({"text": ["a dog"]}), tmp_path / "own/x.parquet")
        with pytest.raises(DataError, match=r"x\.parquet, which embed has not written"):
            multicse.embed(UNOPENED, data, tmp_path / "own", overwrite=overwrite)
    with pytest.raises(DataError, match=r"no option 'colum'\. Did you mean 'column'"):
        multicse.embed("bag", data, out, colum="text")
    with pytest.raises(DataError, match=r"column 'boddy' does not exist\. Did you mean 'body'"):
        multicse.embed(UNOPENED, lines(tmp_path / "x.jsonl", [{"body": "a", "title": "b"}]), tmp_path / "y", column="boddy")
    with pytest.raises(DataError, match='precision "fp32", not "int8"'):
        multicse.embed(UNOPENED, data, out, precision="int8")
    with pytest.raises(DataError, match="name the column to embed"):
        multicse.embed("bag", tmp_path / "x.jsonl", tmp_path / "y")
    with pytest.raises(DataError, match="none of the 2 rows could be embedded"):
        multicse.embed("bag", lines(tmp_path / "z.jsonl", [{"text": None, "n": 1}, ""]), tmp_path / "z")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dimensions": 17}, "--dimensions 17"),
        ({"prompt_name": "query"}, "--prompt_name 'query'"),
        ({"prompt_name": "query", "prompt": "a "}, "remove one"),
        ({"batch_size": 0}, "batch_size"),
        ({"pooling": "no"}, "unknown pooling"),
    ],
)
def test_what_the_model_does_not_support_is_refused(
    options: dict[str, Any], message: str, bert: Path, tmp_path: Path
) -> None:
    with pytest.raises(EvaluationError, match=message):
        multicse.embed(bert, lines(tmp_path / "x.jsonl", ["a dog"]), tmp_path / "out", device="cpu", **options)
    assert not (tmp_path / "out").exists()


def test_post_processing_is_fitted_on_a_file_or_on_the_text_of_the_models_run(
    bert: Path, place: Path, recipe: Recipe, tmp_path: Path
) -> None:
    data, fit, folder = lines(tmp_path / "x.jsonl", texts(9)), tmp_path / "fit.txt", Path(recipe.run.output_dir)
    with pytest.raises(EvaluationError, match=r"Write .*\+whitening4:PLACE \(a run"):
        multicse.embed(f"{bert}+whitening4", data, tmp_path / "out", device="cpu")
    shutil.copytree(place / "encoder", folder / "export")
    record.update(folder, {"recipe": json.loads(recipe.to_json())})
    fit.write_text("\n".join(baseline_sentences(recipe, 16)))
    want = load_model(f"{folder}/export+whitening4:{fit}", device="cpu").encode(texts(9))
    for name, end in {"run": "", "file": f":{fit}", "named": f":{folder}"}.items():
        found = multicse.embed(f"{folder}/export+whitening4{end}", data, tmp_path / name, device="cpu")
        assert vectors_of(found) == pytest.approx(want, abs=1e-5) and want.shape == (9, 4)


def test_precisions_prompts_and_dimensions(bert: Path, tmp_path: Path) -> None:
    data, model = lines(tmp_path / "x.jsonl", texts(40)), SentenceTransformer(str(bert), device="cpu")

    def embedded(**options: Any) -> np.ndarray:
        return vectors_of(multicse.embed(bert, data, tmp_path / "out", device="cpu", overwrite=True, **options))

    def cosines(found: np.ndarray) -> np.ndarray:
        unit = found.astype(np.float64)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        return unit @ unit.T

    plain = embedded()
    small, half = embedded(precision="int8"), embedded(precision="bf16")
    assert (plain.dtype, small.dtype, half.dtype) == (np.float32, np.int8, np.float16)
    assert np.abs(cosines(small) - cosines(plain)).max() < 0.01 and np.abs(small).max() == 127
    assert np.abs(cosines(half) - cosines(plain)).max() < 0.02
    prompted = model.encode(texts(40), prompt="the big ")
    assert np.allclose(embedded(prompt="the big "), prompted, atol=1e-5) and not np.allclose(prompted, plain, atol=0.1)
    model.truncate_dim = 8
    assert np.allclose(embedded(dimensions=8), model.encode(texts(40)), atol=1e-5)
    about = json.loads((tmp_path / "out/dataset.json").read_text())["embedding"]
    assert about["dimensions"] == 8 and about["model"] == load_model(str(bert), device="cpu").hash


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_images_and_sounds_of_a_tar(kind: str, tmp_path: Path) -> None:
    """A damaged one, and one that is missing, are listed; a tar that is cut short, too."""
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 255, (20, 24, 3), dtype=np.uint8) for _ in range(70)]
    waves = [rng.normal(0, 0.1, 8000).astype(np.float32) for _ in range(12)]
    contents = [worlds.png(one) for one in pictures] if kind == "image" else [worlds.sound(one) for one in waves]
    ending = "png" if kind == "image" else "wav"
    contents[3] = contents[3][: len(contents[3]) // 2]
    members = [(f"{i:03d}.{ending}", content) for i, content in enumerate(contents)]
    members[5] = ("005.txt", b"no file")
    data = Path(write_tar(tmp_path / "data" / "x.tar", [*members, ("099.txt", b"x" * 5000)]))
    whole = (data / "x.tar").read_bytes()
    (data / "x.tar").write_bytes(whole[: -(len(whole) // 5) if kind == "audio" else len(whole)])
    folder = tiny_clip(tmp_path / "model") if kind == "image" else tiny_clap(tmp_path / "model")
    found = multicse.embed(folder, data, tmp_path / "out", device="cpu")
    keys = [int(key.rpartition("/")[2]) for key in rows_of(found)["key"].to_pylist()]
    assert {3, 5} & {*keys} == set() and len(keys) >= 6 and rows_of(found)["url"][0].as_py().endswith("x.tar")
    listed = [json.loads(line) for line in (tmp_path / "out/bad_rows.jsonl").read_text().splitlines()]
    assert len(listed) == found.record["dropped"] and {"x/003", "x/005"} <= {row["key"] for row in listed}
    if kind == "image":
        assert len(keys) == 68
        want = SentenceTransformer(str(folder), device="cpu").encode([Image.fromarray(pictures[key]) for key in keys])
        assert np.abs(vectors_of(found) - want).max() < 1e-5


def test_the_command_shows_rows_rate_and_bad_rows(bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = lines(tmp_path / "x.jsonl", ["a dog", "", None, "a cat"])
    given = [str(bert), str(data), "--out", str(tmp_path / "out"), "--device", "cpu", "--without_text"]
    assert command.main(given) == 0
    shown = capsys.readouterr().out
    assert "row 4/4" in shown and "rows/s" in shown and "2 vectors of 16 numbers (float32) in 1 files" in shown
    assert "2 rows have no vector" in shown and rows_of(tmp_path / "out").column_names == ["key", "vector"]
    assert command.main([*given, "--num_workers", "0"]) == 0 and "row 4/4" not in capsys.readouterr().out


@pytest.mark.cluster
def test_through_ray_after_a_death(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if model and data are named from the current folder, which is not that of Ray's processes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(bert)
    model, data, options = "model", Path(corpus(tmp_path / "data")).name, {"device": "cpu", "num_workers": 2}
    whole = rows_of(multicse.embed(model, data, tmp_path / "whole", device="cpu"))
    write, written = vectors.write_part, list[str]()

    def dying(file: Path, *arguments: Any, **settings: Any) -> Any:
        if len(written) == 3:
            raise KeyboardInterrupt
        written.append(file.name)
        return write(file, *arguments, **settings)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(vectors, "write_part", dying)
        multicse.embed(model, data, tmp_path / "out", **options | {"num_workers": 1})
    found = multicse.embed(model, data, tmp_path / "out", **options)
    assert rows_of(found).drop_columns("vector").equals(whole.drop_columns("vector"))
    assert np.abs(vectors_of(found) - np.stack(whole["vector"].to_numpy())).max() < 1e-5


def test_search_neighbours_and_clusters_of_the_page(bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python code of docs/how-to/embed.md, with fewer clusters."""
    pytest.importorskip("faiss", reason="the extra `search`")
    (tmp_path / "runs/demo").mkdir(parents=True)
    (tmp_path / "runs/demo/export").symlink_to(bert)
    (tmp_path / "runs/offline").mkdir()
    worlds.write_text(tmp_path / "runs/offline/text")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", (ROOT / "docs/how-to/embed.md").read_text(), re.MULTILINE | re.DOTALL):
        exec(code.replace("vectors.shape[1], 20,", "vectors.shape[1], 2,"), names)
    cosines = names["vectors"] @ names["query"][0]
    assert np.allclose(np.sort(cosines[names["numbers"][0]]), np.sort(cosines)[-5:], atol=1e-6), "five that are nearest"
    assert names["topic"].shape == (80,) and len(names["rows"]) == 80
