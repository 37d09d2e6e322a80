"""Settings that change training, compared with a naive version or the library that is known for them.

With all of them a run resumes exactly and trains in two processes.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from multicse.models.adapters import merged
from multicse.models.config import EncoderConfig
from multicse.pipelines import cyclip
from multicse.pipelines.parts import SMALL_ENCODER
from multicse.trainers.engine import deliver, launch
from multicse.trainers.engine.checkpoint import build_method, load_method
from multicse.trainers.engine.checks import check_recipe, check_settings
from multicse.trainers.engine.export import write_export
from multicse.trainers.engine.optim import UpdateOptimizer
from multicse.trainers.engine.store import CheckpointError
from multicse.trainers.recipe import OptimConfig, Recipe, RecipeError
from multicse.trainers.simcse import SimCSEConfig
from tests.conftest import ROOT
from tests.models import tiny_encoder
from tests.worlds import Memory, engine, in_processes, interrupted, resumed_exactly, run, same_weights, text_only, write_text

SETTINGS: dict[str, Any] = {
    **{"encoder.lora.rank": 4, "encoder.lora.dropout": 0.1, "run.matryoshka": (4, 8), "run.ema": 0.5},
    **{"optim.text.layer_decay": 0.5, "streams.text.weights": (1, 3)},
    "method.negatives": {"margin": 0.02, "guide": "frozen", "hardness": 2.0},
}


@pytest.fixture
def short(recipe: Recipe, place: Path) -> Recipe:
    """Return a recipe for 6 steps of SimCSE on a text stream of two data sets, with selection on the development set."""
    write_text(place / "news", (25,))
    changes = {"streams.text.shards": f"{place}/text::{place}/news", "evaluation.select": "lee-dev", "optim.text.lr": 1e-2}
    return text_only(recipe).changed(changes)


def test_a_run_with_every_setting_resumes_exactly(short: Recipe, tmp_path: Path) -> None:
    """Each setting by itself is in test_effects.py, except for the weights of data sets."""
    (whole, _, _), _ = resumed_exactly(short.changed(SETTINGS), tmp_path)
    equal, _, _ = run(short.changed({**SETTINGS, "streams.text.weights": ()}))
    assert whole.losses() != equal.losses()


def _worker(rank: int, folder: str, recipe: Recipe) -> None:
    deliver.draw_figures = lambda *_: None
    if rank:  # transformers saves models on the first rank only
        launch.check_vectors = lambda recipe: None
    with contextlib.suppress(CheckpointError):  # of the rank that saves no checkpoint
        own = {"run.output_dir": f"{folder}/run-{rank}", "run.tracking_uri": f"sqlite:///{folder}/{rank}.db"}
        launch.run_recipe(recipe.changed(own))


def test_two_processes_train_with_every_setting(short: Recipe, tmp_path: Path, tables: Path) -> None:
    """Both end with equal parameters."""
    for rank in (0, 1):
        shutil.copy(tables, tmp_path / f"{rank}.db")
    in_processes(_worker, tmp_path, short.changed(SETTINGS))
    summary = json.loads((tmp_path / "run-0" / "summary.json").read_text())
    assert len(set(summary["fingerprints"])) == 1 and len(summary["fingerprints"]) == 2 and summary["steps"] == 6


def test_lora_trains_adapters_only_and_exports_merged_weights(place: Path, short: Recipe, tmp_path: Path) -> None:
    """The exported weights equal those of peft's own merge."""
    from peft import LoraConfig, get_peft_model

    short = short.replace("encoder.lora.rank", 4).replace("encoder.lora.targets", ("query", "value"))
    start = EncoderConfig(path=str(place / "encoder")).load(()).model
    _, _, made = run(short.replace("evaluation.keep", "last"))
    model: Any = made.method.sentence_encoder.model
    frozen = {name.replace(".base_layer", ""): p for name, p in model.named_parameters() if not p.requires_grad}
    assert frozen.keys() == dict(start.named_parameters()).keys()
    assert all(torch.equal(frozen[name], p) for name, p in start.named_parameters())
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    assert len(trained) == 8 and all("lora_" in name and ("query" in name or "value" in name) for name in trained)

    theirs: Any = get_peft_model(start, LoraConfig(r=4, lora_alpha=8, target_modules=["query", "value"]))
    state = {name: p for name, p in model.state_dict().items()}
    theirs.base_model.model.load_state_dict(state)
    whole = theirs.merge_and_unload().state_dict()
    ours = merged(model).state_dict()
    assert ours.keys() == whole.keys() and all(torch.equal(ours[name], whole[name]) for name in whole)

    trained_encoder = load_method(Path(short.run.output_dir)).sentence_encoder
    write_export(trained_encoder, tmp_path / "model", lambda text: "")  # compares the embeddings
    again = EncoderConfig(path=str(tmp_path / "model")).load(())
    assert not any("lora" in name for name in again.model.state_dict())
    with pytest.raises(ValueError, match=r"encoder\.lora\.targets"):
        build_method(short.replace("encoder.lora.targets", ("nothing",)))


