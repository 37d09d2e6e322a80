"""Wrong commands, as they are typed, and what each message names: the setting or the file, and often the fix."""

from __future__ import annotations

import importlib
import json
import shlex
import sys
from pathlib import Path

import pytest
from PIL import Image

from multicse.pipelines import cli, registry
from multicse.pipelines.run import VERBS
from multicse.trainers.recipe import Recipe

COMMANDS: dict[str, str | tuple[str, ...]] = {
    # ------------------------------------------------------------------------------- recipes; small.json is one that works
    "visualcse deemo": "'demo'",
    "visualcse demo smoke": "smoke",
    "visualcse --recipe": "--recipe",
    "visualcse --recipe nowhere.json": ("--recipe", "no file nowhere.json", "recipe.json"),
    "visualcse --recipe sentences.txt": ("sentences.txt", "JSON"),
    "visualcse --recipe list.json": "list.json",
    "visualcse --recipe newer.json": ("newer.json", "run.colour"),
    "visualcse --recipe photos": "--recipe",
    "visualcse --recipe small.json --optim.text.lrr 1": ("--optim.text.lrr", "--optim.text.lr"),
    "visualcse --recipe small.json --run.precison bf16": ("--run.precison", "--run.precision"),
    "visualcse --recipe small.json --optim.text.lr -1": ("optim.text", "lr"),
    "visualcse --recipe small.json --optim.text.lr much": ("--optim.text.lr", "much"),
    "visualcse --recipe small.json --run.precision fp64": ("--run.precision", "bf16"),
    "visualcse --recipe small.json --run.seed": "--run.seed",
    "visualcse --recipe small.json --run.max_steps 0": ("run", "max_steps"),
    "visualcse --recipe small.json --method.variant fixd": ("--method.variant", "fixed"),
    "visualcse --recipe small.json --name": "--name",
    "visualcse --recipe small.json --run.output sentences.txt": ("run.output", "sentences.txt"),
    "visualcse --recipe small.json --run.output /proc/run": "run.output",
    "visualcse --recipe small.json --run.tracking_uri sqlite:////proc/x.db": "run.tracking_uri='sqlite:////proc/x.db'",
    "visualcse --recipe small.json --run.precision fp16": "run.precision='fp16'",
    "visualcse --recipe small.json --run.gpus_per_worker 64": "run.gpus_per_worker=64",
    "visualcse --recipe small.json --run.workers 3": "streams.text.batch_size=16",
    "visualcse --recipe small.json --run.resume must": "run.resume='must'",
    "visualcse --recipe small.json --run.chunk -4": ("run", "chunk"),
    "visualcse --recipe small.json --encoder.path /nowhere/model": "encoder.path='/nowhere/model'",
    "visualcse --recipe small.json --encoder.path photos": ("encoder.path=", "photos", "config.json"),
    "visualcse --recipe small.json --streams.text.shards /nowhere/text": ("streams.text.shards", "/nowhere/text"),
    "visualcse --recipe small.json --streams.text.shards photos": ("streams.text.shards", "photos"),
    "visualcse --recipe small.json --streams.text.batch_size 4000": "streams.text.batch_size=4000",
    "visualcse --recipe small.json --streams.text.columns sent0 sent1": "streams.text.columns",
    "visualcse --recipe small.json --streams.text.first 100000": ("streams.text", "first=100000"),
    "visualcse --recipe small.json --streams.image.batch_size 1": "streams.image.batch_size=1",
    "visualcse --recipe small.json --streams.image.size 24": "streams.image.size=24",
    "visualcse --recipe small.json --streams.image.label none": ("streams.image.label", "simclr"),
    "visualcse --recipe small.json --method.image.patch_size 7": "method.image.patch_size",
    "visualcse --recipe small.json --lead sentences": ("lead", "text"),
    "visualcse --recipe small.json --evaluation.select stsb-dev": "evaluation.data",
    "visualcse --recipe small.json --evaluation.select lee-dve": ("lee-dve", "lee-dev"),
    "visualcse --recipe small.json --evaluation.select lee": ("evaluation.select", "lee-dev"),
    "visualcse --recipe small.json --evaluation.select pairs:nowhere.tsv": "nowhere.tsv",
    "visualcse --recipe small.json --evaluation.data /nowhere --evaluation.final sts12": "/nowhere",
    # ------------------------------------------------------------------------------------------------------- own files
    "visualcse mine": "--text",
    "visualcse mine --text nowhere.txt --images photos": "--text nowhere.txt",
    "visualcse mine --text sentences.txt": "--images",
    "simcse mine --text sentences.txt": ("sentences.txt", "16"),
    "simcse mine --text sentences.txt --images photos": "--images",
    "nonlingcse mine --text sentences.txt --images photos": "--sounds",
    "simcse mine --text sentences.txt --model nowhere": "--model nowhere",
    "simcse mine --text sentences.txt --dev nowhere.tsv": "--dev nowhere.tsv",
    "simcse mine --text rows.csv": ("rows.csv", "--column"),
    "simcse mine --text rows.csv --column lft": ("'lft'", "'left'"),
    "clap mine --text sentences.txt": "'mine'",
    # ---------------------------------------------------------------------------------------------------------- verbs
    "run visualcs": ("'visualcs'", "'visualcse'"),
    "run my_method.py": "my_method.py",
    "run empty.py": ("empty.py", "RECIPES"),
    "pack": "text",
    "pack texts sentences.txt --out shards": "texts",
    "pack text sentences.txt": "--out",
    "pack text --out shards": "wiki.txt.gz",
    "pack text nowhere.txt --out shards": "nowhere.txt",
    "pack text latin.txt --out shards": ("latin.txt, line 1", "UTF-8"),
    "pack text rows.jsonl --out shards": ("rows.jsonl", "table"),
    "pack text blank.txt --out shards": "blank.txt",
    "pack text sentences.txt --out made": ("made", "--overwrite"),
    "pack text sentences.txt --out sentences.txt": "--out sentences.txt",
    "pack text sentences.txt --out shards --name a/b": "--name",
    "pack text sentences.txt --out shards --shard-size 0": "--shard-size",
    "pack table rows.csv --out shards --columns lft": ("'lft'", "'left'"),
    "pack table rows.csv --out shards --columns left --where right": "--where",
    "pack table ragged.csv --out shards --columns left": "ragged.csv, line 2",
    "pack images nowhere --out shards": "nowhere",
    "pack images mixed --out shards": ("mixed", "b.png"),
    "pack images broken --out shards": ("broken", "a.png", "--missing skip"),
    "pack audio photos --out shards": ("a.png", ".wav"),
    "pack upload nowhere s3://bucket/x": "nowhere",
    "describe nowhere": "nowhere",
    "describe visualcse:deemo": "'demo'",
    "describe visualcs:demo": "'visualcse'",
    "evaluate": "give one model (--model MODEL), or several",
    "evaluate --model nowhere": "nowhere",
    "evaluate --model ENCODER --tasks sts17": ("sts17", "sts16"),
    "evaluate --model ENCODER --data nowhere": "nowhere",
    "evaluate --model ENCODER --pooling maen": "maen",
    "evaluate --model ENCODER --compare ENCODER": "--compare",
    "evaluate --model ENCODER --data sts --tasks transfer": "holds none of the tasks 'transfer'",
    "evaluate --model ENCODER --tasks pairs:": "names no place",
    "evaluate --compare a=ENCODER b=absent.json": "absent.json is no report of a single model",
    "evaluate --model ENCODER@max --layers": "@POOLING",
    "evaluate --model ENCODER --json photos": "it is a folder",
    "evaluate --model ENCODER --tasks lee pairs:lee.tsv": "two tasks are called 'lee'",
    "explore": "--model",
    "explore --model ENCODER --data nowhere": "nowhere",
    "explore --model ENCODER --most 0": "--most",
    "mine_negatives --pairs made --out shards": "--model",
    "mine_negatives --model ENCODER --pairs nowhere --out shards": "nowhere",
    "export nowhere model": "nowhere",
    "prepare clothos": ("clothos", "clotho"),
    "prepare clotho --source nowhere": "nowhere",
    "sweep visualcs": "'visualcse'",
    "sweep visualcse --recipe deemo": "'demo'",
    "sweep visualcse --space wied": ("wied", "wide"),
    "sweep visualcse --searcher tpe": ("--searcher", "optuna"),
    "sweep visualcse simcse": "one pipeline",
    "sweep simcse --evaluation.select None": "evaluation.select",
    "sweep simcse --evaluation.select stsb-test": "stsb-test",
    "sweep visualcse --trials 0": "trials",
    "sweep": "visualcse",
    "repeat simcse deemo": "'demo'",
    "repeat simcs demo": "'simcse'",
    "repeat simcse demo --seeds": "seed",
    "repeat simcse demo --seeds 1 1": "each once, got [1, 1]",
    "repeat simcse demo --run.seed 9": "give --seeds and --output",
    "repeat simcse demo --against nowhere.json": ("nowhere.json", "not a repeat.json"),
    "reproduce sgbert T99": ("T99", "T1"),
    "reproduce sgbrt": ("sgbrt", "sgbert"),
    "translate --text nowhere.txt --out out.tsv --there nowhere --back nowhere": "nowhere",
    "track sync nowhere.jsonl": "nowhere.jsonl",
    "track sync sentences.txt": "sentences.txt",
    "track": "sync",
}
"""Command as behind `multicse`, and what has to be in what it says."""


