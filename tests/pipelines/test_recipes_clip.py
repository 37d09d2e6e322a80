"""The recipes of CLIP, CyCLIP, CLAP and CyCLAP hold Zhao et al. 2023's numbers, and the released ones where these differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import CLIPConfig as HFConfig
from transformers import CLIPModel, CLIPTextConfig, CLIPVisionConfig

from data.offline.demo import write_demo_shards
from data.streams.pairs import AudioTextStream, ImageTextStream
from data.streams.text import TextStream
from evaluation.registry import is_development
from models.towers import HTSATTower, ResNetTower, ViTTower
from pipelines import clap, cyclip, pack, parts
from pipelines.cli import OFFLINE
from tests.models import tiny_encoder
from trainers.clip import CLIPConfig
from trainers.engine.launch import fit
from trainers.engine.optim import schedule_factor
from trainers.engine.preflight import check_settings
from trainers.recipe import Recipe

ALL = {f"{module.__name__.split('.')[1]}:{name}": make for module in (cyclip, clap) for name, make in module.RECIPES.items()}
CC3M, CLOTHO, AUDIOCAPS = 2_806_641, 3_839, 49_838


def changed(recipe: Recipe, base: Recipe) -> dict[str, object]:
    """What a recipe changes of another one, name and output aside."""
    one, other = base.flat(), recipe.flat()
    paths = {path for path in one.keys() | other.keys() if one.get(path) != other.get(path)}
    return {path: other.get(path) for path in paths - {"name", "run.output"}}


def losses(recipe: Recipe) -> dict[str, float]:
    method = recipe.method
    assert isinstance(method, CLIPConfig)
    return method.weights


def rates(recipe: Recipe, samples: int) -> list[float]:
    """The learning rate of every step."""
    ((_, optim),) = recipe.optim.items()
    steps = recipe.steps(samples)
    return [optim.lr * schedule_factor(optim, optim.schedule, steps, step) for step in range(steps)]


@pytest.mark.parametrize("make", ALL.values(), ids=ALL.keys())
def test_every_recipe_fits_together(make: Callable[[], Recipe]) -> None:
    recipe = make()
    check_settings(recipe)
    assert recipe.evaluation.select is not None and is_development(recipe.evaluation.select)


def here(recipe: Recipe, place: Path, changes: dict[str, Any]) -> Recipe:
    """The recipe in this process on one thread, with its output below `place`."""
    run = {"workers": 0, "threads": 1, "gpus_per_worker": 0, "output": str(place / "run")}
    run["tracking_uri"] = f"sqlite:///{place / 'mlflow.db'}"
    return parts.changed(recipe, {f"run.{name}": value for name, value in run.items()} | changes)


def test_the_sum_of_the_losses_in_words() -> None:
    assert parts.losses(cyclip.MODELS["clip"]) == "contrastive"
    assert parts.losses(clap.MODELS["cyclap-s"]) == "contrastive + 0.25 i_cyclic + 0.25 c_cyclic + 0.1 captions"
    for module in (cyclip, clap):
        for name in module.MODELS:
            expected = " + ".join(f"{weight} {loss}" for loss, weight in losses(module.RECIPES[name]()).items())
            assert (module.RECIPES[name].__doc__ or "").endswith(f"; losses {expected.removeprefix('1.0 ')}.")


def test_no_two_recipes_are_the_same_experiment() -> None:
    for module in (cyclip, clap):
        recipes = [make() for make in module.RECIPES.values()]
        for value in ("identity", "name", "output"):
            found = [{"identity": r.identity(), "name": r.name, "output": r.run.output}[value] for r in recipes]
            assert len(set(found)) == len(recipes), value


# ----------------------------------------------------------------------------------------------- CLIP and CyCLIP

LAMBDAS = {  # of the paper's eight models
    "clip": {"contrastive": 1},
    "clip-s": {"contrastive": 1, "captions": 0.1},
    "clip-n": {"contrastive": 1, "nli": 0.1},
    "clip-e": {"contrastive": 1, "nli_sentences": 0.1},
    "cyclip": {"contrastive": 1, "i_cyclic": 0.25, "c_cyclic": 0.25},
    "cyclip-s": {"contrastive": 1, "i_cyclic": 0.25, "c_cyclic": 0.25, "captions": 0.1},
    "cyclip-n": {"contrastive": 1, "i_cyclic": 0.25, "c_cyclic": 0.25, "nli": 0.1},
    "cyclip-e": {"contrastive": 1, "i_cyclic": 0.25, "c_cyclic": 0.25, "nli_sentences": 0.1},
}


@pytest.mark.parametrize("name", LAMBDAS)
def test_a_model_is_weights_and_streams(name: str) -> None:
    recipe = cyclip.RECIPES[name]()
    assert losses(recipe) == LAMBDAS[name]
    allowed = ("method.", "streams.nli", "optim.", "evaluation.final")
    assert all(path.startswith(allowed) for path in changed(recipe, cyclip.RECIPES["clip"]()))
    ((turn, optim),) = recipe.optim.items()
    assert optim == cyclip.RECIPES["clip"]().optim["pairs"] and turn.split("+") == list(recipe.streams)
    flickr = "retrieval:shards/flickr30k"  # whose captions are SNLI's premises
    assert (flickr in recipe.evaluation.final) == (not name.endswith("-n"))


def test_settings_of_the_paper() -> None:
    """Section 4 and CyCLIP's code. [DISAGREE 4.3] AdamW; 80 is the batch of all workers together."""
    recipe = cyclip.RECIPES["cyclip-s"]()
    optim, pairs, method = recipe.optim["pairs"], recipe.streams["pairs"], recipe.method
    assert (optim.lr, optim.betas, optim.eps, optim.weight_decay) == (5e-4, (0.9, 0.999), 1e-8, 0.1)  # type: ignore[union-attr]
    assert (optim.schedule, optim.warmup, optim.ahead, optim.clip) == ("cosine", 10_000, 0, None)
    assert (pairs.batch_size, recipe.run.epochs, recipe.lead) == (80, 64, "pairs")
    assert isinstance(method, CLIPConfig) and isinstance(method.tower, ResNetTower) and isinstance(pairs, ImageTextStream)
    assert (method.tower.width, method.tower.blocks, method.embed_dim, method.tower.input.size) == (
        64,
        (3, 4, 6, 3),
        1024,
        224,
    )
    assert (method.projection, method.embed_dim, method.temperature, method.variant) == ("linear", 1024, 0.05, "fixed")
    assert (pairs.max_length, pairs.augment, pairs.captions) == (77, "none", "random")
    assert (recipe.encoder.scratch, recipe.encoder.hidden_dropout, recipe.encoder.attention_dropout) == (True, 0.1, 0.1)  # type: ignore[union-attr]
    assert recipe.evaluation.select == "contrastive:shards/cc3m-val?batch=80"
    assert sum(task.startswith("zero-shot:") for task in recipe.evaluation.final) == 8
    assert recipe.replace("run.workers", 4).steps(CC3M) == recipe.steps(CC3M) == 35_084 * 64
    assert recipe.evaluation.every * 64 == recipe.steps(CC3M)  # after every pass, so that the last step is one of them
    nli = cyclip.RECIPES["clip-n"]().streams["nli"]
    assert isinstance(nli, TextStream) and nli.columns == ("sent0", "sent1", "hard_neg")


