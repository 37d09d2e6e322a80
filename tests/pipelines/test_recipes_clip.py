"""Test the settings of CLIP, CyCLIP, CLAP and CyCLAP, and the differences between papers and released code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from multicse.pipelines import clap, cyclip
from multicse.reproduction.reproduce import tables_of
from multicse.reproduction.tables import small as small_scale
from multicse.reproduction.tables.offline import Offline
from multicse.reproduction.tables.runs import recipe_of
from multicse.reproduction.tables.table import read_tables
from multicse.trainers.engine.checks import check_settings
from multicse.trainers.engine.optim import schedule_factor
from multicse.trainers.recipe import Recipe
from tests.pipelines.rows import difference, holds, recipe_in

TABLES = read_tables("clip")
CC3M, CLOTHO, AUDIOCAPS = 2_806_641, 3_839, 49_838
CYCLIC = {"method.i_cyclic": 0.25, "method.c_cyclic": 0.25}  # section 4; CyCLIP's README
ADDED: dict[str, dict[str, Any]] = {
    "": {},
    "-s": {"method.captions": 0.1},
    "-n": {"method.nli": 0.1, "streams.nli.columns": ["sent0", "sent1", "hard_neg"], "streams.nli.batch_size": 80},
    "-e": {"method.nli_sentences": 0.1, "streams.nli_sentences.batch_size": 80},
}
ADAMW = {"betas": [0.9, 0.999], "eps": 1e-8, "schedule": "cosine", "max_grad_norm": None}
IMAGES: dict[str, Any] = {
    # Table 9
    **{"streams.pairs.batch_size": 80, "run.epochs": 64, "encoder.hidden_dropout": 0.1, "encoder.attention_dropout": 0.1},
    # Section 4: ResNet-50 and CLIP's transformer from scratch
    **{"method.tower.kind": "resnet", "method.tower.width": 64, "method.tower.blocks": [3, 4, 6, 3]},
    **{"method.tower.input.size": 224, "method.embed_dim": 1024, "method.projection": "linear", "encoder.scratch": True},
    **{"method.contrastive": 1, "method.temperature": 0.05, "method.variant": "fixed"},
    **{"streams.pairs.max_length": 77, "streams.pairs.augment": "none", "streams.pairs.captions": "random"},
    **{"lead": "pairs", "evaluation.select": "contrastive:shards/cc3m-val?batch=80"},
}
OPTIM = {"lr": 5e-4, "warmup": 10_000, "ahead": 0, "weight_decay": 0.1, **ADAMW}  # [errata 4.3] Table 9 prints Adam
AUDIO: dict[str, Any] = {
    # Table 10
    **{"streams.pairs.batch_size": 80, "run.epochs": 90, "optim.pairs.lr": 9e-5, "method.contrastive": 1},
    **{f"optim.pairs.{name}": value for name, value in ADAMW.items()},
    **{"optim.pairs.warmup": 9600, "optim.pairs.weight_decay": 0},  # no decay is printed; LAION's script has 0
    # LAION's code: 10 s at 48 kHz, 64 bins
    **{"method.tower.kind": "htsat", "method.projection": "mlp", "method.embed_dim": 512, "encoder.pooling": "cls"},
    **{"streams.pairs.input.rate": 48_000, "streams.pairs.input.seconds": 10, "streams.pairs.input.bins": 64},
    **{"streams.pairs.input.hop": 480, "streams.pairs.max_length": 77, "streams.pairs.captions": "random"},
    **{"streams.pairs.shards": "shards/clotho-train", "method.variant": "fixed"},
}
SCRATCH: dict[str, Any] = {"encoder.scratch": True, "method.tower.path": None}
NUMBERS: dict[str, dict[str, Any]] = {
    **{f"clip{letter}": IMAGES | added for letter, added in ADDED.items()},
    **{f"cyclip{letter}": IMAGES | CYCLIC | added for letter, added in ADDED.items()},
    **{f"clap{letter}": AUDIO | ADDED[letter] for letter in ("", "-s")},
    **{f"cyclap{letter}": AUDIO | CYCLIC | ADDED[letter] for letter in ("", "-s")},
}
LOSSES = ("i_cyclic", "c_cyclic", "captions", "nli", "nli_sentences")


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    recipe = (cyclip.RECIPES | clap.RECIPES)[name]()
    holds(recipe, dict.fromkeys((f"method.{loss}" for loss in LOSSES), 0.0) | NUMBERS[name])
    if "clip" in name:
        ((update, optim),) = recipe.optim.items()
        assert update.split("+") == list(recipe.streams) and optim.model_dump(mode="json") == {
            **OPTIM,
            "groups": {},
            "layer_decay": 1.0,
        }
        flickr = "retrieval:shards/flickr30k"  # SNLI's premises are its captions
        assert (flickr in recipe.evaluation.final) == (not name.endswith(("-n", "-e")))


def on(data: str, every: int) -> dict[str, Any]:
    select = f"retrieval:shards/{data}-val?primary=mean_map10"
    return {"streams.pairs.shards": f"shards/{data}-train", "evaluation.select": select, "evaluation.eval_steps": every}


DIFFERENCES: dict[tuple[str, str], dict[str, Any]] = {
    # [errata 4.1, 4.2] tests/trainers/test_clip.py tests the variant; [errata 4.3] Table 9's Adam
    ("cyclip/paper", "cyclip/cyclip-s"): {"method.variant": "paper", "optim.pairs.weight_decay": 0.0},
    ("cyclip/released", "cyclip/cyclip"): {
        **{"method.variant": "released", "optim.pairs.ahead": CC3M // 80},
        **{"encoder.hidden_dropout": 0.0, "encoder.attention_dropout": 0.0},
    },
    ("clap/paper", "clap/cyclap-s"): {"method.variant": "paper"},
    ("clap/warm", "clap/cyclap-s"): {"optim.pairs.warmup": 0.17},
    ("clap/released", "clap/clap"): {  # LAION's script for Clotho
        **{"streams.pairs.batch_size": 96, "optim.pairs.lr": 1e-4, "optim.pairs.warmup": 3200},
        **{"run.epochs": 45, "run.seed": 3407, "evaluation.eval_steps": 40},
        "evaluation.select": "retrieval:shards/clotho-val?primary=mean_map10&released=true",
    },
    # Rows of the tables
    ("T5b/CyCLAPs", "clap/cyclap-s"): on("audiocaps", 623),
    ("T15/CLAP", "clap/clap"): on("musiccaps", 36),
    ("T13a/CyCLAP", "clap/cyclap"): SCRATCH,
    ("T13b/CLAPs", "clap/clap-s"): SCRATCH | on("audiocaps", 623),
}


def made(name: str) -> Recipe:
    paper, _, row = name.partition("/")
    recipes = {"cyclip": cyclip.RECIPES, "clap": clap.RECIPES}
    return recipes[paper][row]() if paper in recipes else recipe_in(TABLES, name)


@pytest.mark.parametrize(("name", "base"), DIFFERENCES)
def test_differences(name: str, base: str) -> None:
    assert difference(made(name), made(base)) == DIFFERENCES[name, base]


def rate(recipe: Recipe, steps: int, step: int) -> float:
    ((_, optim),) = recipe.optim.items()
    return optim.lr * schedule_factor(optim, optim.schedule, steps, step)


def test_disagree_4_4_released_cyclip_never_warms_up() -> None:
    """[errata 4.4] Its step counter starts an epoch late: full learning rate at once, and past the end of the cosine."""
    recipes = [cyclip.RECIPES[row]() for row in ("cyclip", "released")]
    steps = recipes[0].steps(CC3M)
    assert steps == 35_084 * 64
    fixed, released = ([rate(recipe, steps, step) for step in (0, 9_999, steps - 2, steps - 1)] for recipe in recipes)
    assert fixed[:2] == pytest.approx([5e-8, 5e-4]) and released[0] > 4.99e-4
    assert fixed[-1] < fixed[-2] and released[-1] > released[-2]  # the cosine rises again


def test_disagree_4_5_printed_warm_ups_outlast_the_run_on_clotho() -> None:
    """[errata 4.5] The runs of the paper and LAION end during the warm-up; in `warm` it is a share of the run."""
    recipes = [clap.RECIPES[row]() for row in ("clap", "released", "warm")]
    runs = [(recipe, recipe.steps(CLOTHO)) for recipe in recipes]
    paper, released, fixed = ([rate(recipe, steps, step) for step in range(steps)] for recipe, steps in runs)
    assert len(paper) == len(fixed) == 4_320 and len(released) == 1_800
    for values, peak in ((paper, 4.05e-5), (released, 5.625e-5)):
        assert values == sorted(values) and values[-1] == pytest.approx(peak)
    assert max(fixed) == pytest.approx(9e-5, rel=1e-4) and fixed[-1] < 1e-7
    assert 9600 / recipe_in(TABLES, "T5b/CLAP").steps(AUDIOCAPS) == pytest.approx(0.17, abs=2e-3)


def test_disagree_4_6_clotho_s_test_set_chooses_nothing() -> None:
    """[errata 4.6] LAION's script selects on a split called Clotho-test; the paper reports scores on the selection split."""
    for row in ("clap", "released"):
        evaluation = clap.RECIPES[row]().evaluation
        chosen = "retrieval:shards/clotho-val?primary=mean_map10"
        assert (evaluation.select or "").removesuffix("&released=true") == chosen
        assert evaluation.final[:2] == (chosen, chosen.replace("-val", "-test"))


