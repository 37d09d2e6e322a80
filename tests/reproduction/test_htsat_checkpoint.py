"""Conversion of a miniature checkpoint of HTSAT's trainer, compared with a naive version of the paper's model."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import ClapAudioModel

from multicse.data.errors import DataError
from multicse.data.streams.inputs import AudioInput
from multicse.models.audio_towers import HTSATTower
from multicse.reproduction.sources import htsat

SPEC, PATCH, WINDOW, DEPTHS, HEADS = 32, 2, 4, (2, 2), (1, 2)
SOUND = AudioInput(rate=8128, seconds=1, bins=8, n_fft=256, hop=64, high_hz=4000)  # 128 frames: 4 strips of 32
SMALL = HTSATTower(input=SOUND, spec_size=SPEC, patch_size=PATCH, embed=4, depths=DEPTHS, heads=HEADS, window=WINDOW)
THEIRS = {  # names in transformers and in HTSAT's code, in which query, key and value are one weight
    "batch_norm.": "bn0.",
    ".layernorm_before.": ".norm1.",
    ".layernorm_after.": ".norm2.",
    ".attention.output.dense.": ".attn.proj.",
    ".attention.self.": ".attn.",
    ".intermediate.dense.": ".mlp.fc1.",
    ".output.dense.": ".mlp.fc2.",
}


class Callback:
    """Replacement of a class that exists only on the training machine."""


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


def model() -> ClapAudioModel:
    torch.manual_seed(0)
    made = ClapAudioModel(SMALL.config()).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    made.audio_encoder.batch_norm.running_mean.uniform_()
    made.audio_encoder.batch_norm.running_var.uniform_(0.5, 1.5)
    return made


def weights() -> dict[str, Tensor]:
    """Return the weights of `model` with the names of HTSAT's trainer."""
    made: dict[str, Tensor] = {}
    for name, tensor in model().state_dict().items():
        for ours, theirs in THEIRS.items():
            name = name.removeprefix("audio_encoder.").replace(ours, theirs)
        joined = re.sub(r"\.(query|key|value)\.", ".qkv.", name)
        made[joined] = torch.cat([made[joined], tensor]) if joined in made else tensor  # query, key and value in this order
    made |= {"tscam_conv.weight": torch.ones(5, 8, 2, 3), "head.weight": torch.ones(5, 5)}
    return made | {"logmel_extractor.melW": torch.ones(129, 8), "layers.0.blocks.1.attn_mask": torch.zeros(16, 16, 16)}


def relative(rows: Tensor, columns: Tensor) -> Tensor:
    """Return the row of the bias table for each pair of positions in a window."""
    down, across = rows[:, None] - rows, columns[:, None] - columns
    return (down + WINDOW - 1) * (2 * WINDOW - 1) + across + WINDOW - 1


def naive(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Return embeddings (B, d) of spectrograms x (B, frames, bins)."""
    x = (x - w["bn0.running_mean"]) / (w["bn0.running_var"] + 1e-5).sqrt() * w["bn0.weight"] + w["bn0.bias"]
    image = torch.cat([x[:, start : start + SPEC].transpose(1, 2) for start in range(0, x.shape[1], SPEC)], 1)
    x = F.conv2d(image[:, None], w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=PATCH)
    x = norm(w, "patch_embed.norm", x.permute(0, 2, 3, 1))
    for stage, depth in enumerate(DEPTHS):
        for i in range(depth):
            own = f"layers.{stage}.blocks.{i}"
            x = x + attention(w, f"{own}.attn", norm(w, f"{own}.norm1", x), HEADS[stage], (i % 2) * WINDOW // 2)
            x = x + linear(w, f"{own}.mlp.fc2", F.gelu(linear(w, f"{own}.mlp.fc1", norm(w, f"{own}.norm2", x))))
        if stage < len(DEPTHS) - 1:
            four = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
            x = norm(w, f"layers.{stage}.downsample.norm", four) @ w[f"layers.{stage}.downsample.reduction.weight"].T
    return norm(w, "norm", x).mean((1, 2))


def attention(w: dict[str, Tensor], name: str, x: Tensor, heads: int, shift: int) -> Tensor:
    """Attend within windows of x (B, H, W, d); a shifted window is split at the border."""
    out, size = torch.zeros_like(x), x.shape[1]
    for window in range((size // WINDOW) ** 2):
        top, left = divmod(window, size // WINDOW)
        rows = WINDOW * top + torch.arange(WINDOW**2) // WINDOW
        columns = WINDOW * left + torch.arange(WINDOW**2) % WINDOW
        places = (rows + shift) % size, (columns + shift) % size
        cut = (rows + shift >= size) * 2 + (columns + shift >= size)
        q, k, v = (
            part.unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in linear(w, f"{name}.qkv", x[:, places[0], places[1]]).chunk(3, -1)
        )
        bias = w[f"{name}.relative_position_bias_table"][relative(rows, columns)].permute(2, 0, 1)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
        seen = (scores.masked_fill(cut[:, None] != cut, -torch.inf).softmax(-1) @ v).transpose(1, 2).flatten(2)
        out[:, places[0], places[1]] = linear(w, f"{name}.proj", seen)
    return out


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])


def write(file: Path, tensors: dict[str, Tensor] | None = None, **other: Any) -> Path:
    named = {f"sed_model.{name}": tensor for name, tensor in (tensors or weights()).items()}
    torch.save({"epoch": 3, "state_dict": named} | other, file)
    return file


def test_a_checkpoint_becomes_a_tower(tmp_path: Path) -> None:
    file = write(tmp_path / "HTSAT.ckpt", callbacks={Callback: {"best": Callback()}})
    htsat.tower(file, SMALL).save_pretrained(tmp_path / "out")
    tower = HTSATTower(input=SOUND, path=str(tmp_path / "out"), mask_bins=0, mask_frames=0)
    tower.check()
    x = torch.randn(3, SOUND.frames, SOUND.bins)
    with torch.no_grad():
        torch.testing.assert_close(tower.build(7).eval()(x), naive(weights(), x), atol=1e-5, rtol=1e-4)


def test_other_files_are_refused_and_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harmful = write(tmp_path / "harmful.ckpt", callbacks=Harmful())
    fused = write(tmp_path / "fused.ckpt", {**weights(), "mel_conv1d.0.weight": torch.ones(1)})
    other = tmp_path / "other.ckpt"
    torch.save({"state_dict": {"audio_branch.norm.weight": torch.ones(2)}}, other)
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    for file in (harmful, fused, other, tmp_path / "text.ckpt", tmp_path / "absent.ckpt"):
        with pytest.raises(DataError, match=file.name):
            htsat.tower(file, SMALL)
    with pytest.raises(DataError, match="does not match"):  # HTSAT-tiny's sizes
        htsat.tower(write(tmp_path / "small.ckpt"))
    assert not (tmp_path / "harmed").exists()
