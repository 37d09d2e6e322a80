"""Test the export of checkpoints as models for other libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from multicse.commands import export as verb
from multicse.trainers.engine import record
from multicse.trainers.engine.export import ExportError
from multicse.trainers.recipe import Recipe
from tests.conftest import ROOT
from tests.hub_stand_in import serving

TEXTS = ["the cat sees a red house", "dog"]


def write_checkpoint(recipe: Recipe, folder: Path, scale: float = 1.0) -> Path:
    from safetensors.torch import save_file

    from multicse.trainers.engine.checkpoint import FORMAT, build_method

    folder.mkdir(parents=True)
    weights = {name: (scale * value).contiguous().clone() for name, value in build_method(recipe).state_dict().items()}
    save_file(weights, folder / "method.safetensors")
    (folder / "recipe.json").write_text(recipe.to_json())
    progress = {"step": 4, "before": {"lee": {"spearman": 10.0}}}
    torch.save({"format": FORMAT, "progress": progress, "selection": {"best_step": 3}}, folder / "state.pt")
    return folder


def test_the_export_gives_the_vectors_of_the_checkpoint(recipe: Recipe, tmp_path: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel

    from multicse.models.text_encoder import TextEncoder
    from multicse.trainers.engine.checkpoint import load_method

    checkpoint = write_checkpoint(recipe.replace("encoder.pooling", "last2"), tmp_path / "checkpoint", scale=1.1)
    out = verb.export(verb.Arguments(checkpoint, tmp_path / "models" / "mine"))
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
    text = (verb.export(verb.Arguments(checkpoint, tmp_path / "a")) / "README.md").read_text()
    assert "| lee | spearman | 10.00 | - | - |" in text and "step 3" in text and "text" in text
    assert "16 dimensions, texts of at most 64 tokens" in text and "(1): Pooling(" in text
    assert str(tmp_path) not in text
    summary = {
        "checkpoint": str(checkpoint),
        "identity": recipe.identity(),
        "before": {"lee": {"spearman": 10.0}},
        "after": {"lee": {"spearman": 15.5}},
        "best_step": 3,
    }
    record.update(tmp_path, {"summary": summary})
    text = (verb.export(verb.Arguments(checkpoint, tmp_path / "b")) / "README.md").read_text()
    assert "| lee | spearman | 10.00 | 15.50 | +5.50 |" in text
    record.update(tmp_path, {"summary": {**summary, "identity": "of another run"}})
    assert "15.50" not in (verb.export(verb.Arguments(checkpoint, tmp_path / "c")) / "README.md").read_text()


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
    assert verb.main([str(checkpoint), str(out)]) == 2
    assert "--overwrite" in capsys.readouterr().err and (out / "mark").exists()
    assert verb.main([str(checkpoint), str(out), "--overwrite"]) == 0
    assert (out / "mark").exists() and (out / "modules.json").exists()  # other files are kept
    assert verb.main([str(checkpoint), str(tmp_path / "precious"), "--overwrite"]) == 2
    assert (tmp_path / "precious" / "file").read_text() == "x"


def test_a_saved_model_that_differs_is_not_delivered(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from multicse.models.text_encoder import TextEncoder

    save = TextEncoder.save

    def save_wrongly(self: TextEncoder, folder: str) -> None:
        with torch.no_grad():
            weight = self.model.get_parameter("encoder.layer.0.output.dense.weight")
            weight.mul_(2)
            save(self, folder)
            weight.div_(2)

    monkeypatch.setattr(TextEncoder, "save", save_wrongly)
    checkpoint = write_checkpoint(recipe, tmp_path / "checkpoint")
    with pytest.raises(ExportError, match="does not reproduce the sentence vectors"):
        verb.export(verb.Arguments(checkpoint, tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_whitened_export_is_the_checkpoint_whitened(recipe: Recipe, tmp_path: Path) -> None:
    """Compare with scikit-learn's whitening, except for the signs of the axes, which are arbitrary."""
    from sentence_transformers import SentenceTransformer
    from sklearn.decomposition import PCA

    from multicse.models.text_encoder import TextEncoder
    from multicse.trainers.engine.checkpoint import load_method

    checkpoint, out = write_checkpoint(recipe, tmp_path / "checkpoint"), tmp_path / "out"
    settings = ["--export.whiten", "True", "--export.dimensions", "5"]
    assert verb.main([str(checkpoint), str(out), *settings]) == 0
    stream = recipe.streams["text"]
    shards = stream.open()
    samples = [shards.sample(number) for number in range(shards.samples)]
    texts = list(dict.fromkeys(stream.sentences(sample)[0] for sample in samples))  # type: ignore[arg-type]  # none is bad
    encoder = load_method(checkpoint).sentence_encoder
    with torch.no_grad():
        plain, trained_on = (encoder(encoder.tokenize(some)).numpy().astype(np.float64) for some in (TEXTS, texts))
        again = TextEncoder.from_pretrained(str(out)).eval()  # a further run starts before the last layer
        np.testing.assert_allclose(again(again.tokenize(TEXTS)).numpy(), plain, atol=1e-5)
    want = PCA(5, whiten=True).fit(trained_on).transform(plain)
    saved = SentenceTransformer(str(out), device="cpu")
    got = saved.encode(TEXTS)
    np.testing.assert_allclose(got @ got.T, want @ want.T, rtol=1e-3)

    card = (out / "README.md").read_text()
    assert f"{len(texts)} sentences of the training text" in card and "| whitened |" in card
    assert "(whitening): Dense(" in card and '"whiten": true' in card