def test_averages_of_the_paper_s_tables() -> None:
    """Averages of Tables 8 and 16 are the means of their rows, and rows in two tables are equal."""
    for key in ("T16a", "T16b"):
        numbers = np.array([row.paper for row in TABLES[key].rows], float)
        assert numbers[:, :-1].mean(1) == pytest.approx(numbers[:, -1], abs=0.0051)
    for part, whole in (("T3a", "T14"), ("T6", "T17"), ("T8a", "T16a"), ("T8b", "T16b")):
        full = {row.label: row.paper for row in TABLES[whole].rows}
        assert {row.label: full[row.label] for row in TABLES[part].rows} == {
            row.label: row.paper for row in TABLES[part].rows
        }


def test_audio_is_evaluated_on_the_paper_s_splits() -> None:
    """Tables use Clotho's validation split and AudioCaps' test split (section 4.1), except for Table 4."""
    splits = {"T4a": "clotho-val", "T5a": "clotho-val", "T13a": "clotho-val", "T15": "musiccaps-val"}
    splits |= {"T4b": "audiocaps-val", "T5b": "audiocaps-test", "T13b": "audiocaps-test"}
    for key, split in splits.items():
        tasks = {column.partition("#")[0].removesuffix("?released=true") for column in TABLES[key].columns}
        assert tasks == {f"retrieval:shards/{split}"}