def test_matryoshka_equals_sentence_transformers() -> None:
    """Loss and gradients equal MatryoshkaLoss with MultipleNegativesRankingLoss (scale 20) for three sizes."""
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

    class Identity(torch.nn.Module):
        similarity_fn_name, tokenizer = None, None

        def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
            return dict(features)

        def get_embedding_dimension(self) -> int:
            return 16

    vectors = torch.randn(5, 3, 16, generator=torch.Generator().manual_seed(0))
    config = SimCSEConfig(supervised=True)
    method = config.build(tiny_encoder.encoder())
    method.matryoshka, method.vectors = (4, 8), config.vectors()
    mine, other = (vectors.clone().requires_grad_() for _ in range(2))
    output = method.nested_losses({"text": {"views": mine}}, {"text": tiny_encoder.text_batch(5, views=3)})
    model: Any = Identity()
    around = MatryoshkaLoss(model, MultipleNegativesRankingLoss(model), [16, 8, 4])
    theirs = around([{"sentence_embedding": view} for view in other.unbind(1)], torch.tensor([]))
    torch.testing.assert_close(output.losses["text"], theirs)
    assert output.metrics.keys() == {"text_4", "text_8"}
    output.losses["text"].backward()
    theirs.backward()
    torch.testing.assert_close(mine.grad, other.grad)


def test_matryoshka_requires_losses_on_the_exported_embeddings(short: Recipe) -> None:
    check_settings(short.replace("run.matryoshka", (4, 8)))
    with pytest.raises(RecipeError, match=r"run\.matryoshka=16: the embeddings have 16 dimensions"):
        check_recipe(short.replace("run.matryoshka", (8, 16)))
    check_recipe(short.replace("run.matryoshka", (15,)))
    joint = cyclip.demo().changed({"method.embed_dim": 8, "run.matryoshka": (8,)})
    assert joint.method.vector_size(joint.encoder.read()) == 8, "of the joint space, not of the text encoder"


@pytest.mark.parametrize("select", ["lee-dev", None])
def test_ema_evaluates_and_exports_the_averaged_weights(short: Recipe, select: str | None) -> None:
    """The average equals an explicit loop that starts with the weights of the first step. Training is not affected."""
    recipe = short.changed({"run.ema": 0.75, "evaluation.select": select, "evaluation.keep": "last"})
    made, seen = engine(recipe, Memory()), list[dict[str, Tensor]]()
    after_step = made.method.after_step

    def record(step: int) -> None:
        after_step(step)
        seen.append({name: p.detach().clone() for name, p in made.method.named_parameters()})

    made.method.after_step = record  # type: ignore[method-assign]
    made.train()
    want = seen[0]
    for weights in seen[1:]:
        want = {name: 0.75 * want[name] + 0.25 * weights[name] for name in want}
    exported = load_method(Path(recipe.run.output_dir))
    for name, parameter in exported.named_parameters():
        torch.testing.assert_close(parameter, want[name])
    assert any(not torch.equal(p, want[name]) for name, p in made.method.named_parameters())
    texts = made.method.sentence_encoder.tokenize(["the cat sees the dog"])
    vectors = made.encoder.encode(["the cat sees the dog"])
    np.testing.assert_allclose(vectors, exported.sentence_encoder(texts).detach().numpy(), atol=1e-5)


def test_layer_wise_learning_rates_decrease_per_layer(short: Recipe) -> None:
    """Compared by name: the head has the full learning rate, the last layer one decay less, down to the embeddings."""
    method = build_method(short.replace("method.head", "mlp"))
    config = OptimConfig(lr=1.0, layer_decay=0.5, schedule="constant")
    optimizer = UpdateOptimizer(method, "text", config, 10, "fp32")
    names = {parameter: name for name, parameter in method.named_parameters()}
    wanted = {".head.": 1.0, ".layer.1.": 0.5, ".layer.0.": 0.25, ".embeddings.": 0.125}
    found = {names[p]: group["lr"] for group in optimizer.optimizer.param_groups for p in group["params"]}
    assert found.keys() == set(names.values())
    for name, rate in found.items():
        assert [rate] == [value for part, value in wanted.items() if part in name], name
    assert optimizer.rate == 1.0  # what is logged


