"""Test training on your own files with `mine`: packing, chosen settings, training."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from PIL import Image

from multicse.commands import cli, describe, mine, pack
from multicse.data.errors import DataError
from multicse.data.shards import ShardSet
from multicse.data.streams.preprocess import log_mel, samples_for
from multicse.data.streams.text import TextStream
from multicse.evaluation.registry import gold_of, make_tasks
from multicse.evaluation.tasks.sts import PairTask
from multicse.pipelines import audiocse, multicse, simcse, visualcse
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.trainers.engine.launch import run_recipe
from multicse.trainers.recipe import Recipe, RecipeError
from tests.worlds import WORDS, example


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write sentences.txt (2,200 different sentences), photos/ with two classes, flat/ without folders, sounds/."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lines = [" ".join([*rng.choice(WORDS, 8), str(number)]) for number in range(2200)]
    Path("sentences.txt").write_text("\n".join(["", *lines]) + "\n")
    for name in ("photos/cats", "photos/dogs", "flat", "sounds"):
        Path(name).mkdir(parents=True)
    for number in range(20):
        image = Image.fromarray(rng.integers(0, 255, (70, 100, 3), dtype=np.uint8))
        image.save(f"photos/{('cats', 'dogs')[number % 2]}/{number}.png")
        image.save(f"flat/{number}.png")
        soundfile.write(f"sounds/{number}.wav", rng.normal(0, 0.1, 9000), 8000)
    return tmp_path


def chosen(pipeline: Any, *given: str) -> Recipe:
    return mine.choose(pipeline.RECIPES, list(given))


@pytest.mark.parametrize("pipeline", [audiocse, simcse, visualcse])
def test_the_help_of_a_pipeline_has_a_line_that_works(
    pipeline: Any, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("sounds").rename("recordings")
    with pytest.raises(SystemExit):
        cli.parse(pipeline.RECIPES, "", ["--help"])
    (example,) = [line.split("mine ", 1)[1] for line in capsys.readouterr().out.splitlines() if " mine --text" in line]
    assert chosen(pipeline, *example.split("  ")[0].split())


def test_settings_follow_from_the_files(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = chosen(visualcse, "--text", "sentences.txt", "--images", "photos", "--run.seed", "7")
    settings, text = recipe.flat(), ShardSet.open(recipe.streams["text"].shards)
    assert text.samples == 2200 - 110 and ShardSet.open(recipe.streams["image"].shards).classes == ("cats", "dogs")
    assert (settings["streams.text.batch_size"], settings["streams.image.batch_size"]) == (64, 6)
    assert settings["optim.image.lr"] == pytest.approx(1.5e-5 * (6 / 48) ** 0.5, rel=0.02)
    assert settings["streams.image.size"] == settings["method.image.image_size"] == 64
    assert settings["method.image.loss"] == "supcon" and settings["run.seed"] == 7
    assert (settings["run.epochs"], recipe.steps(text.samples)) == (pytest.approx(20_000 / 2090, abs=0.01), 316)
    assert settings["evaluation.eval_steps"] == 316 // 8 and settings["streams.text.max_length"] == 16
    shown = capsys.readouterr().out
    assert "streams.image.size" in shown and "--recipe runs/visualcse/mine/recipe.json" in shown
    values = {words[0]: words[1] for line in shown.splitlines() if len(words := line.split()) > 1}
    assert values["streams.text.shards"].startswith("runs/visualcse/mine/data/text-"), "as the user sees it"
    assert (values["evaluation.select"], values["evaluation.final"]) == ("own-dev", "('own-test',)"), (
        "as the scores are named"
    )
    assert settings["evaluation.select"].startswith("pairs:runs/visualcse/mine/data/halves-")


def test_the_smallest_batch_of_an_update_determines_its_learning_rate(files: Path) -> None:
    recipe, base = chosen(multicse, "--text", "sentences.txt", "--images", "photos"), multicse.RECIPES["demo"]()
    (update,) = recipe.optim
    assert recipe.streams["image"].batch_size == 6 and set(update.split("+")) == {"image", "text"}
    share = 6 / base.streams["image"].batch_size
    assert recipe.optim[update].lr == pytest.approx(base.optim[update].lr * share**0.5, rel=0.02)


def test_options_replace_chosen_settings_in_the_table_and_the_file(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--run.max-steps", "5", "--streams.text.batch_size=16", "--run.seed", "7"]
    recipe = chosen(simcse, "--text", "sentences.txt", "--output", "mine", *options)
    rows = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    table = {path: (value, why) for path, value, why in (row for row in rows if len(row) == 3)}
    given = {"run.max_steps": "5", "streams.text.batch_size": "16", "run.seed": "7"}
    assert {path: table[path] for path in given} == {path: (value, "given as an option") for path, value in given.items()}
    assert len(table) == len(rows) and table["run.precision"] == ("fp32", "no GPU was found")
    assert (recipe.run.max_steps, recipe.run.output_dir) == (5, "mine")


@pytest.mark.parametrize(("options", "steps"), [(("--run.max_steps", "80"), 80), (("--run.epochs", "20"), 660), ((), 330)])
def test_the_steps_of_the_options_determine_the_evaluations(
    options: tuple[str, ...], steps: int, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = chosen(simcse, "--text", "sentences.txt", "--run.output_dir", "mine", *options)
    assert recipe.run.output_dir == "mine" and recipe.steps(2090) == pytest.approx(steps, abs=14)
    assert recipe.evaluation.eval_steps == recipe.steps(2090) // 8
    assert f"eight evaluations in {recipe.steps(2090)} steps" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", [["--run.max_stepz", "5"], ["word"], ["--images", "photos"], ["--optim.text.lr", "fast"]])
def test_a_refused_command_writes_nothing(wrong: list[str], files: Path) -> None:
    before = sorted(files.rglob("*"))
    with pytest.raises(ValueError, match=wrong[0].lstrip("-")):
        chosen(simcse, *(["word"] if wrong == ["word"] else []), "--text", "sentences.txt", *wrong)
    assert sorted(files.rglob("*")) == before


def test_held_out_halves_are_in_no_shard(files: Path) -> None:
    recipe = chosen(simcse, "--text", "sentences.txt")
    (task,) = make_tasks([recipe.evaluation.select or ""])
    trained = {text for text in _texts(recipe)}
    pairs = task.sentences()
    joined = [f"{first} {second}" for first in pairs for second in pairs]
    assert len(set(joined) & set(Path("sentences.txt").read_text().splitlines())) == 55 and not trained & set(joined)


def test_a_line_without_two_halves_is_not_held_out(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is trained on; 2,000 lines of single characters leave nothing to hold out."""
    lines = Path("sentences.txt").read_text().split("\n")[1:-1]
    lines[40], lines[1000] = "?", "A"
    Path("single.txt").write_text("\n".join(lines))
    recipe = chosen(simcse, "--text", "single.txt")
    names = [recipe.evaluation.select or "", *recipe.evaluation.final]
    tasks = [task for task in make_tasks(names) if isinstance(task, PairTask)]
    assert sum(len(task.pairs) for task in tasks) == 2 * (110 - 2)
    assert {"?", "A"} <= set(_texts(recipe)) and ShardSet.open(recipe.streams["text"].shards).samples == 2200 - 108
    assert {task.gold_is for task in tasks} == {mine.GOLD} == {gold_of(name) for name in names}
    capsys.readouterr()
    Path("letters.txt").write_text("\n".join("abcd" * 600))
    assert chosen(simcse, "--text", "letters.txt").evaluation.select is None
    assert "fewer than 2,000 sentences with two halves" in capsys.readouterr().out