def test_disagree_4_4_released_cyclip_never_warms_up() -> None:
    """[DISAGREE 4.4] Its step counter begins an epoch late: full rate at once, and past the end of the cosine."""
    fixed, released = cyclip.RECIPES["cyclip"](), cyclip.RECIPES["released"]()
    assert changed(released, fixed) == {
        "method.variant": "released",
        "encoder.hidden_dropout": 0.0,
        "encoder.attention_dropout": 0.0,
        "optim.pairs.ahead": CC3M // 80,
    }
    steps = fixed.steps(CC3M)

    def factor(recipe: Recipe, step: int) -> float:
        return schedule_factor(recipe.optim["pairs"], "cosine", steps, step)

    assert factor(fixed, 0) == 1e-4 and factor(fixed, 9_999) == 1
    assert factor(released, 0) > 0.999
    assert factor(fixed, steps - 1) < factor(fixed, steps - 2)
    assert factor(released, steps - 1) > factor(released, steps - 2)  # the cosine rises again


def test_the_printed_row_differs_in_the_variant_alone() -> None:
    """[DISAGREE 4.1, 4.2] What the variant does: tests/trainers/test_clip.py."""
    assert changed(cyclip.paper(), cyclip.RECIPES["cyclip-s"]()) == {"method.variant": "paper"}


