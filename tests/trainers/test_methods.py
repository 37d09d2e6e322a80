"""Losses of methods and their variants as formulas; modules and patches of SimCSE, VisualCSE and AudioCSE."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import ASTConfig, ASTModel, ViTConfig, ViTModel

from multicse.data.streams.base import Batch
from multicse.models.patches import VIT_OF_SIZE, AudioPatches, ImagePatches
from multicse.trainers import losses
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.method import MethodConfig, Variant
from multicse.trainers.multicse import MultiCSEConfig
from multicse.trainers.nonling import AudioConfig, AudioCSEConfig, ImageConfig, NonLingCSEConfig, VisualCSEConfig
from multicse.trainers.simcse import MixedSimCSEConfig, NegativesConfig, SimCSEConfig
from tests.conftest import PACKAGE
from tests.models import tiny_encoder
from tests.worlds import AUDIO, IMAGE, TOWER, example


def made(config: MethodConfig) -> Any:
    """The method without dropout."""
    return config.build(tiny_encoder.encoder(config=tiny_encoder.bert_config(0.0)))


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def simcse(z: Tensor, temperature: float = 0.05, weight: float = 0.0) -> Tensor:
    return losses.simcse(z[:, 0], z[:, 1], z[:, 2] if z.shape[1] == 3 else None, temperature, weight)


def visualcse(variant: Variant, simclr: bool, z: Any, y: Any) -> dict[str, Tensor]:
    """[errata 2.3] paper: eq. 4; released: ranks of labels as columns; fixed: Khosla's SupCon.

    Eq. 2 to 7 are sums, over 5 texts and 12 images; the code uses means.
    """
    first, second = z["image"].unbind(1)
    if simclr:
        image = losses.info_nce(first, second, 0.07)
    elif variant == "fixed":
        image = losses.supcon(z["image"], z["image"], y["image"], 0.07)
    else:
        formula = losses.supcon_eq4 if variant == "paper" else losses.supcon_released
        image = formula(first, second, y["image"], 0.07)
    texts, images = (5, 12) if variant == "paper" else (1, 1)
    return {"image": images * image, "text": texts * simcse(z["text"])}


def clip(z: Any, y: Any) -> dict[str, Tensor]:
    items, first = z["items"], z["pairs"][:, 0]
    return {"contrastive": losses.contrastive(items, first, items, first, 1 / 0.07)}


def cyclip(z: Any, y: Any) -> dict[str, Tensor]:
    """Losses of pairs take the first view of a caption, and SimCSE compares both."""
    items, first = z["items"], z["pairs"][:, 0]
    return {
        **clip(z, y),
        "i_cyclic": losses.consistency(items, first, items, first),
        "c_cyclic": losses.consistency(items, first, first, items),
        "captions": simcse(z["pairs"]),
        **{name: simcse(z[name]) for name in ("nli", "nli_sentences")},
    }


def cyclip_paper(z: Any, y: Any) -> dict[str, Tensor]:
    """[errata 4.1, 4.2] Sums over the batch, and over two directions instead of their mean."""
    samples = {"nli": 4, "nli_sentences": 3}
    return {name: loss * samples.get(name, 5) * (1 + (name == "contrastive")) for name, loss in cyclip(z, y).items()}


def multicse(z: Any, y: Any) -> dict[str, Tensor]:
    parts = {name: losses.supcon(z[name], z[name], y[name], 0.07) for name in ("image", "audio")}
    return {"text": simcse(z["text"]), **parts}


WEIGHTS = {"i_cyclic": 0.2, "c_cyclic": 0.2, "captions": 0.1, "nli": 0.1, "nli_sentences": 0.1}
TRIPLES = SimCSEConfig(supervised=True)
SIMCLR = IMAGE.model_copy(update={"loss": "simclr"})
FORMULAS: dict[str, tuple[MethodConfig, int, Callable[[Any, Any], dict[str, Tensor]]]] = {
    "simcse": (SimCSEConfig(), 1, lambda z, y: {"text": simcse(z["text"])}),
    "simcse of pairs": (TRIPLES, 2, lambda z, y: {"text": simcse(z["text"])}),
    "simcse of triples": (
        SimCSEConfig(supervised=True, hard_negative_log_weight=0.7, temperature=0.2),
        3,
        lambda z, y: {"text": simcse(z["text"], 0.2, 0.7)},
    ),
    "mixed": (MixedSimCSEConfig(), 1, lambda z, y: {"nli": simcse(z["nli"]), "text": simcse(z["text"])}),
    "simcse++ without its parts": (
        example("simcsepp").SimCSEPPConfig(negatives="dropout", dimension_weight=0.0),
        1,
        lambda z, y: {"text": simcse(z["text"])},
    ),
    "multicse": (MultiCSEConfig(image=IMAGE, audio=AUDIO), 1, multicse),
    "clip": (CLIPConfig(tower=TOWER, embed_dim=6), 1, clip),
    "cyclip": (CLIPConfig(tower=TOWER, embed_dim=6, **WEIGHTS), 1, cyclip),
    "cyclip, paper": (CLIPConfig(tower=TOWER, embed_dim=6, variant="paper", **WEIGHTS), 1, cyclip_paper),
}
for variant in ("paper", "released", "fixed"):
    for views, text in {1: SimCSEConfig(), 3: TRIPLES}.items():
        own = VisualCSEConfig(image=IMAGE, text=text, variant=variant)
        FORMULAS[f"visualcse, {variant}, {views} texts"] = (own, views, partial(visualcse, variant, False))
    own = VisualCSEConfig(image=SIMCLR, variant=variant)
    FORMULAS[f"visualcse, {variant}, simclr"] = (own, 1, partial(visualcse, variant, True))
"""Method, number of texts of a sample, and its losses of views ``z`` and labels ``y`` by stream."""


@pytest.mark.parametrize("name", FORMULAS)
def test_losses_are_the_formulas_of_their_views(name: str) -> None:
    """The views are random, so that none can take the place of another. SimCLR needs no labels."""
    config, views, formula = FORMULAS[name]
    method = config.build(tiny_encoder.encoder("mean"))
    everything = {
        "text": tiny_encoder.text_batch(5, views=views),
        "image": tiny_encoder.image_batch(12),
        "audio": tiny_encoder.audio_batch(12),
        "pairs": tiny_encoder.pair_batch(5),
        "nli": tiny_encoder.text_batch(4, views=3),
        "nli_sentences": tiny_encoder.text_batch(3),
    }
    batches = {stream: everything[stream] for update in config.updates().values() for stream in update}
    if "simclr" in name:
        batches["image"] = Batch({"image": batches["image"]["image"]})
    features = {
        stream: {key: F.normalize(torch.randn_like(value), dim=-1) for key, value in method.encode(stream, batch).items()}
        for stream, batch in batches.items()
    }
    z: dict[str, Any] = {stream: parts.get("views", parts.get("texts")) for stream, parts in features.items()}
    z["items"] = features.get("pairs", {}).get("items")
    expected = formula(z, {stream: batch["label"] for stream, batch in batches.items() if "label" in batch})
    found = method.losses(features, batches).losses
    assert found.keys() == expected.keys()
    for part, value in expected.items():
        close(found[part], value)


CHOSEN = NegativesConfig(margin=0.1, guide="frozen", hardness=1.5)
GUIDED: dict[str, tuple[MethodConfig, Batch]] = {
    "text": (SimCSEConfig(negatives=CHOSEN), tiny_encoder.text_batch(8)),
    "pairs": (CLIPConfig(tower=TOWER, embed_dim=6, captions=0.5, negatives=CHOSEN), tiny_encoder.pair_batch(8)),
}


@pytest.mark.parametrize("stream", GUIDED)
def test_a_frozen_guide_finds_the_false_negatives_of_sentences(stream: str) -> None:
    """The guide is the initial encoder without dropout, which does not train, and which checkpoints do not contain.

    The loss of pairs keeps all negatives.
    """
    config, batch = GUIDED[stream]
    method: Any = config.build(tiny_encoder.encoder("mean")).train()
    assert not any(name.startswith("judge") for name in method.state_dict())
    with torch.no_grad():
        for parameter in method.sentence_encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        judged = tiny_encoder.encoder("mean").eval()({name: t[:, 0] for name, t in batch.tensors.items() if name != "image"})
    features = method.encode(stream, batch)
    close(features["judged"][:, 0], judged)
    assert not features["judged"].requires_grad
    left_out = (losses.cosine_similarity(judged, judged) > 0.9) & ~torch.eye(8, dtype=torch.bool)
    assert 0 < left_out.sum() < 56
    views = features["views"] if stream == "text" else features["texts"]
    expected = losses.simcse(views[:, 0], views[:, 1], hardness=1.5, left_out=left_out)
    found = method.losses({stream: features}, {stream: batch}).losses
    close(found["text" if stream == "text" else "captions"], expected)
    if stream == "pairs":
        scale = method.sentence_encoder.scale
        first, items = views[:, 0], features["items"]
        close(found["contrastive"], losses.contrastive(items, first, items, first, scale))


def test_unsupervised_mlp_is_used_in_training_only() -> None:
    """Unsupervised, [CLS] is evaluated without the mlp; supervised, with it."""
    tokens = {name: t[:, 0] for name, t in tiny_encoder.text_batch(4).tensors.items()}
    unsupervised, supervised = (made(SimCSEConfig(supervised=given)).eval() for given in (False, True))
    cls = unsupervised.sentence_encoder.model(**tokens).last_hidden_state[:, 0]
    close(unsupervised.sentence_encoder(tokens), cls)
    head = supervised.sentence_encoder.head
    assert head is not None
    close(supervised.sentence_encoder(tokens), torch.tanh(cls @ head.linear.weight.T + head.linear.bias))
    assert made(SimCSEConfig(head="none")).sentence_encoder.head is None


@pytest.mark.parametrize("supervised", [False, True])
def test_order_of_heads(supervised: bool) -> None:
    """Unsupervised CLS -> image_mlp; supervised CLS -> mlp (the text's) -> image_mlp."""
    method = made(VisualCSEConfig(text=SimCSEConfig(supervised=supervised), image=IMAGE))
    batch = tiny_encoder.image_batch(3)
    encoder = method.sentence_encoder
    tokens = method.patches["image"](batch["image"].flatten(0, 1))
    cls = encoder.model.encoder(tokens).last_hidden_state[:, 0]
    assert encoder.head is not None
    expected = method.heads["image"](encoder.head(cls) if supervised else cls)
    close(method.encode("image", batch)["views"].flatten(0, 1), expected)


def test_updates() -> None:
    """[errata 2.6] Algorithm 1 starts with text, the released code with images; eq. 1 sums the losses (2.5)."""
    assert [*VisualCSEConfig().updates().values()] == [("image",), ("text",)]
    assert [*VisualCSEConfig(variant="released").updates().values()] == [("image",), ("text",)]
    assert [*VisualCSEConfig(variant="paper").updates().values()] == [("text",), ("image",)]
    assert [*AudioCSEConfig().updates().values()] == [("audio",), ("text",)]
    assert [*NonLingCSEConfig().updates().values()] == [("image",), ("audio",), ("text",)]
    assert [*NonLingCSEConfig(summed=True).updates().values()] == [("image", "audio", "text")]
    method = made(VisualCSEConfig(image=IMAGE, summed=True))
    batches = {"image": tiny_encoder.image_batch(6), "text": tiny_encoder.text_batch(4)}
    assert list(method(batches).losses) == ["image", "text"]
    assert method.loss_weights == {"image": 0.05}


def test_image_patches_are_vit_embeddings(tmp_path: Path) -> None:
    images = torch.randn(2, 3, 32, 32)
    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=32,
                       patch_size=8, hidden_dropout_prob=0.5)  # fmt: skip
    vit = ViTModel(config).eval()
    vit.save_pretrained(tmp_path)
    close(ImagePatches(32, 32, 8, str(tmp_path)).train()(images), vit.embeddings(images))


