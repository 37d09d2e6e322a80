"""From a checkpoint folder to a model that other libraries load."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pipelines import export as verb
from trainers.engine.export import ExportError
from trainers.recipe import Recipe

TEXTS = ["the cat sees a red house", "dog"]


def write_checkpoint(recipe: Recipe, folder: Path, scale: float = 1.0) -> Path:
    from safetensors.torch import save_file

    from trainers.engine.checkpoint import build_method

    folder.mkdir(parents=True)
    weights = {name: (scale * value).contiguous().clone() for name, value in build_method(recipe).state_dict().items()}
    save_file(weights, folder / "method.safetensors")
    (folder / "recipe.json").write_text(recipe.to_json())
    torch.save({"before": {"lee": {"spearman": 10.0}}, "best": [12.0, 3, 0]}, folder / "state.pt")
    return folder


@pytest.mark.parametrize("pooling", ["cls", "avg_top2"])
def test_the_export_gives_the_vectors_of_the_checkpoint(recipe: Recipe, tmp_path: Path, pooling: str) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    from models.text_encoder import TextEncoder
    from trainers.engine.checkpoint import load_method

    checkpoint = write_checkpoint(recipe.replace("encoder.pooling", pooling), tmp_path / "checkpoint", scale=1.1)
    out = verb.export(checkpoint, tmp_path / "models" / "mine")
    encoder = load_method(checkpoint).sentence_encoder
    with torch.no_grad():
        want = encoder(encoder.tokenize(TEXTS)).numpy()
        again = TextEncoder.from_pretrained(str(out)).eval()
        np.testing.assert_allclose(again(again.tokenize(TEXTS)).numpy(), want, atol=1e-5)
    np.testing.assert_allclose(SentenceTransformer(str(out), device="cpu").encode(TEXTS), want, atol=1e-5)
    assert AutoModel.from_pretrained(out).config.hidden_size == 16
    assert [path.name for path in out.parent.iterdir()] == ["mine"], "something temporary was left"


def test_the_card_has_numbers_from_checkpoint_or_summary(recipe: Recipe, tmp_path: Path) -> None:
    checkpoint = write_checkpoint(recipe, tmp_path / "checkpoint")
    text = (verb.export(checkpoint, tmp_path / "a") / "README.md").read_text()
    assert "| lee | spearman | 10.00 |  |  |" in text and "step 3" in text and "text" in text
    assert "16 dimensions, texts of at most 64 tokens" in text and "(1): Pooling(" in text
    assert str(tmp_path) not in text
    summary = {
        "checkpoint": str(checkpoint),
        "identity": recipe.identity(),
        "before": {"lee": {"spearman": 10.0}},
        "after": {"lee": {"spearman": 15.5}},
        "best_step": 3,
    }
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    text = (verb.export(checkpoint, tmp_path / "b") / "README.md").read_text()
    assert "| lee | spearman | 10.00 | 15.50 | +5.50 |" in text
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "identity": "of another run"}))
    assert "15.50" not in (verb.export(checkpoint, tmp_path / "c") / "README.md").read_text()


@pytest.mark.parametrize("name", ["state.pt", "method.safetensors"])
def test_a_damaged_checkpoint_is_named(
    recipe: Recipe, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = write_checkpoint(recipe, tmp_path / "checkpoint")
    file = checkpoint / name
    file.write_bytes(file.read_bytes()[:100])
    assert verb.main([str(checkpoint), str(tmp_path / "out")]) == 2
    assert name in capsys.readouterr().err and not (tmp_path / "out").exists()


def test_nothing_is_overwritten_by_accident(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = write_checkpoint(recipe, tmp_path / "checkpoint")
    out = tmp_path / "out"
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("x")
    assert verb.main([str(checkpoint), str(out)]) == 0
    (out / "mark").write_text("old")
    (out / "onnx").mkdir()
    (out / "onnx" / "model.onnx").write_text("of the weights before")
    assert verb.main([str(checkpoint), str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err and (out / "mark").exists()
    assert verb.main([str(checkpoint), str(out), "--overwrite"]) == 0
    assert (out / "mark").exists() and (out / "modules.json").exists()  # what is not ours stays
    assert not (out / "onnx" / "model.onnx").exists()
    assert verb.main([str(checkpoint), str(tmp_path / "precious"), "--overwrite"]) == 2
    assert (tmp_path / "precious" / "file").read_text() == "x"


def test_a_saved_model_that_differs_is_not_delivered(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from models.text_encoder import TextEncoder

    save = TextEncoder.save

    def save_wrongly(self: TextEncoder, folder: str) -> None:
        with torch.no_grad():
            weight = self.model.get_parameter("encoder.layer.0.output.dense.weight")
            weight.mul_(2)
            save(self, folder)
            weight.div_(2)

    monkeypatch.setattr(TextEncoder, "save", save_wrongly)
    checkpoint = write_checkpoint(recipe, tmp_path / "checkpoint")
    with pytest.raises(ExportError, match="other sentence vectors"):
        verb.export(checkpoint, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_onnx_files_are_checked_and_delivered(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The other systems that load them are in tests/interop."""
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    checkpoint = write_checkpoint(recipe, tmp_path / "checkpoint")
    assert verb.main([str(checkpoint), str(tmp_path / "out"), "--onnx", "--int8"]) == 0
    assert {path.name for path in (tmp_path / "out" / "onnx").iterdir()} == {"model.onnx", "model_int8.onnx"}
    averaged = write_checkpoint(recipe.replace("encoder.pooling", "avg_top2"), tmp_path / "averaged")
    assert verb.main([str(averaged), str(tmp_path / "other"), "--onnx"]) == 2
    assert "--onnx" in capsys.readouterr().err and not (tmp_path / "other").exists()