def test_an_existing_clip_is_a_path() -> None:
    recipe = cyclip.RECIPES["cyclip-s-vit"]()
    method = recipe.method
    assert isinstance(method, CLIPConfig) and isinstance(method.tower, ViTTower)
    assert method.tower.path == recipe.encoder.path == "laion/CLIP-ViT-B-32-laion2B-s34B-b79K" and not recipe.encoder.scratch  # type: ignore[union-attr]
    assert losses(recipe) == LAMBDAS["cyclip-s"] and method.embed_dim == 512


def test_going_on_from_a_clip_asks_for_one_s_own_pairs_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands of docs/papers/clip.md on a set of a few pairs, with a CLIP of a few weights in the place of the hub's."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    words = tiny_encoder.WORDS[2:]
    for split, rows in (("train", 90), ("val", 12)):
        lines = ["file\tcaption"]
        for row in range(rows):
            name = f"{split}{row}.png"
            Image.fromarray(rng.integers(0, 255, (20, 20, 3), dtype=np.uint8)).save(tmp_path / name)
            lines.append(f"{name}\ta {' '.join(rng.choice(words, 3))}")
        Path(f"{split}.tsv").write_text("\n".join(lines) + "\n")
    own = ["--root", ".", "--captions", "caption"]
    assert pack.main(["images", "train.tsv", *own, "--out", "shards/my-pairs"]) == 0
    assert pack.main(["images", "val.tsv", *own, "--split", "val", "--out", "shards/my-pairs-val"]) == 0
    write_clip(tmp_path / "clip")
    sizes = {f"{owner}.input.size": 16 for owner in ("method.tower", "streams.pairs")}
    paths = {f"{owner}.path": str(tmp_path / "clip") for owner in ("method.tower", "encoder")}
    recipe = here(cyclip.RECIPES["cyclip-s-vit"](), tmp_path, {**sizes, **paths, "method.embed_dim": 6, "run.max_steps": 2})
    assert (recipe.evaluation.every, recipe.run.checkpoint_every) == (200, None)
    summary = fit(recipe)
    assert list(summary["after"]) == ["retrieval:my-pairs-val"]
    assert summary["steps"] == 2 and 0 < summary["best_score"] < 10
    assert (Path(summary["export"]) / "README.md").is_file()


def test_the_documents_say_how_everything_is_made_that_recipes_read() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "clip.md").read_text()
    for name in ("cyclip-s-vit", "cyclip-s", "cyclip-n", "cyclip-e"):
        recipe = cyclip.RECIPES[name]()
        held_out = str(recipe.evaluation.select).split(":")[1].split("?")[0]
        for place in (held_out, *(stream.shards for stream in recipe.streams.values())):
            assert f"--out {place}\n" in text or f"--out {place} " in text, place
    assert clap.AUDIO.path and f"'{clap.AUDIO.path}'" in text


def write_clip(folder: Path) -> None:
    """A CLIP of random weights for pictures of 16 pixels and the words of `tiny_encoder`."""
    torch.manual_seed(0)
    text = CLIPTextConfig(
        vocab_size=len(tiny_encoder.SPECIAL + tiny_encoder.WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=77,
        bos_token_id=2,
        eos_token_id=3,
        pad_token_id=0,
    )
    vision = CLIPVisionConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8
    )
    CLIPModel(HFConfig(text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=6)).save_pretrained(folder)
    tiny_encoder.tokenizer().save_pretrained(folder)


# ----------------------------------------------------------------------------------------------- CLAP and CyCLAP


def test_settings_of_the_paper_for_sounds() -> None:
    recipe = clap.RECIPES["paper-cyclap-s"]()
    optim, pairs, method = recipe.optim["pairs"], recipe.streams["pairs"], recipe.method
    assert (optim.lr, optim.betas, optim.schedule, optim.warmup, optim.clip) == (9e-5, (0.9, 0.999), "cosine", 9600, None)  # type: ignore[union-attr]
    assert (pairs.batch_size, recipe.run.epochs) == (80, 90)
    assert isinstance(method, CLIPConfig) and isinstance(method.tower, HTSATTower) and isinstance(pairs, AudioTextStream)
    assert (method.projection, method.embed_dim) == ("mlp", 512)
    assert (pairs.input.rate, pairs.input.seconds, pairs.input.frames, pairs.input.bins) == (48_000, 10, 1001, 64)
    assert (pairs.max_length, pairs.captions, recipe.encoder.pooling) == (77, "random", "cls")  # type: ignore[union-attr]
    assert method.variant == "paper"