def test_the_reason_for_the_length_is_true(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Half of the sentences have more tokens than the largest length that is chosen."""
    lines = [" ".join(["cat"] * (300 if number % 2 else 5)) for number in range(60)]
    Path("long.txt").write_text("\n".join(lines))
    assert chosen(simcse, "--text", "long.txt").flat()["streams.text.max_length"] == mine.LONGEST
    assert "50% of 60 sentences are not cut; the longest of them has 302 tokens" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sentences", "epochs", "why"),
    [(300, 10, "at most 10; 20,000"), (2_500, 8, "20,000 sentences in all"), (90_000, 1, "at least 1; 20,000")],
)
def test_the_reason_for_the_epochs_is_true(sentences: int, epochs: float, why: str) -> None:
    _, chosen_epochs, reason = next(mine._length(sentences))
    assert chosen_epochs == epochs and reason.startswith(why)


def test_few_sentences_train_without_scores_and_the_remedy_is_printed(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("few.txt").write_text(
        "\n".join(Path("sentences.txt").read_text().split("\n")[:2000])
    )  # one of these lines is empty
    evaluation = chosen(simcse, "--text", "few.txt").evaluation
    assert evaluation.select is None and evaluation.final == ()
    printed = capsys.readouterr().out
    assert (
        printed.count("fewer than 2,000 sentences with two halves: none are held out; give more, or rated pairs as --dev")
        == 1
    )
    assert "eight checkpoints in 320 steps" in printed and "eight evaluations" not in printed


def _texts(recipe: Recipe) -> list[str]:
    from multicse.data.shards import read

    stream, shards = recipe.streams["text"], ShardSet.open(recipe.streams["text"].shards)
    assert isinstance(stream, TextStream)
    return [stream.sentences(sample)[0] for shard in shards.shards for sample in read(shard, range(shard.samples))]  # type: ignore[arg-type]


def test_images_without_folders_have_no_classes(files: Path) -> None:
    settings = chosen(visualcse, "--text", "sentences.txt", "--images", "flat").flat()
    assert (settings["method.image.loss"], settings["streams.image.label"]) == ("simclr", None)
    assert "method.image.loss" not in chosen(example("uml"), "--text", "sentences.txt", "--images", "flat").flat()


def test_sentences_may_be_a_column_of_a_table(files: Path) -> None:
    lines = Path("sentences.txt").read_text().split("\n")
    Path("table.csv").write_text("id;said\n" + "\n".join(f"{number};{line}" for number, line in enumerate(lines)))
    rows = [json.dumps({"id": number, "what": {"said": line}}) for number, line in enumerate(lines)]
    Path("table.jsonl.gz").write_bytes(gzip.compress("\n".join(rows).encode()))
    trained = _texts(chosen(simcse, "--text", "sentences.txt"))
    assert _texts(chosen(simcse, "--text", "table.csv", "--column", "said")) == trained
    assert _texts(chosen(simcse, "--text", "table.jsonl.gz", "--column", "what.said")) == trained
    for given in (("table.csv",), ("sentences.txt", "--column", "said")):
        with pytest.raises(DataError, match="--column"):
            chosen(simcse, "--text", *given)
    with pytest.raises(DataError, match=r"sayd.*said"):  # before the model, whose opening takes seconds
        chosen(simcse, "--text", "table.csv", "--column", "sayd", "--model", "no-such-model")


def test_unusable_files_are_counted_and_limited(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`pack.py`, `describe.py`, `mine` and its recipe count the same number of samples."""
    Path("photos/cats/cut.png").write_bytes(Path("photos/cats/0.png").read_bytes()[:99])
    Path("photos/notes.txt").write_text("none")
    Path("photos/birds").symlink_to("cats")
    given = ("--text", "sentences.txt", "--images", "photos")
    recipe = chosen(visualcse, *given)
    mined = capsys.readouterr().out
    assert pack.main(["images", "photos", "--missing", "skip", "--out", "packed"]) == 0
    packed = capsys.readouterr().out
    assert describe.main([recipe.streams["image"].shards]) == describe.main(["packed"]) == 0
    described = capsys.readouterr().out
    lines = [
        "1 left out: link to a folder that is read already; the first: birds",
        "1 left out: of another kind; the first: notes.txt",
        "1 left out: cannot be decoded; the first: cats/cut.png (sample 'cut.png'",
    ]
    for text in (mined, packed, described):
        assert "20 samples" in text and all(line in text for line in lines)
    assert ": 20 samples" in described and described.count(lines[2]) == 2
    assert recipe.streams["image"].open().samples == ShardSet.open("packed").samples == 20
    assert "sentences.txt: 1 left out: blank line; the first: sentences.txt, line " in mined
    chosen(visualcse, *given)
    again = capsys.readouterr().out
    assert all(line in again for line in lines), "also if the files are packed already"
    for number in range(2):
        Path(f"photos/dogs/cut{number}.png").write_bytes(b"none")
    with pytest.raises(DataError, match="3 of 23 files cannot be used, more than 10%"):
        chosen(visualcse, *given)


def test_sentences_of_another_language_are_reported(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shards have the language, and they are smaller than the source."""
    english = "The children of the old house were number {} in 1905."
    german = "Zwölf Boxkämpfer jagen {} Straßenkehrer über Köln."
    for name, sentence in {"english": english, "saetze": german}.items():
        Path(f"{name}.txt").write_text("\n".join(sentence.format(number) for number in range(2200)))
    chosen(simcse, "--text", "english.txt")
    assert "warning" not in capsys.readouterr().out
    given = ("--text", "saetze.txt", "--language", "de", "--licence", "CC0-1.0")
    shards = ShardSet.open(chosen(simcse, *given).streams["text"].shards)
    assert "warning: the encoder is English" in capsys.readouterr().out
    assert (shards.languages, shards.licence, shards.source) == (("de",), "CC0-1.0", "saetze.txt")
    assert sum(Path(shard.url).stat().st_size for shard in shards.shards) < Path("saetze.txt").stat().st_size


def test_a_start_that_may_be_tuned_is_reported(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of sentence-transformers, but not the encoder of this project, which is pretrained only, nor a plain one."""
    for start, warned in {"plain": False, "saved": True, SMALL_ENCODER: False}.items():
        if start != SMALL_ENCODER:
            shutil.copytree(SMALL_ENCODER, start)
        if start == "plain":
            Path(start, "modules.json").unlink()
        chosen(simcse, "--text", "sentences.txt", "--model", start)
        shown = capsys.readouterr().out
        assert (f"warning: {start} is saved as a sentence encoder" in shown) == warned == ("warning" in shown)


def test_equal_files_are_packed_once_and_changed_files_make_another_run(files: Path) -> None:
    first = chosen(simcse, "--text", "sentences.txt")
    assert chosen(simcse, "--text", "sentences.txt") == first
    with Path("sentences.txt").open("a") as file:
        file.write("one more\n")
    assert chosen(simcse, "--text", "sentences.txt").identity() != first.identity()


def test_files_are_packed_again_after_a_new_broken_link_and_by_a_new_reader(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = mine.Arguments(text=Path("sentences.txt"))
    found = [mine._fingerprint(Path("photos"), asked)]
    Path("photos/cats/gone.png").symlink_to("nowhere")
    found.append(mine._fingerprint(Path("photos"), asked))
    monkeypatch.setattr(mine, "READERS", mine.READERS + 1)
    found.append(mine._fingerprint(Path("photos"), asked))
    assert len(set(found)) == 3


def test_it_trains_evaluates_and_exports(files: Path, place: Path) -> None:
    given = ["--text", "sentences.txt", "--audio", "sounds", "--model", str(place / "encoder"), "--output", "mine"]
    settings = ["--run.max_steps", "2", "--run.num_workers", "0", "--run.tracking_uri", f"sqlite:///{files}/mlflow.db"]
    recipe = chosen(audiocse, *given, *settings, "--streams.text.batch_size", "8")
    assert recipe.flat()["streams.audio.rate"] == 8000 and recipe.flat()["streams.audio.frames"] == 112
    summary = run_recipe(recipe)
    assert summary["steps"] == 2 and Path("mine/export/model.safetensors").exists() and summary["after"]
    written = Path("mine/recipe.json").read_text()
    options = ["--run.output_dir", "mine", *settings[2:]]
    assert cli.parse(audiocse.RECIPES, "", ["--recipe", "mine/recipe.json", *options]).identity() == recipe.identity()
    with pytest.raises(RecipeError, match="other settings"):
        run_recipe(chosen(audiocse, *given, *settings, "--streams.text.batch_size", "16"))
    assert Path("mine/recipe.json").read_text() == written


def test_audio_of_no_length_is_refused(files: Path) -> None:
    for number in range(20):
        soundfile.write(f"sounds/{number}.wav", np.zeros(80), 8000)
    with pytest.raises(DataError, match="--audio"):
        chosen(audiocse, "--text", "sentences.txt", "--audio", "sounds")


def test_long_audio_is_measured_at_its_start(files: Path) -> None:
    """A spectrogram of whole files would take 80 GB."""
    wave = np.random.default_rng(0).normal(0, 0.1, 30 * 8000)
    for number in range(20):
        soundfile.write(f"sounds/{number}.wav", wave, 8000)
    settings = chosen(audiocse, "--text", "sentences.txt", "--audio", "sounds").flat()
    beginning = torch.as_tensor(wave[: samples_for(8000, 256)], dtype=torch.float32)[None, None]
    values = log_mel(beginning, rate=8000, bins=32)
    assert settings["streams.audio.frames"] == 256
    assert settings["method.audio.mean"] == pytest.approx(float(values.mean()), abs=0.01)
    assert settings["method.audio.std"] == pytest.approx(float(values.std()), abs=0.01)
