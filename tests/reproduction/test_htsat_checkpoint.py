"""A miniature checkpoint in the layout of HTSAT's trainer, against the model of its paper written out step by step."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from multicse.data.errors import DataError
from multicse.data.streams.inputs import AudioInput
from multicse.models.towers import HTSATTower
from multicse.reproduction.sources import htsat

SPEC, BINS, PATCH, WINDOW = 32, 8, 2, 4
DEPTHS, HEADS, EMBED = (2, 2), (1, 2), 4
SOUND = AudioInput(rate=8000, seconds=1.27, bins=BINS, n_fft=256, hop=80, high_hz=4000)  # 128 frames: 4 strips of 32
SIZES: dict[str, Any] = {"spec_size": SPEC, "patch_size": PATCH, "embed": EMBED, "depths": DEPTHS, "heads": HEADS}
SMALL = HTSATTower(input=SOUND, window=WINDOW, **SIZES)


class Callback:
    """Stands for a class that only the machine of the training had."""


def block(dim: int, heads: int) -> dict[str, tuple[int, ...]]:
    norms: dict[str, tuple[int, ...]] = {f"norm{i}.{kind}": (dim,) for i in (1, 2) for kind in ("weight", "bias")}
    linear: dict[str, tuple[int, ...]] = {
        "attn.qkv": (3 * dim, dim),
        "attn.proj": (dim, dim),
        "mlp.fc1": (4 * dim, dim),
        "mlp.fc2": (dim, 4 * dim),
    }
    layers = {f"{name}.weight": shape for name, shape in linear.items()} | {f"{n}.bias": s[:1] for n, s in linear.items()}
    return norms | layers | {"attn.relative_position_bias_table": ((2 * WINDOW - 1) ** 2, heads)}


def shapes() -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {
        f"bn0.{kind}": (BINS,) for kind in ("weight", "bias", "running_mean", "running_var")
    }
    found |= {"patch_embed.proj.weight": (EMBED, 1, PATCH, PATCH)}
    found |= dict.fromkeys(("patch_embed.proj.bias", "patch_embed.norm.weight", "patch_embed.norm.bias"), (EMBED,))
    for stage, (depth, heads) in enumerate(zip(DEPTHS, HEADS, strict=True)):
        for i in range(depth):
            found |= {f"layers.{stage}.blocks.{i}.{name}": shape for name, shape in block(EMBED << stage, heads).items()}
    found |= {"layers.0.downsample.reduction.weight": (2 * EMBED, 4 * EMBED)}
    found |= dict.fromkeys(("layers.0.downsample.norm.weight", "layers.0.downsample.norm.bias"), (4 * EMBED,))
    found |= dict.fromkeys(("norm.weight", "norm.bias"), (2 * EMBED,))
    return found | {"tscam_conv.weight": (5, 2 * EMBED, 2, 3), "head.weight": (5, 5), "logmel_extractor.melW": (129, BINS)}


def weights() -> dict[str, Tensor]:
    torch.manual_seed(0)
    made = {name: torch.randn(shape) * 0.3 for name, shape in shapes().items()}
    made |= {"bn0.running_var": torch.rand(BINS) + 0.5, "bn0.num_batches_tracked": torch.tensor(7)}
    rows, columns = torch.arange(WINDOW**2) // WINDOW, torch.arange(WINDOW**2) % WINDOW
    index = relative(rows, columns)
    made |= {f"layers.{s}.blocks.{i}.attn.relative_position_index": index for s, d in enumerate(DEPTHS) for i in range(d)}
    return made | {"layers.0.blocks.1.attn_mask": torch.zeros(16, WINDOW**2, WINDOW**2)}


def relative(rows: Tensor, columns: Tensor) -> Tensor:
    """Row of the bias table for each pair of places in a window."""
    down, across = rows[:, None] - rows, columns[:, None] - columns
    return (down + WINDOW - 1) * (2 * WINDOW - 1) + across + WINDOW - 1


def naive(w: dict[str, Tensor], x: Tensor) -> Tensor:
    """Vectors (B, d) of spectrograms x (B, frames, bins)."""
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
    """Each place of x (B, H, W, d) attends to those of its window; windows that a shift cuts at the border are two."""
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


def write(file: Path, **other: Any) -> Path:
    torch.save({"epoch": 3, "state_dict": {f"sed_model.{name}": tensor for name, tensor in weights().items()}} | other, file)
    return file


def test_a_checkpoint_becomes_a_tower(tmp_path: Path) -> None:
    file = write(tmp_path / "HTSAT.ckpt", callbacks={Callback: {"best": Callback()}})
    htsat.tower(file, SMALL).save_pretrained(tmp_path / "out")
    tower = HTSATTower(input=SOUND, path=str(tmp_path / "out"), mask_bins=0, mask_frames=0)
    tower.check()
    x = torch.randn(3, SOUND.frames, BINS)
    with torch.no_grad():
        torch.testing.assert_close(tower.build(7).eval()(x), naive(weights(), x), atol=1e-5, rtol=1e-4)


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


def test_other_files_are_refused_and_nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    harmful = write(tmp_path / "harmful.ckpt", callbacks=Harmful())
    fused = tmp_path / "fused.ckpt"
    torch.save(
        {"state_dict": {f"sed_model.{n}": t for n, t in {**weights(), "mel_conv1d.0.weight": torch.ones(1)}.items()}}, fused
    )
    other = tmp_path / "other.ckpt"
    torch.save({"state_dict": {"audio_branch.norm.weight": torch.ones(2)}}, other)
    (tmp_path / "text.ckpt").write_text("no checkpoint")
    for file in (harmful, fused, other, tmp_path / "text.ckpt", tmp_path / "absent.ckpt"):
        with pytest.raises(DataError, match=file.name):
            htsat.tower(file, SMALL)
    with pytest.raises(DataError, match="fits nothing"):  # HTSAT-tiny's sizes
        htsat.tower(write(tmp_path / "small.ckpt"))
    assert not (tmp_path / "harmed").exists()