@pytest.fixture
def files(recipe: Recipe, offline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the commands are given, in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs/offline").symlink_to(offline)
    content = {
        "sentences.txt": "a sentence\nanother one\n",
        "blank.txt": "\n\n",
        "rows.jsonl": '{"left": "a", "right": "b"}\n',
        "rows.csv": "left,right\na,b\n",
        "lee.tsv": "score\tsentence1\tsentence2\n1\ta\tb\n2\tc\td\n",
        "ragged.csv": "left,right\na,b,c\n",
        "empty.py": "",
        "list.json": "[]",
        "small.json": recipe.to_json(),
        "sts/STS12.raw.tsv": "score\tsentence1\tsentence2\n1\ta\tb\n",
        "made/made-train-000000.tar": "",
        "broken/a.png": "no picture",
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
def test_a_wrong_command_is_answered(
    command: str,
    files: Path,
    recipe: Recipe,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *words = shlex.split(command.replace("ENCODER", recipe.flat()["encoder.path"]))
    pipeline = registry.load(name) if name in registry.NAMES else None
    if pipeline is not None and "--run.workers" not in words and "mine" not in words:
        words += ["--run.workers", "0"]  # no Ray
    monkeypatch.setattr(sys, "argv", [f"pipelines/{name}.py", *words])
    try:
        if pipeline is not None:
            cli.main(pipeline.RECIPES, pipeline.__doc__)
            code: object = 0
        else:
            code = importlib.import_module(VERBS[name]).main()
    except SystemExit as end:  # all else is a traceback
        code = end.code
    said = capsys.readouterr()
    text = " ".join(f"{said.out} {said.err} {code}".replace("│", " ").split())
    assert code and "pydantic.dev" not in text and "Traceback" not in text, text
    named = COMMANDS[command]
    for part in (named,) if isinstance(named, str) else named:
        assert part in text, text
