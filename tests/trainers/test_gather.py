"""One global batch, cut for 1, 2 and 4 workers, gives the same losses, gradients and parameters.

Plain gloo processes under DDP, float64, dropout off.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from data.batch import Batch
from data.streams.inputs import ImageInput
from models.towers import ViTTower
from tests.models import tiny_encoder
from trainers.clip import CLIPConfig
from trainers.engine.batchnorm import synchronised
from trainers.gather import offset, rank, world_size
from trainers.gclsr import GCLSRConfig
from trainers.method import Method
from trainers.mocoutrl import MoCoUTRLConfig
from trainers.nonling import AudioConfig, ImageConfig, NonLingCSEConfig, VisualCSEConfig
from trainers.sgbert import SGBERTConfig
from trainers.simcse import SimCSEConfig

ROWS = 64
IMAGE = ImageConfig(image_size=8, patch_size=4)
TOWER = ViTTower(input=ImageInput(size=8), patch_size=4, width=8, layers=2, heads=2)
AUDIO = AudioConfig(frames=12, bins=8, patch_size=4)

METHODS = {
    "simcse": SimCSEConfig(),
    "simcse-supervised": SimCSEConfig(supervised=True, hard_negative_log_weight=0.5),
    "visualcse": VisualCSEConfig(image=IMAGE),
    "visualcse-paper": VisualCSEConfig(image=IMAGE, variant="paper"),
    "visualcse-released": VisualCSEConfig(image=IMAGE, variant="released"),
    "visualcse-simclr": VisualCSEConfig(image=IMAGE.model_copy(update={"loss": "simclr"})),
    "cyclip": CLIPConfig(tower=TOWER, embed_dim=6, i_cyclic=0.25, c_cyclic=0.5, captions=0.1, nli=0.3, nli_sentences=0.2),
    "cyclip-paper": CLIPConfig(tower=TOWER, embed_dim=6, i_cyclic=0.25, c_cyclic=0.5, captions=0.1, variant="paper"),
    "gclsr": GCLSRConfig(augmentation="none", width=8, bottleneck=4, group_size=2),
    "mocoutrl": MoCoUTRLConfig(perturbation=False, momentum=0.9),
    "sg-opt": SGBERTConfig(head_width=24, temperature=0.1),
    # the last layer alone: the sampler draws from each rank's own generator
    "sg": SGBERTConfig(loss="sg", first_layer=2, head_width=0, temperature=0.1, pooling="mean"),
    "sg-opt1": SGBERTConfig(loss="opt1", first_layer=2, head_width=0, temperature=0.1),
    "sg-opt2": SGBERTConfig(loss="opt2", first_layer=2, head_width=0, temperature=0.1),
    "both-summed": NonLingCSEConfig(image=IMAGE, audio=AUDIO, summed=True),
}


def _share(x: Tensor) -> Tensor:
    n = len(x) // world_size()
    return x[offset(n) :][:n]


def _mean_over_workers(loss: Tensor) -> Tensor:
    total = loss.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total / world_size()


def _batches(method: Method, supervised: bool) -> dict[str, Batch]:
    everything = {
        "text": tiny_encoder.text_batch(ROWS, views=3 if supervised else 1),
        "image": tiny_encoder.image_batch(ROWS),
        "audio": tiny_encoder.audio_batch(ROWS),
        "pairs": tiny_encoder.pair_batch(ROWS),
        "nli": tiny_encoder.text_batch(ROWS, views=3, seed=4),
        "nli_sentences": tiny_encoder.text_batch(ROWS // 2, seed=5),
    }
    wanted = {name for turn in method.turns for name in turn}
    return {
        name: Batch({k: _share(t.double() if t.is_floating_point() else t) for k, t in batch.tensors.items()})
        for name, batch in everything.items()
        if name in wanted
    }


def _train(name: str) -> dict[str, Tensor]:
    """Two steps of all turns, as the engine does them: one DDP call, clipping and AdamW per turn."""
    config = METHODS[name]
    if isinstance(config, GCLSRConfig):
        method: Method = config.build(tiny_encoder.word_encoder(torch.float64)).double().train()
    else:
        encoder = tiny_encoder.encoder(config=tiny_encoder.bert_config(dropout=0.0))
        method = config.build(encoder).double().train()
    batches = _batches(method, supervised="supervised" in name)
    if name == "mocoutrl":
        marks = torch.zeros(ROWS, 3, 6, dtype=torch.long)
        marks[: ROWS - 5, :, 1:3] = 1  # five sentences without a candidate, all of the last worker
        everything = tiny_encoder.text_batch(ROWS, views=3).replace(word_mask=marks, candidate=marks[:, 0].any(-1))
        batches = {"text": Batch({k: _share(t) for k, t in everything.tensors.items()})}
    if name == "gclsr":
        batches = {"text": Batch({k: _share(t) for k, t in tiny_encoder.text_batch(ROWS, views=2).tensors.items()})}
    model: nn.Module = method
    if world_size() > 1:
        method = synchronised(method)  # type: ignore[assignment]
        model = DistributedDataParallel(method, find_unused_parameters=len(method.turns) > 1, broadcast_buffers=False)
    optimizers = [torch.optim.AdamW(method.parameters(), lr=1e-3, weight_decay=0.0) for _ in method.turns]
    results: dict[str, Tensor] = {}
    for step in range(2):
        for turn, optimizer in zip(method.turns, optimizers, strict=True):
            out = model({stream: batches[stream] for stream in turn})
            sum(method.loss_weights.get(key, 1.0) * loss for key, loss in out.losses.items()).backward()
            results |= {f"{name}/{step}/{key}": _mean_over_workers(loss) for key, loss in out.losses.items()}
            grads = {part: p.grad for part, p in method.named_parameters() if p.grad is not None}
            results |= {f"{name}/{step}/{turn}/grad/{part}": grad.clone() for part, grad in grads.items()}
            nn.utils.clip_grad_norm_(method.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        method.after_step(step)
    parts = {**dict(method.named_parameters()), **dict(method.named_buffers())}
    return results | {f"{name}/weights/{part}": t.detach().clone() for part, t in parts.items() if t.is_floating_point()}


def _everything() -> dict[str, Tensor]:
    return {key: value for name in METHODS for key, value in _train(name).items()}


def _worker(number: int, world: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=number, world_size=world)
    assert (rank(), world_size()) == (number, world)
    save_file(_everything(), f"{folder}/{number}.safetensors")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    return _everything()


@pytest.mark.parametrize("world", [2, 4])
def test_workers_equal_one_process(world: int, alone: dict[str, Tensor], tmp_path: Path) -> None:
    mp.spawn(_worker, args=(world, str(tmp_path)), nprocs=world)
    ranks = [load_file(tmp_path / f"{number}.safetensors") for number in range(world)]
    assert ranks[0].keys() == alone.keys()
    for name, value in alone.items():
        gap = (ranks[0][name] - value).abs().max().item()
        assert gap <= 1e-10 * max(1.0, value.abs().max().item()), f"{name} is off by {gap}"
        for other in ranks[1:]:
            assert torch.equal(other[name], ranks[0][name]), f"{name} differs between workers"
