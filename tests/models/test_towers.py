"""Towers against Hugging Face's models and against their settings."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    ASTConfig,
    ASTFeatureExtractor,
    ASTForAudioClassification,
    ASTModel,
    BertModel,
    ClapAudioModelWithProjection,
    ClapConfig,
    ClapModel,
    CLIPConfig,
    CLIPModel,
    CLIPVisionModel,
    CLIPVisionModelWithProjection,
    DeiTConfig,
    DeiTModel,
    Dinov2Config,
    Dinov2Model,
    PreTrainedModel,
    ViTConfig,
    ViTModel,
)

from multicse.data.streams.inputs import AudioInput, ImageInput
from multicse.models.audio_towers import ASTTower, HTSATTower
from multicse.models.clip_layers import last_clip_layer
from multicse.models.tower import Tower
from multicse.models.towers import ViTTower
from multicse.reproduction.towers import ResNetTower
from multicse.trainers.gather import synchronised
from tests.models import tiny_encoder

IMAGE = ImageInput(size=16)
CLAP_INPUT = AudioInput(rate=8000, seconds=1.0, bins=16, n_fft=256, hop=80, high_hz=4000)  # 101 frames
KALDI = AudioInput(features="kaldi", rate=16000, seconds=0.5, bins=24)  # 48 frames
MASKS = {"mask_bins": 4, "mask_frames": 20}

VIT = ViTTower(input=IMAGE, patch_size=4, width=24, layers=3, heads=3)
HTSAT = HTSATTower(
    input=CLAP_INPUT, spec_size=64, patch_size=2, embed=8, depths=(1, 2, 1), heads=(1, 2, 4), window=4, **MASKS
)
AST = ASTTower(input=KALDI, patch_size=8, stride=5, width=24, layers=2, heads=3, **MASKS)
TOWERS: dict[str, Any] = {
    "vit": VIT,
    "resnet": ResNetTower(input=ImageInput(size=32), width=4, blocks=(1, 1, 1, 1)),
    "htsat": HTSAT,
    "ast": AST,
}

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16, "intermediate_size": 32}
PICTURES = {"image_size": 16, "patch_size": 4, **LAYERS}


def clip(**vision: Any) -> CLIPModel:
    torch.manual_seed(3)
    text = {"vocab_size": 30, "max_position_embeddings": 12, "eos_token_id": 2, **LAYERS}
    return CLIPModel(CLIPConfig(text_config=text, vision_config={**PICTURES, **vision}, projection_dim=12)).eval()


def clap(**audio: Any) -> ClapModel:
    torch.manual_seed(4)
    settings = {
        "spec_size": 64,
        "num_mel_bins": 16,
        "patch_size": 2,
        "patch_stride": [2, 2],
        "patch_embeds_hidden_size": 8,
        "hidden_size": 32,
        "depths": [1, 2, 1],
        "num_hidden_layers": 3,
        "num_attention_heads": [1, 2, 4],
        "window_size": 4,
        **audio,
    }
    text = {"vocab_size": 30, "max_position_embeddings": 12, **LAYERS}
    model = ClapModel(ClapConfig(text_config=text, audio_config=settings, projection_dim=12)).eval()
    for tensor in model.audio_model.audio_encoder.batch_norm.state_dict().values():
        if tensor.is_floating_point():  # BatchNorm statistics that change the output
            tensor.copy_(torch.rand(tensor.shape) + 0.5)
    return model


def items(tower: Tower, count: int = 3, seed: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *tower.shape, generator=generator)


def loaded(config: Any, model: Any, folder: Path) -> Any:
    """Save a model and load its tower."""
    model.save_pretrained(folder)
    config = config.model_copy(update={"path": str(folder)})
    config.check()
    return config.build(12).eval()


def close(found: Tensor, expected: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=atol)


# ---- all -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TOWERS)
def test_shape_and_gradients(kind: str) -> None:
    """Vectors have the right dimension, and every parameter gets a gradient."""
    torch.manual_seed(0)
    config = TOWERS[kind]
    config.check()
    tower = config.build(20).train()
    x = items(tower)
    out = tower(x)
    assert out.shape == (3, tower.width)
    assert tower.projects == (kind == "resnet")
    (out * torch.randn_like(out)).sum().backward()
    assert [name for name, parameter in tower.named_parameters() if parameter.grad is None] == []
    with torch.no_grad():
        tower.eval()
        close(tower(x), tower(x), 0)
        close(tower(x)[:1], tower(x[:1]))  # rows are independent


def test_defaults_are_the_published_sizes() -> None:
    """ViT-B/32 as in openai/clip-vit-base-patch32, RN50, HTSAT-tiny as in laion/clap-htsat-unfused, AST-base."""
    with torch.device("meta"):
        counts = {
            "vit": CLIPVisionModel(CLIPModel(CLIPConfig()).config.vision_config),
            "htsat": ClapModel(ClapConfig()).audio_model,
            "ast": ASTModel(ASTConfig()),
        }
        ours: dict[str, Any] = {"vit": ViTTower(), "htsat": HTSATTower()}
        ours["ast"] = ASTTower(input=AudioInput(features="kaldi", rate=16000, seconds=10.255, bins=128))
        built = {kind: config.build(512) for kind, config in ours.items()}
        assert sum(p.numel() for p in ResNetTower().build(1024).parameters()) == 38_316_896
    for kind, tower in built.items():
        theirs = {name: tuple(p.shape) for name, p in counts[kind].named_parameters()}
        assert {name: tuple(p.shape) for name, p in tower.model.named_parameters()} == theirs
        assert tower.width == 768


@pytest.mark.parametrize(
    ("config", "change", "setting"),
    [
        (AST, {"heads": 5}, "heads"),
        (HTSAT, {"window": 16}, "spec_size"),
        (ResNetTower(), {"width": 3}, "width"),
        (ResNetTower(), {"input": ImageInput(size=40)}, "size"),
        (AST, {"mask_frames": 49}, "mask_frames"),
    ],
)
def test_invalid_settings_are_refused(config: Any, change: dict[str, Any], setting: str) -> None:
    with pytest.raises(ValueError, match=rf"method\.tower.*{setting}"):
        config.model_copy(update=change).check()


# ---- one position of the last layer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_last_layer_of_one_position(causal: bool) -> None:
    """Output and gradients equal the complete layer."""
    layer: Any = clip().vision_model.encoder.layers[0].double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.3)
    states = torch.randn(5, 7, 16, dtype=torch.float64, requires_grad=True)
    index, wanted = torch.tensor([6, 0, 3, 2, 5]), torch.randn(5, 16, dtype=torch.float64)
    gradients, values = [], []
    for one in (True, False):
        if one:
            out = last_clip_layer(layer, states, index, causal)
        else:
            mask = torch.ones(7, 7).tril().log().double()[None, None] if causal else None
            out = layer(states, mask)[torch.arange(5), index]
        parameters = [states, *layer.parameters()]
        gradients.append(torch.autograd.grad((out * wanted).sum(), parameters))
        values.append(out.detach())
    close(values[0], values[1], 1e-12)
    for found, expected in zip(*gradients, strict=True):
        close(found, expected, 1e-11)


# ---- images ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", ["whole", "half", "half with projection"])
@pytest.mark.parametrize("kind", ["clip", "clap"])
def test_clip_and_clap_folders(kind: str, saved: str, tmp_path: Path) -> None:
    """A complete model or its tower alone gives transformers' features; CLAP's 101 frames are stretched to 256."""
    model: Any = clip() if kind == "clip" else clap()
    if kind == "clip":
        half, projected = model.vision_model, CLIPVisionModelWithProjection(model.config.vision_config)
        projected.vision_model.load_state_dict(half.state_dict())
    else:
        half, projected = model.audio_model, ClapAudioModelWithProjection(model.config.audio_config)
        projected.audio_model.load_state_dict(half.state_dict())
    saves = {"whole": model, "half": half, "half with projection": projected}
    tower = loaded(VIT if kind == "clip" else HTSAT, saves[saved], tmp_path)
    x = items(tower)
    with torch.no_grad():
        expected = (half(pixel_values=x) if kind == "clip" else half(input_features=x[:, None])).pooler_output
        close(tower(x), expected)
        assert expected.std() > 1e-2


VISION: dict[str, Callable[[], PreTrainedModel]] = {
    "vit": lambda: ViTModel(ViTConfig(**PICTURES)),
    "deit": lambda: DeiTModel(DeiTConfig(**PICTURES)),
    "dinov2": lambda: Dinov2Model(Dinov2Config(**{**PICTURES, "image_size": 28}, mlp_ratio=2, use_mask_token=True)),
}


@pytest.mark.parametrize("kind", VISION)
def test_other_vision_folders(kind: str, tmp_path: Path) -> None:
    """Vectors are the CLS token of the output; no pooler is trained, and DINOv2 accepts other image sizes."""
    torch.manual_seed(6)
    model = VISION[kind]().eval()
    tower = loaded(VIT, model, tmp_path)
    x = items(tower)
    with torch.no_grad():
        close(tower(x), model(pixel_values=x).last_hidden_state[:, 0])
    tower.train()
    (tower(x) * torch.randn(3, 16)).sum().backward()
    assert [name for name, p in tower.named_parameters() if p.requires_grad and p.grad is None] == []


def test_mismatched_folders_are_refused(tmp_path: Path) -> None:
    """The error names the setting."""
    clip().save_pretrained(tmp_path / "clip")
    clap().save_pretrained(tmp_path / "clap")
    clap(enable_fusion=True, fusion_type="channel_map").save_pretrained(tmp_path / "fused")
    BertModel(tiny_encoder.bert_config()).save_pretrained(tmp_path / "bert")
    (tmp_path / "weightless").mkdir()
    (tmp_path / "weightless" / "config.json").write_text((tmp_path / "clip" / "config.json").read_text())
    image_sizes = {"clip": 24, "bert": 16, "weightless": 16, "no such/folder/there": 16}
    audio: dict[str, dict[str, float]] = {"fused": {}, "clap": {"bins": 32}, "./clap": {"seconds": 3.0}}
    configs: list[Any] = [
        ViTTower(input=ImageInput(size=size), path=str(tmp_path / name)) for name, size in image_sizes.items()
    ]
    for name, change in audio.items():
        configs.append(HTSATTower(input=CLAP_INPUT.model_copy(update=change), path=str(tmp_path / name), **MASKS))
    for config in configs:
        with pytest.raises(ValueError, match=r"^method\.tower.*"):
            config.check()
    settings = json.loads((tmp_path / "clip" / "config.json").read_text())
    settings["vision_config"]["num_hidden_layers"] = 3  # the third layer has no weights
    (tmp_path / "clip" / "config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=r"method\.tower\.path"):
        ViTTower(input=IMAGE, path=str(tmp_path / "clip")).build(12)


# ---- audio -----------------------------------------------------------------------------------------------------------


def test_drop_path_drops_both_branches(tmp_path: Path) -> None:
    """Some samples skip a block, which requires that attention and feed-forward are both dropped."""
    torch.manual_seed(10)
    clap(drop_path_rate=0.0).save_pretrained(tmp_path)  # the setting overrides the folder
    tower: Any = HTSAT.model_copy(update={"drop_path": 0.5, "path": str(tmp_path)}).build(8).train()
    block = tower.model.audio_encoder.layers[-1].blocks[-1]
    x = torch.randn(200, 64, 32)
    with torch.no_grad():
        untouched = (block(x, (8, 8))[0] == x).all(2).all(1).float().mean()
        assert 0.15 < untouched < 0.35
        assert not (block.eval()(x, (8, 8))[0] == x).all(2).all(1).any()


def test_htsat_masks_after_the_batch_norm() -> None:
    """Statistics use complete spectrograms; masked values are 0, the others do not change. Copies and synchronised
    towers mask by their own mode, too."""
    tower: Any = HTSAT.build(8).train()
    x = items(tower, 4) * 3 - 40
    mean = x.mean((0, 1))
    normed = (x - mean) / (x.var((0, 1), unbiased=False) + 1e-5).sqrt()
    towers: list[Any] = [tower, copy.deepcopy(tower), synchronised(copy.deepcopy(tower))]
    for each in towers:
        seen: list[Tensor] = []
        encoder = each.model.audio_encoder
        fold = encoder.reshape_mel2img
        encoder.reshape_mel2img = lambda found, fold=fold, seen=seen: fold(seen.append(found) or found)
        each(x)
        close(encoder.batch_norm.running_mean, 0.1 * mean, 1e-4)
        each.eval()(x)
        masked, whole = (one.detach()[:, 0] for one in seen)
        kept = masked != 0
        assert 0.2 < kept.float().mean() < 0.98 and bool((whole != 0).all())
        close(masked[kept], normed[kept], 1e-4)


def test_ast_folder(tmp_path: Path) -> None:
    """The folder of an AST classifier, with padding and normalisation of its feature extractor."""
    torch.manual_seed(9)
    settings = {"num_mel_bins": 24, "max_length": 60, "patch_size": 8, "frequency_stride": 5, "time_stride": 5}
    model = ASTForAudioClassification(ASTConfig(**settings, **LAYERS, hidden_dropout_prob=0.3)).eval()
    nn.init.normal_(model.audio_spectrogram_transformer.embeddings.position_embeddings)
    tower = loaded(AST, model, tmp_path)
    config = AST.model_copy(update={"path": str(tmp_path)})
    assert (tower.width, tower.shape) == (16, (48, 24))
    x = items(tower) * 4 - 5
    extractor = ASTFeatureExtractor(num_mel_bins=24, max_length=60)
    padded = torch.cat([x, torch.zeros(3, 12, 24)], 1)
    with torch.no_grad():
        expected = model.audio_spectrogram_transformer(extractor.normalize(padded)).pooler_output
        close(tower(x), expected)
        assert expected.std() > 1e-2
    tower.train()
    assert not torch.equal(tower(x), tower(x))  # masks are random
    tower.masks = (0, 0)
    assert torch.equal(tower(x), tower(x))  # the dropout of the folder is not used

    with pytest.raises(ValueError, match=r"method\.tower\.input"):
        config.model_copy(update={"input": KALDI.model_copy(update={"seconds": 1.0})}).check()
    extractor.mean = -1.0
    extractor.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"method\.tower\.mean"):
        config.check()
    config.model_copy(update={"mean": -1.0}).check()