def test_biases_and_norms_do_not_decay_and_a_resumed_optimizer_keeps_its_own_settings(short: Recipe) -> None:
    method = build_method(short)
    before, after = (
        UpdateOptimizer(method, "text", OptimConfig(lr=lr, weight_decay=decay, schedule="constant"), 10, "fp32")
        for lr, decay in ((1.0, 0.1), (0.5, 0.2))
    )
    after.load_state_dict(before.state_dict())
    assert after.rate == 0.5
    for made, decay in ((before, 0.1), (after, 0.2)):
        found = {p: group["weight_decay"] for group in made.optimizer.param_groups for p in group["params"]}
        assert found == {p: decay if p.ndim > 1 else 0.0 for p in method.parameters()}


def test_each_data_set_needs_a_weight(short: Recipe) -> None:
    for weights, told in {(1, 2, 3): "weights=", (1, 9): "25"}.items():
        with pytest.raises(ValueError, match=rf"streams\.text.*{told}"):
            check_recipe(short.changed({"streams.text.weights": weights, "streams.text.batch_size": 32}))


STATEFUL = """
import torch

class Mean:
    def __init__(self):
        self.seen, self.sum, self.restored = [], torch.zeros(2), None

    def __call__(self, step, metrics, engine):
        self.seen.append(step)
        self.sum += step

    def state_dict(self):
        return {"seen": self.seen, "sum": self.sum}

    def load_state_dict(self, state):
        self.seen, self.sum, self.restored = state["seen"], state["sum"], list(state["seen"])

class Bad(Mean):
    def state_dict(self):
        return {"run": self}

class Half:
    def __call__(self, step, metrics, engine): ...
    def state_dict(self): ...
"""


def test_the_state_of_a_callback_is_in_checkpoints(short: Recipe, tmp_path: Path) -> None:
    whole: Any
    resumed: Any
    lowest: Any
    again: Any
    file, page = tmp_path / "stateful_callbacks.py", (ROOT / "docs/how-to/features.md").read_text()
    (documented,) = re.findall(r"```python\n(class LowestLoss.*?)```", page, re.DOTALL)
    file.write_text(STATEFUL + documented)
    recipe = short.replace("run.callbacks", (f"{file}:Mean", f"{file}:LowestLoss"))
    check_settings(recipe)
    memory, _, made = run(recipe)
    whole, lowest = made.callbacks.values()
    half = recipe.replace("run.output_dir", str(tmp_path / "half"))
    interrupted(half)
    resumed, again = run(half)[2].callbacks.values()
    losses = {values["train/text"]: step for step, values in memory.values.items() if step}
    assert lowest.state_dict() == again.state_dict() == {"step": losses[min(losses)], "loss": min(losses)}
    assert resumed.seen[: len(resumed.restored)] == resumed.restored == [1, 0, 2, 3, 3]
    assert resumed.seen == whole.seen and torch.equal(resumed.sum, whole.sum)
    with pytest.raises(CheckpointError, match=r"run\.callbacks: the state of '.*:Bad' cannot be saved"):
        run(short.changed({"run.callbacks": (f"{file}:Bad",), "run.output_dir": str(tmp_path / "bad")}))
    with pytest.raises(RecipeError, match=r"run\.callbacks: '.*:Half' has only one of state_dict and load_state_dict"):
        check_settings(short.replace("run.callbacks", (f"{file}:Half",)))


def test_a_guide_is_a_model_with_the_tokenizer_of_the_encoder(short: Recipe, place: Path, tmp_path: Path) -> None:
    def guided(guide: str) -> Recipe:
        return short.replace("method.negatives", {"margin": 0.1, "guide": guide})

    check_recipe(guided(f"{place}/encoder"))
    judge = build_method(guided(f"{place}/encoder")).get_submodule("judge")
    same_weights(judge, EncoderConfig(path=f"{place}/encoder").load(()))
    moved = guided(str(shutil.copytree(place / "encoder", tmp_path / place.name / "encoder")))
    assert moved.identity() == guided(f"{place}/encoder").identity() != short.identity()
    for guide, named in ((SMALL_ENCODER, "has another vocabulary"), (f"{place}/absent", "cannot be loaded|not found")):
        with pytest.raises(RecipeError, match=rf"method\.negatives\.guide.*({named})"):
            check_recipe(guided(guide))


def test_permanent_checkpoints_are_written_in_addition(short: Recipe) -> None:
    run(short.changed({"run.keep_every": 2, "evaluation.eval_steps": 5}))
    folder = Path(short.run.output_dir, "checkpoint")
    assert sorted(int(step.name[-2:]) for step in folder.glob("step-*")) == [2, 4, 5, 6]
