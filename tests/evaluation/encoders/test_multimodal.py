"""CLIP, SigLIP and CLAP folders against transformers' own calls, and independence of the batch."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Router, Transformer

from multicse.evaluation.encoders.multimodal import load_whole
from multicse.evaluation.task import EvaluationError, Sound
from tests.evaluation.evaluation_helpers import sentence
from tests.evaluation.multimodal_helpers import LIMIT, RATE, tiny_clap, tiny_clip, tiny_siglip
from tests.worlds import png

TEXTS = [sentence(random.Random(i)) for i in range(9)]
PICTURES = [np.random.default_rng(i).integers(0, 255, (12 + i, 30 - i, 3), dtype=np.uint8) for i in range(9)]
SHORT = [Sound(np.random.default_rng(i).standard_normal(500 + 900 * i).astype(np.float32) / 4, RATE) for i in range(8)]
LONG = [Sound(np.random.default_rng(i).standard_normal(9000 + 3000 * i).astype(np.float32) / 4, RATE) for i in range(3)]
CUT = {"truncation": True, "max_length": LIMIT}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("models")
    made = {"clip": tiny_clip, "siglip": tiny_siglip, "clap": tiny_clap}
    return {**{n: make(place / n) for n, make in made.items()}, "fusion": tiny_clap(place / "fusion", fusion=True)}


def theirs(folder: Path, items: list[Any], modality: str, **options: Any) -> np.ndarray:
    """Features as in transformers' documentation."""
    from transformers import AutoModel, AutoProcessor

    model, processor = AutoModel.from_pretrained(folder).eval(), AutoProcessor.from_pretrained(folder)
    argument = {"text": "text", "image": "images", "audio": "audio"}[modality]
    with torch.no_grad():
        features = processor(**{argument: items}, return_tensors="pt", **options)
        return getattr(model, f"get_{modality}_features")(**features).pooler_output.numpy()


@pytest.mark.parametrize(
    ("name", "modality", "items", "options"),
    [
        ("clip", "image", PICTURES, {}),
        ("siglip", "image", PICTURES, {}),
        ("clap", "audio", SHORT, {"sampling_rate": RATE}),
        ("clip", "text", TEXTS, {"padding": True, **CUT}),
        ("siglip", "text", TEXTS, {"padding": "max_length", "return_attention_mask": False, **CUT}),  # in its training
        ("clap", "text", TEXTS, {"padding": True, **CUT}),
    ],
    ids=["clip", "siglip", "clap", "clip texts", "siglip texts", "clap texts"],
)
def test_items_equal_transformers(
    folders: dict[str, Path], name: str, modality: str, items: list[Any], options: dict[str, Any]
) -> None:
    """In batches of any size and in any order."""
    want = theirs(folders[name], [getattr(item, "samples", item) for item in items], modality, **options)
    for batch_size in (1, 4, 64):
        encoder = load_whole(folders[name], batch_size=batch_size)
        assert np.abs(want - want[0]).max() > 0.05 and encoder.limit == LIMIT
        np.testing.assert_allclose(encoder.encode(items[::-1], modality)[::-1], want, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "siglip", "clap", "router"])
def test_texts_that_name_files_are_texts(
    folders: dict[str, Path], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """sentence-transformers would open the files and download the links, or refuse the batch."""
    monkeypatch.chdir(tmp_path)
    Path("photo.png").write_bytes(png(PICTURES[0]))
    soundfile.write("dog.wav", SHORT[0].samples, RATE)
    Path("dog.mp4").write_bytes(b"")
    texts = ["photo.png", "dog.wav", "dog.mp4", "https://example.org/a/dog.jpg", "http://example.org/dog.flac"]
    texts += ["data:image/png;base64,dog", "https://youtu.be/dog", TEXTS[0], "https://[dog].png"]
    padding = "max_length" if name == "siglip" else True
    mask = {"return_attention_mask": False} if name == "siglip" else {}
    want = theirs(folders["clip" if name == "router" else name], texts, "text", padding=padding, **mask, **CUT)
    folder = folders[name] if name != "router" else tmp_path / "router"
    if name == "router":
        routes = {"text": [Transformer(str(folders["clip"]))], "image": [Transformer(str(folders["clip"]))]}
        SentenceTransformer(modules=[Router(routes)], device="cpu").save(str(folder), create_model_card=False)
    for batch_size in (1, 9):
        np.testing.assert_allclose(load_whole(folder, batch_size=batch_size).encode(texts), want, atol=1e-5)
    pairs = load_whole(folder).encode(texts[:1])  # a batch in which every text looks like a file
    np.testing.assert_allclose(pairs, want[:1], atol=1e-5)


def test_audio_of_other_sampling_rates_is_resampled(folders: dict[str, Path]) -> None:
    encoder = load_whole(folders["clap"])
    slow = [Sound(soxr.resample(sound.samples, RATE, 22050), 22050) for sound in SHORT]
    again = [soxr.resample(sound.samples, 22050, RATE) for sound in slow]
    want = theirs(folders["clap"], again, "audio", sampling_rate=RATE)
    np.testing.assert_allclose(encoder.encode(slow, "audio"), want, atol=1e-5)


def test_fusion_applies_to_long_clips_only(folders: dict[str, Path]) -> None:
    """In a batch with a long clip transformers marks no other clip, so its vectors are correct."""
    clips = [SHORT[1], SHORT[4], LONG[2]]
    want = theirs(folders["fusion"], [clip.samples for clip in clips], "audio", sampling_rate=RATE)
    got = load_whole(folders["fusion"]).encode(clips, "audio")
    np.testing.assert_allclose(got[:2], want[:2], atol=1e-5)


@pytest.mark.parametrize("name", ["clap", "fusion"])
def test_the_seed_alone_determines_the_crop(folders: dict[str, Path], name: str) -> None:
    """CLAP crops long clips at random, and with fusion marks a random clip of a batch as long; neither batch nor order,
    and nothing outside, matters."""
    clips = SHORT + LONG
    batched = load_whole(folders[name], batch_size=64).encode(clips, "audio")
    state = np.random.get_state(legacy=False)["state"]["key"]
    single, other = (load_whole(folders[name], batch_size=1, seed=s).encode(clips[::-1], "audio")[::-1] for s in (0, 1))
    assert (state == np.random.get_state(legacy=False)["state"]["key"]).all()  # the global random state is restored
    np.testing.assert_allclose(batched, single, atol=1e-5)
    assert name == "fusion" or np.abs(single - other).max() > 1e-3


def test_invalid_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="no model found"):
        load_whole(tmp_path)
    tensors = load_file(tiny_clip(tmp_path) / "model.safetensors")
    torch.save(tensors, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(EvaluationError, match="cannot be loaded"):
        load_whole(tmp_path)
