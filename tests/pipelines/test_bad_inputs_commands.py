"""Test the messages of wrong commands: each names the setting or the file, and often the remedy."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from multicse.pipelines import cli, registry
from multicse.pipelines.run import VERBS
from multicse.trainers.engine.checks import check_cluster, check_recipe
from multicse.trainers.recipe import Recipe

COMMANDS: dict[str, str | tuple[str, ...]] = {
    # ------------------------------------------------------------------------------- recipes; small.json is valid
    "visualcse deemo": "'demo'",
    "visualcse --recipe": "--recipe",
    "visualcse --recipe nowhere.json": ("--recipe", "file nowhere.json not found", "recipe.json"),
    "visualcse --recipe sentences.txt": ("sentences.txt", "JSON"),
    "visualcse --recipe newer.json": ("newer.json", "run.colour"),
    "visualcse --recipe small.json --optim.text.lrr 1": ("--optim.text.lrr", "'--optim.text.lr'"),
    "visualcse --recipe small.json --optim.text.learning_rate 1": ("--optim.text.learning_rate", "'--optim.text.lr'"),
    "visualcse --recipe small.json --optim.text.lr -1": "optim.text.lr: Input should be greater",
    "visualcse --recipe small.json --run.max_steps 0": "run.max_steps: Input should be greater than 0, given '0'",
    "visualcse --recipe small.json --run.output_dir sentences.txt": ("run.output_dir", "sentences.txt"),
    "visualcse --recipe small.json --run.tracking_uri sqlite:////proc/x.db": "run.tracking_uri='sqlite:////proc/x.db'",
    "visualcse --recipe small.json --run.precision fp16": "run.precision='fp16'",
    "visualcse --recipe small.json --run.threads None --run.gpus_per_worker 64": "run.gpus_per_worker=64",
    "visualcse --recipe small.json --run.num_workers 3": "streams.text.batch_size=16",
    "visualcse --recipe small.json --run.resume must": "run.resume='must'",
    "visualcse --recipe small.json --run.mini_batch_size -4": "run.mini_batch_size: Input should be greater",
    "visualcse --recipe small.json --encoder.path photos": ("encoder.path", "photos", "config.json"),
    "visualcse --recipe small.json --encoder.lora.alpha 4": ("encoder.lora", "encoder.lora.rank"),
    "visualcse --recipe small.json --streams.text.max_length 999": ("streams.text.max_length=999", "at most"),
    "visualcse --recipe small.json --run.max_failures 2": ("run.max_failures=2", "run.num_workers"),
    "visualcse --recipe small.json --streams.text.shards /nowhere/text": ("streams.text.shards", "/nowhere/text"),
    "visualcse --recipe small.json --streams.text.batch_size 4000": "streams.text.batch_size=4000",
    "visualcse --recipe small.json --streams.text.first 100000": ("streams.text", "first=100000"),
    "visualcse --recipe small.json --streams.image.batch_size 1": "streams.image.batch_size=1",
    "visualcse --recipe small.json --streams.image.size 24": "streams.image.size=24",
    "visualcse --recipe small.json --streams.image.label None": ("streams.image.label", "simclr"),
    "visualcse --recipe small.json --method.image.patch_size 7": "method.image.patch_size",
    "visualcse --recipe small.json --lead sentences": ("lead", "text"),
    "visualcse --recipe small.json --evaluation.select stsb-dev": "evaluation.data",
    "visualcse --recipe small.json --evaluation.select lee-dve": ("lee-dve", "lee-dev"),
    "visualcse --recipe small.json --evaluation.select lee": ("evaluation.select", "lee-dev"),
    "visualcse --recipe small.json --evaluation.select pairs:nowhere.tsv": "nowhere.tsv",
    "visualcse --recipe small.json --evaluation.data /nowhere --evaluation.final sts12": "/nowhere",
    # ------------------------------------------------------------------------------------------------------- own files
    "visualcse mine --text nowhere.txt --images photos": "--text nowhere.txt",
    "simcse mine --text sentences.txt": ("sentences.txt", "16"),
    "nonlingcse mine --text sentences.txt --images photos": "--audio",
    "simcse mine --text sentences.txt --model nowhere": "--model nowhere",
    "simcse mine --text sentences.txt --dev nowhere.tsv": "--dev nowhere.tsv",
    "simcse mine --text rows.csv": ("rows.csv", "--column"),
    "simcse mine --text rows.csv --column lft": ("'lft'", "'left'"),
    "clap mine --text sentences.txt": "'mine'",
    "simcse mine --text sentences.txt --run.output-dir=elsewhere": ("--run.output_dir", "--output"),
    "simcse mine --text sentences.txt --recipe small.json": ("--recipe", "without the word mine"),
    # ---------------------------------------------------------------------------------------------------------- verbs
    "run visualcs": ("'visualcs'", "'visualcse'"),
    "run my_method.py": "my_method.py",
    "run empty.py": ("empty.py", "RECIPES"),
    "pack text --out shards": "wiki.txt.gz",
    "pack text latin.txt --out shards": ("latin.txt, line 1", "UTF-8"),
    "pack text rows.jsonl --out shards": ("rows.jsonl", "table"),
    "pack text blank.txt --out shards": "blank.txt",
    "describe quotes.csv": ("quotes.csv, line 1", "quotation marks"),
    "describe rows.csv#separator=ab": "a separator is one character or tab",
    "pack text sentences.txt --out made": ("made", "--overwrite"),
    "pack text sentences.txt --out sentences.txt": "--out sentences.txt",
    "pack text sentences.txt --out shards --shard-size 0": "--shard-size",
    "pack table rows.csv --out shards --columns lft": ("'lft'", "'left'"),
    "pack table rows.csv --out shards --columns left --where right": "--where",
    "pack table ragged.csv --out shards --columns left": "ragged.csv, line 2",
    "pack images mixed --out shards": ("mixed", "b.png"),
    "pack images broken --out shards": ("broken", "a.png", "--missing skip"),
    "pack audio photos --out shards": ("a.png", ".wav"),
    "describe nowhere": "nowhere",
    "describe visualcse:deemo": "'demo'",
    "describe visualcse:demo --verify": ("--verify", "visualcse:demo"),
    "evaluate": "give either one model (--model MODEL) or models",
    "evaluate --model ENCODER --tasks sts17": ("sts17", "sts16"),
    "evaluate --model ENCODER --compare ENCODER": "--compare",
    "evaluate --model ENCODER --data sts --tasks transfer": "contains none of them",
    "evaluate --compare a=ENCODER b=absent.json": "absent.json is not a report of a single model",
    "evaluate --model ENCODER@max --layers": "@POOLING",
    "evaluate --model ENCODER --json photos": "--json photos is a folder",
    "evaluate --model ENCODER --tasks lee lee-geometry pairs:lee.tsv --data sts": ("--data sts", "lee-geometry"),
    "evaluate --model ENCODER --tasks lee --hidden 50": ("--hidden", "lee"),
    "evaluate --model ENCODER --tasks lee --metric pearson": ("--metric", "--compare"),
    "evaluate --model ENCODER --tasks lee --fit sentences.txt": ("--fit", "+whitening"),
    "evaluate --model ENCODER --tasks lee pairs:lee.tsv": "two tasks are named 'lee'",
    "explore": "--model",
    "explore --model ENCODER --data nowhere": "nowhere",
    "export nowhere model": "nowhere",
    "prepare clothos": ("clothos", "clotho"),
    "sweep visualcse --recipe deemo": "'demo'",
    "sweep visualcse --space wied": ("wied", "wide"),
    "sweep visualcse --searcher tpe": ("--searcher", "optuna"),
    "sweep visualcse simcse": "one pipeline",
    "sweep simcse --evaluation.select None": "evaluation.select",
    "sweep simcse --evaluation.select stsb-test": "stsb-test",
    "sweep simcse --run.output_dir elsewhere": ("--run.output_dir elsewhere", "--output"),
    "sweep simcse --run.save_steps 5": ("--run.save_steps 5", "evaluation.eval_steps"),
    "sweep simcse --run.keep_every 5": ("--run.keep_every 5", "latest checkpoints"),
    "sweep simcse --run.overwrite": ("--run.overwrite", "--output"),
    "sweep simcse --run.seed 3 --seeds 1 2": ("--run.seed 3", "--seeds"),
    "sweep simcse --run.max_failures 2": ("--run.max_failures 2", "--retries"),
    "sweep simcse --evaluation.eval_steps 99999": ("--evaluation.eval_steps 99999", "--scheduler none"),
    "reproduce sgbert T99": ("T99", "T1"),
    "translate --text nowhere.txt --out out.tsv --there nowhere --back nowhere": "nowhere",
    "track sync sentences.txt": "sentences.txt",
}
"""Arguments of `multicse`, and the required parts of the message."""


@pytest.fixture
def files(recipe: Recipe, offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write the input files of the commands to the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/offline").symlink_to(offline)
    content = {
        "sentences.txt": "a sentence\nanother one\n",
        "blank.txt": "\n\n",
        "quotes.csv": 'left,"ri"ght\na,b\n',
        "rows.jsonl": '{"left": "a", "right": "b"}\n',
        "rows.csv": "left,right\na,b\n",
        "lee.tsv": "score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n",
        "ragged.csv": "left,right\na,b,c\n",
        "empty.py": "",
        "small.json": recipe.to_json(),
        "sts/STS12.raw.tsv": "score\tsentence1\tsentence2\n1\ta\tb\n",
        "made/made-train-000000.tar": "",
        "broken/a.png": "not an image",
    }
    newer = json.loads(content["small.json"])
    newer["run"]["colour"] = "red"
    for name, text in {**content, "newer.json": json.dumps(newer)}.items():
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text)
    Path("latin.txt").write_bytes("für\n".encode("latin-1"))
    for name in ("photos/a.png", "mixed/b.png", "mixed/cats/a.png"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (20, 20)).save(name)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_command_names_setting_and_remedy(
    command: str,
    files: Path,
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *words = shlex.split(command.replace("ENCODER", recipe.flat()["encoder.path"]))
    pipeline = registry.load(name) if name in registry.NAMES else None
    if pipeline is not None and "--run.num_workers" not in words and "mine" not in words:
        words += ["--run.num_workers", "0"]  # no Ray
    monkeypatch.setattr(sys, "argv", [f"pipelines/{name}.py", *words])
    try:
        if pipeline is not None:
            cli.main(pipeline.RECIPES, pipeline.__doc__)
            code: object = 0
        else:
            code = importlib.import_module(VERBS[name]).main()
    except SystemExit as end:  # other exceptions are tracebacks
        code = end.code
    said = capsys.readouterr()
    text = " ".join(f"{said.out} {said.err} {code}".replace("│", " ").split())
    assert code == 2 and "validation error" not in text and "Traceback" not in text, text
    named = COMMANDS[command]
    for part in (named,) if isinstance(named, str) else named:
        assert part in text, text


@pytest.mark.parametrize(
    ("changes", "cluster", "named"),
    [
        ({"streams": {}}, {}, "streams.audio"),
        ({"optim": {}}, {}, "optim.audio"),
        ({"run.push_to_hub": "no name"}, {}, "run.push_to_hub='no name'"),
        ({"export.dimensions": 5}, {}, "export.whiten"),
        ({"export": {"whiten": True, "dimensions": 17}}, {}, "export.dimensions=17"),
        ({"run.num_workers": 8, "streams.text.batch_size": 64}, {}, "run.num_workers=8"),
        (
            {"run.num_workers": 3, **{f"streams.{name}.batch_size": 24 for name in ("text", "image", "audio")}},
            {},
            "streams.text.segments=8 with batch_size=24",
        ),
        ({}, {"nodes": 2}, "run.storage=None cannot be reached from several nodes; set it, or MULTICSE_STORAGE"),
        ({"run.storage": "file://FOLDER"}, {"nodes": 2}, "run.tracking_uri"),
        ({"run.storage": "file://FOLDER", "streams.text.shards": "hf://SET"}, {"nodes": 2}, "streams.text.shards"),
    ],
)
def test_settings_that_do_not_fit_recipe_or_cluster_are_named(
    recipe: Recipe, changes: dict[str, Any], cluster: dict[str, int], named: str, tmp_path: Path
) -> None:
    """A Hugging Face data set is cached only on the node that loaded it."""
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "train.jsonl").write_text("".join(f'{{"text": "Number {i}"}}\n' for i in range(64)))
    if "hf://SET" in changes.values():
        changes = {**changes, "streams.text.shards": f"hf://{tmp_path}/set"}
    if changes.get("run.storage") == "file://FOLDER":
        changes = {**changes, "run.storage": f"file://{tmp_path}/runs"}
    with pytest.raises(ValueError, match=re.escape(named)):
        check_recipe(recipe.changed(changes))
        check_cluster(recipe.changed(changes), **{"cpus": 4, **cluster})
