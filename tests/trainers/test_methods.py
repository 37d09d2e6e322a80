"""SimCSE, VisualCSE and AudioCSE: modules, losses and differences between the variants."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import ASTConfig, ASTModel, ViTConfig, ViTModel

from multicse.data.streams.base import Batch
from multicse.models.patches import VIT_OF_SIZE, AudioPatches, ImagePatches
from multicse.trainers import losses
from multicse.trainers.method import Variant
from multicse.trainers.nonling import AudioConfig, AudioCSEConfig, ImageConfig, NonLingCSE, NonLingCSEConfig, VisualCSEConfig
from multicse.trainers.simcse import MixedSimCSEConfig, SimCSE, SimCSEConfig
from tests.conftest import PACKAGE
from tests.models import tiny_encoder

IMAGE = ImageConfig(image_size=8, patch_size=4)
AUDIO = AudioConfig(frames=12, bins=8, patch_size=4)
VARIANTS: tuple[Variant, ...] = ("paper", "released", "fixed")


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)


def simcse(dropout: float = 0.0, **settings: object) -> SimCSE:
    encoder = tiny_encoder.encoder(config=tiny_encoder.bert_config(dropout))
    return SimCSEConfig.model_validate(settings).build(encoder)


def nonling(config: VisualCSEConfig | AudioCSEConfig | NonLingCSEConfig, dropout: float = 0.0) -> NonLingCSE:
    return config.build(tiny_encoder.encoder(config=tiny_encoder.bert_config(dropout)))


def test_unsupervised_simcse_encodes_each_text_twice() -> None:
    method = simcse(dropout=0.1).train()
    batch = tiny_encoder.text_batch(5)
    views = method.encode("text", batch)["views"]
    assert views.shape == (5, 2, 16)
    assert (views[:, 0] - views[:, 1]).abs().amax(1).min() > 1e-4  # every pair differs, by dropout
    still = method.eval().encode("text", batch)["views"]
    close(still[:, 0], still[:, 1])
    ids, mask = (batch[name][:, 0] for name in ("input_ids", "attention_mask"))
    close(still[:, 0], method.sentence_encoder.project(method.sentence_encoder.model(ids, mask).last_hidden_state[:, 0]))


def test_supervised_simcse_weights_a_samples_own_contradiction() -> None:
    method = simcse(supervised=True, hard_negative_log_weight=0.7)
    batch = tiny_encoder.text_batch(6, views=3)
    z = method.encode("text", batch)["views"]
    out = method({"text": batch})
    close(out.losses["text"], losses.simcse(z[:, 0], z[:, 1], z[:, 2], 0.05, 0.7))
    pair = Batch({name: t[:, :2] for name, t in batch.tensors.items()})
    close(method({"text": pair}).losses["text"], losses.simcse(z[:, 0], z[:, 1]))


def test_a_frozen_guide_finds_the_false_negatives_of_a_trained_encoder() -> None:
    """The guide is the initial encoder without dropout, which does not train, and which checkpoints do not contain."""
    method = simcse(dropout=0.1, negatives={"margin": 0.02, "guide": "frozen", "hardness": 1.5}).train()
    assert not any(name.startswith("judge") for name in method.state_dict())
    batch, initial = tiny_encoder.text_batch(8), tiny_encoder.encoder(config=tiny_encoder.bert_config(0.1)).eval()
    with torch.no_grad():
        for parameter in method.sentence_encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        judged = initial({name: t[:, 0] for name, t in batch.tensors.items()})
    features = method.encode("text", batch)
    close(features["judged"][:, 0], judged)
    assert not features["judged"].requires_grad
    similarities = losses.cosine_similarity(judged, judged)
    left_out = (similarities > 0.98) & ~torch.eye(8, dtype=torch.bool)
    assert 0 < left_out.sum() < 56
    z = features["views"]
    expected = losses.simcse(z[:, 0], z[:, 1], temperature=0.05, hardness=1.5, left_out=left_out)
    close(method.losses({"text": features}, {"text": batch}).losses["text"], expected)


def test_mixed_simcse_adds_the_losses_of_triples_and_sentences() -> None:
    method = MixedSimCSEConfig(nli_weight=0.5).build(tiny_encoder.encoder(config=tiny_encoder.bert_config(0.0)))
    batches = {"nli": tiny_encoder.text_batch(6, views=3), "text": tiny_encoder.text_batch(5, seed=1)}
    out = method(batches)
    nli, text = (method.encode(name, batch)["views"] for name, batch in batches.items())
    close(out.losses["nli"], losses.simcse(nli[:, 0], nli[:, 1], nli[:, 2]))
    close(out.losses["text"], losses.simcse(text[:, 0], text[:, 1]))
    assert method.loss_weights == {"nli": 0.5} and not method.sentence_encoder.head_only_trains


def test_unsupervised_mlp_is_used_in_training_only() -> None:
    """Unsupervised, [CLS] is evaluated without the mlp; supervised, with it."""
    tokens = {name: t[:, 0] for name, t in tiny_encoder.text_batch(4).tensors.items()}
    unsupervised, supervised = simcse().eval(), simcse(supervised=True).eval()
    cls = unsupervised.sentence_encoder.model(**tokens).last_hidden_state[:, 0]
    close(unsupervised.sentence_encoder(tokens), cls)
    head = supervised.sentence_encoder.head
    assert head is not None
    close(supervised.sentence_encoder(tokens), torch.tanh(cls @ head.linear.weight.T + head.linear.bias))
    assert simcse(head="none").sentence_encoder.head is None


@pytest.mark.parametrize("supervised", [False, True])
def test_order_of_heads(supervised: bool) -> None:
    """Unsupervised CLS -> image_mlp; supervised CLS -> mlp (the text's) -> image_mlp."""
    method = nonling(VisualCSEConfig(text=SimCSEConfig(supervised=supervised), image=IMAGE))
    batch = tiny_encoder.image_batch(3)
    encoder = method.sentence_encoder
    tokens = method.patches["image"](batch["image"].flatten(0, 1))
    cls = encoder.model.encoder(tokens).last_hidden_state[:, 0]
    assert encoder.head is not None
    expected = method.heads["image"](encoder.head(cls) if supervised else cls)
    close(method.encode("image", batch)["views"].flatten(0, 1), expected)


def test_images_share_layers_but_not_embeddings_with_text() -> None:
    method = nonling(VisualCSEConfig(image=IMAGE))
    method({"image": tiny_encoder.image_batch(8)}).losses["image"].backward()
    touched = {name for name, p in method.named_parameters() if p.grad is not None}
    layers = {n for n, _ in method.named_parameters() if n.startswith("sentence_encoder.model.encoder.")}
    own = {n for n, _ in method.named_parameters() if n.startswith(("patches.image.", "heads.image."))}
    assert touched == layers | own and layers and own


def test_loss_of_each_variant() -> None:
    """[errata 2.3] paper: eq. 4; released: ranks of labels as columns; fixed: Khosla's SupCon. All three differ."""
    batch = tiny_encoder.image_batch(12)
    found = {}
    for variant in VARIANTS:
        method = nonling(VisualCSEConfig(image=IMAGE, variant=variant))
        z, y = method.encode("image", batch)["views"], batch["label"]
        expected = {
            "paper": lambda z=z, y=y: 12 * losses.supcon_eq4(z[:, 0], z[:, 1], y, 0.07),  # a sum
            "released": lambda z=z, y=y: losses.supcon_released(z[:, 0], z[:, 1], y, 0.07),
            "fixed": lambda z=z, y=y: losses.supcon(z, z, y, 0.07),
        }[variant]()
        found[variant] = method({"image": batch}).losses["image"]
        close(found[variant], expected)
    assert len({round(loss.item(), 3) for loss in found.values()}) == 3
    for variant in VARIANTS:  # SimCLR is equal in all variants, and needs no labels
        method = nonling(VisualCSEConfig(image=IMAGE.model_copy(update={"loss": "simclr"}), variant=variant))
        unlabelled = Batch({"image": batch["image"]})
        z = method.encode("image", unlabelled)["views"]
        expected = losses.info_nce(z[:, 0], z[:, 1], 0.07) * (12 if variant == "paper" else 1)
        close(method({"image": unlabelled}).losses["image"], expected)


@pytest.mark.parametrize("views", [1, 3])
def test_losses_of_the_paper_are_sums(views: int) -> None:
    """Eq. 2 and 3, of text (images: `test_loss_of_each_variant`); the code uses means."""
    method = nonling(VisualCSEConfig(image=IMAGE, text=SimCSEConfig(supervised=views == 3), variant="paper"))
    batch = tiny_encoder.text_batch(5, views=views)
    z = method.encode("text", batch)["views"]
    close(method({"text": batch}).losses["text"], 5 * losses.simcse(z[:, 0], z[:, 1], z[:, 2] if views == 3 else None))


def test_updates() -> None:
    """[errata 2.6] Algorithm 1 starts with text, the released code with images; eq. 1 sums the losses (2.5)."""
    assert [*VisualCSEConfig().updates().values()] == [("image",), ("text",)]
    assert [*VisualCSEConfig(variant="released").updates().values()] == [("image",), ("text",)]
    assert [*VisualCSEConfig(variant="paper").updates().values()] == [("text",), ("image",)]
    assert [*AudioCSEConfig().updates().values()] == [("audio",), ("text",)]
    assert [*NonLingCSEConfig().updates().values()] == [("image",), ("audio",), ("text",)]
    assert [*NonLingCSEConfig(summed=True).updates().values()] == [("image", "audio", "text")]
    method = nonling(VisualCSEConfig(image=IMAGE, summed=True))
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
