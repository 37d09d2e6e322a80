"""A miniature checkpoint in the layout of HTSAT's trainer becomes a tower; other files are refused and not executed."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import ClapAudioModel

from multicse.data.errors import DataError
from multicse.data.streams.inputs import AudioInput
from multicse.models.towers import HTSATTower
from multicse.reproduction.sources import htsat

SOUND = AudioInput(rate=8000, seconds=1.27, bins=8, n_fft=256, hop=80, high_hz=4000)  # 128 frames: 4 strips of 32
SMALL = HTSATTower(input=SOUND, spec_size=32, patch_size=2, embed=4, depths=(2, 2), heads=(1, 2), window=4)
THEIRS = {  # names in transformers, and in HTSAT's code, where query, key and value are one weight
    "batch_norm.": "bn0.",
    ".layernorm_before.": ".norm1.",
    ".layernorm_after.": ".norm2.",
    ".attention.output.dense.": ".attn.proj.",
    ".attention.self.": ".attn.",
    ".intermediate.dense.": ".mlp.fc1.",
    ".output.dense.": ".mlp.fc2.",
}


class Callback:
    """Stands for a class that only the machine of the training had."""


class Harmful:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harmed",)


def model() -> ClapAudioModel:
    torch.manual_seed(0)
    made = ClapAudioModel(SMALL.config()).eval()
    for weight in made.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return made


def weights() -> dict[str, Tensor]:
    """Those of `model`, as HTSAT's trainer has them."""
    made: dict[str, Tensor] = {}
    for name, tensor in model().state_dict().items():
        for ours, theirs in THEIRS.items():
            name = name.removeprefix("audio_encoder.").replace(ours, theirs)
        joined = re.sub(r"\.(query|key|value)\.", ".qkv.", name)
        made[joined] = torch.cat([made[joined], tensor]) if joined in made else tensor  # query, key and value in this order
    made |= {"tscam_conv.weight": torch.ones(5, 8, 2, 3), "head.weight": torch.ones(5, 5)}
    return made | {"logmel_extractor.melW": torch.ones(129, 8), "layers.0.blocks.1.attn_mask": torch.zeros(16, 16, 16)}


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
        torch.testing.assert_close(tower.build(7).eval()(x), model()(x[:, None]).pooler_output)


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
    with pytest.raises(DataError, match="fits nothing"):  # HTSAT-tiny's sizes
        htsat.tower(write(tmp_path / "small.ckpt"))
    assert not (tmp_path / "harmed").exists()