def test_audio_patches_of_each_variant() -> None:
    """[errata 2.2] paper (1 x 211 x h), released: 24 x 24, no positions or statistics; fixed: SSAST, 16 x 16 with both."""
    spectrogram = torch.randn(1, 1024, 128)
    for variant in ("paper", "released"):
        patches = AudioConfig().patches(8, variant)
        assert patches(spectrogram).shape == (1, 211, 8)
        assert isinstance(patches, AudioPatches) and patches.positions is None and patches.statistics is None
        tile = spectrogram[0, 48:72, 24:48].T  # mel bins are the rows: patch row 1, column 2 of 42
        expected = (tile * patches.projection.weight[3, 0]).sum() + patches.projection.bias[3]  # type: ignore[index]
        close(patches(spectrogram)[0, 1 + 42 + 2, 3], expected)
        with pytest.raises(ValueError, match=r"^path='ast'"):
            AudioConfig(path="ast").check(8, variant)
    patches = AudioConfig().patches(8, "fixed")
    assert isinstance(patches, AudioPatches) and patches.positions is not None
    assert patches(spectrogram).shape == (1, 513, 8)
    centred = (spectrogram - -4.2677393) / (2 * 4.5689974)
    tile = (centred[0, 32:48, 16:32].T * patches.projection.weight[3, 0]).sum() + patches.projection.bias[3]  # type: ignore[index]
    close(patches(spectrogram)[0, 1 + 64 + 2, 3], tile + patches.positions[0, 1 + 64 + 2, 3])
    assert patches.cls_token.std().item() == pytest.approx(0.02, abs=0.02)