def test_options_change_single_settings_of_the_runs_export(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recipe.replace("export", {"whiten": True, "dimensions": 5})
    checkpoint, found = write_checkpoint(run, tmp_path / "checkpoint"), list[Any]()
    monkeypatch.setattr("multicse.trainers.engine.export.fit_of", lambda _, settings: found.append(settings))
    for name, options in {"a": [], "b": ["--export.dimensions", "3"], "c": ["--export.whiten", "False"]}.items():
        assert verb.main([str(checkpoint), str(tmp_path / name), *options]) == 0
    assert [(one.whiten, one.dimensions) for one in found] == [(True, 5), (True, 3), (False, None)]


def test_an_export_is_uploaded_to_the_hub(recipe: Recipe, tmp_path: Path) -> None:
    """All files of the export and no others are uploaded to a private repository; the token is not printed or stored."""
    checkpoint, out = write_checkpoint(recipe, tmp_path / "checkpoint"), tmp_path / "out"
    verb.export(verb.Arguments(checkpoint, out))
    (out / "notes.txt").write_text("of the user")
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    env |= {"HF_HOME": str(tmp_path / "home"), "HF_TOKEN": "hf_hidden", "HF_HUB_DISABLE_XET": "1"}
    command = [
        sys.executable,
        str(ROOT / "pipelines/export.py"),
        str(checkpoint),
        str(out),
        "--overwrite",
        "--push_to_hub",
        "me/mine",
    ]
    with serving() as hub:
        done = subprocess.run(command, env={**env, "HF_ENDPOINT": hub.url}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{hub.url}/me/mine" in done.stdout
    assert [(one["name"], one["organization"], one["visibility"]) for one in hub.created] == [("mine", "me", "private")]
    there = {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    assert hub.files == {name: data for name, data in there.items() if name != "notes.txt"}
    assert 'model = SentenceTransformer("me/mine")' in hub.files["README.md"].decode()
    assert hub.authorized == {"Bearer hf_hidden"} and "hf_hidden" not in done.stdout + done.stderr
    assert not any(b"hf_hidden" in file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())


def test_settings_of_the_export_are_checked(recipe: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = write_checkpoint(recipe, tmp_path / "checkpoint")
    assert verb.main([str(checkpoint), str(tmp_path / "out"), "--export.dimensions", "5"]) == 2
    assert "export: dimensions=5 requires a whitened export" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize(("name", "env"), [("me/mine", {}), ("me/mine", {"HF_HUB_OFFLINE": "1"}), ("no name", {})])
def test_an_impossible_upload_is_refused_before_the_export(
    recipe: Recipe, tmp_path: Path, name: str, env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", "HF_HUB_OFFLINE" in env)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(ValueError, match="--push_to_hub='"):
        verb.export(verb.Arguments(write_checkpoint(recipe, tmp_path / "checkpoint"), tmp_path / "out", push_to_hub=name))
    assert not (tmp_path / "out").exists()