@pytest.mark.parametrize("prefix", [group[0] for group in clap.GROUPS])
def test_four_models_on_every_set(prefix: str) -> None:
    base = clap.RECIPES[f"{prefix}clap"]()
    for name in ("clap", "clap-s", "cyclap", "cyclap-s"):
        recipe = clap.RECIPES[prefix + name]()
        assert losses(recipe) == LAMBDAS[name.replace("lap", "lip")]  # their own are not printed
        assert all(path.startswith("method.") for path in changed(recipe, base))


def test_disagree_4_5_printed_warm_ups_outlast_the_run_on_clotho() -> None:
    """[DISAGREE 4.5] Neither the paper's run nor LAION's leaves the warm-up; here a share of the run is warm-up."""
    paper, released, fixed = (rates(clap.RECIPES[row](), CLOTHO) for row in ("paper-clap", "released", "clap"))
    assert len(paper) == len(fixed) == 4_320 and len(released) == 1_800
    for values, peak in ((paper, 4.05e-5), (released, 5.625e-5)):
        assert values == sorted(values) and values[-1] == pytest.approx(peak)
    assert max(fixed) == pytest.approx(9e-5, rel=1e-4) and fixed[-1] < 1e-7
    assert changed(clap.RECIPES["clap"](), clap.RECIPES["paper-clap"]()) == {
        "method.variant": "fixed",
        "optim.pairs.warmup": 0.17,
    }
    audiocaps = clap.RECIPES["audiocaps-clap"]()
    assert audiocaps.optim["pairs"].warmup / audiocaps.steps(AUDIOCAPS) == pytest.approx(0.17, abs=2e-3)


def test_disagree_4_6_clotho_s_test_set_chooses_nothing() -> None:
    """[DISAGREE 4.6] LAION's script selects on what it calls Clotho-test; the paper reports where it selects."""
    evaluation = clap.RECIPES["clap"]().evaluation
    assert evaluation.select == "retrieval:shards/clotho-val?primary=mean_map10"
    assert evaluation.final[:2] == (evaluation.select, evaluation.select.replace("-val", "-test"))
    assert not is_development(evaluation.final[1])
    assert clap.RECIPES["released"]().evaluation.select == evaluation.select


def test_released_clap_is_laion_s_script() -> None:
    assert changed(clap.released(), clap.RECIPES["clap"]()) == {
        "streams.pairs.batch_size": 96,
        "optim.pairs.lr": 1e-4,
        "optim.pairs.warmup": 3200,
        "run.epochs": 45,
        "run.seed": 3407,
        "evaluation.every": 40,
    }


def test_from_scratch_is_from_scratch() -> None:
    for prefix in ("scratch-", "scratch-audiocaps-"):
        recipe = clap.RECIPES[f"{prefix}cyclap-s"]()
        method = recipe.method
        assert isinstance(method, CLIPConfig) and isinstance(method.tower, HTSATTower)
        assert method.tower == HTSATTower() and recipe.encoder.scratch  # type: ignore[union-attr]


@pytest.mark.parametrize("module", [cyclip, clap])
def test_the_demo_is_offline_and_trains_the_paper_s_best_model(module: object) -> None:
    recipe: Recipe = module.demo()  # type: ignore[attr-defined]
    assert losses(recipe) == LAMBDAS["cyclip-s"]
    evaluation = recipe.evaluation
    assert all("runs/offline/" in task for task in (evaluation.select or "", *evaluation.final))
    assert all(stream.shards.startswith("runs/offline/") for stream in recipe.streams.values())
    assert recipe.run.gpus_per_worker == 0


def test_sixty_steps_of_the_demo_find_sounds_far_above_chance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sounds and captions that were held out; vectors at random find 21 % of the sounds among the first ten."""
    monkeypatch.chdir(tmp_path)
    write_demo_shards(tmp_path / OFFLINE, ["sounds-train", "sounds-val"])
    demo = clap.demo()
    short = {"run.max_steps": 60, "evaluation.every": 60, "evaluation.final": (demo.evaluation.select,)}
    summary = fit(here(demo, tmp_path, short))
    before, after = (summary[when]["retrieval:sounds-val"]["text_to_audio_r10"] for when in ("before", "after"))
    assert before < 35 and after > 55