def test_audio_patches_from_an_ast_folder(tmp_path: Path) -> None:
    config = ASTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, patch_size=4,
                       max_length=12, num_mel_bins=8, frequency_stride=2, time_stride=4)  # fmt: skip
    ast = ASTModel(config).eval()
    for p in ast.embeddings.parameters():
        torch.nn.init.normal_(p)
    ast.save_pretrained(tmp_path)
    x = torch.randn(2, 12, 8)
    theirs = ast.embeddings(x)
    ours = AudioPatches(8, 12, 8, 4, path=str(tmp_path))(x)
    close(ours, theirs[:, [0, *range(2, theirs.shape[1])]])  # all but the distillation token
    with pytest.raises(ValueError, match=r"^path: "):
        AudioConfig(path=str(tmp_path), frames=12, bins=8, patch_size=4).check(16, "fixed")


def test_patches_that_do_not_fit_name_the_setting(tmp_path: Path) -> None:
    """[errata 2.1] ViT-large (1024) for every RoBERTa, as released, cannot run; `fixed` selects by hidden size."""
    ViTConfig(hidden_size=64, image_size=32, patch_size=8).save_pretrained(tmp_path)  # no weights: only this is read
    fits = ImageConfig(path=str(tmp_path), image_size=32, patch_size=8)
    fits.check(64, "fixed")
    assert VIT_OF_SIZE[768].startswith("google/vit-base") and VIT_OF_SIZE[1024].startswith("google/vit-large")
    for config, hidden, named in (
        (fits, 16, "path"),
        (ImageConfig(path=str(tmp_path)), 64, "image_size"),
        (ImageConfig(path="auto"), 16, "'auto'"),
        (ImageConfig(path=str(tmp_path / "nowhere")), 16, "path"),
        (ImageConfig(image_size=8, patch_size=5), 16, "patch_size"),
        (AudioConfig(frames=100, bins=8), 16, "patch_size"),
    ):
        with pytest.raises(ValueError, match=named):
            config.check(hidden, "released")


def test_engine_and_search_name_no_method() -> None:
    names = re.compile(r"simcse|visualcse|audiocse|nonling|sg-?bert|cyclip|clap|gclsr|mocoutrl|tsdae|\buml\b", re.IGNORECASE)
    for room in ("engine", "tuning"):
        for file in (PACKAGE / "trainers" / room).glob("*.py"):
            assert not names.search(file.read_text()), file