def test_only_laion_s_rows_on_clotho_are_as_released() -> None:
    """LAION released a script for pretrained towers on Clotho; all its rows have the batch and evaluation of this script."""
    released = {
        (key, row.label): recipe_of(row)
        for key, table in tables_of("clip").items()
        for row in table.rows
        if row.label.startswith("CLAP") and row.label.endswith("as released")
    }
    assert {*released} == {("T5a", "CLAP, as released")} | {(key, "CLAP on Clotho, as released") for key in ("T7", "T11")}
    for recipe in released.values():
        assert difference(recipe, clap.RECIPES["released"]()) == {}


@pytest.mark.parametrize("row", ["T14/CLIPn", "T13b/CyCLAPs"])
def test_small_rows_keep_the_settings_of_a_row(row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Offline, "clip_sets", lambda self: None)
    recipe = recipe_in(TABLES, row)
    small = small_scale.clip(recipe, Offline(tmp_path, tmp_path))
    check_settings(small)
    same = ("variant", "projection", "temperature", "contrastive", *LOSSES)
    assert [getattr(small.method, name) for name in same] == [getattr(recipe.method, name) for name in same]
    assert list(small.streams) == list(recipe.streams) and small.name == recipe.name
    if row.startswith("T13"):
        holds(small, {"encoder.scratch": True})
        steps = small.run.max_steps or 0
        rates = [rate(small, steps, step) for step in range(steps)]  # on AudioCaps 9,600 of 56,070 steps are warm-up
        assert (1 + np.argmax(rates)) / steps == pytest.approx(9600 / 56070, abs=1 / steps)
        assert max(rates) == pytest.approx(1e-3)
