"""A global batch, divided among 1, 2 and 4 workers and into mini-batches, has equal losses, gradients and parameters.

The processes use gloo and float64; dropout is off if a division would change its masks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from multicse.data.streams.base import Batch
from multicse.models.audio_towers import HTSATTower
from multicse.models.towers import ViTTower
from multicse.pipelines import gclsr
from multicse.reproduction.towers import ResNetTower
from multicse.trainers import gather
from multicse.trainers.clip import CLIPConfig
from multicse.trainers.engine.checks import check_settings
from multicse.trainers.engine.sharding import clip_gradients, full_tensors, shard, split_sharded
from multicse.trainers.engine.step import cached_backward
from multicse.trainers.gather import average, offset, rank, synchronised, world_size
from multicse.trainers.gclsr import GCLSRConfig
from multicse.trainers.method import Method, MethodConfig, StepOutput
from multicse.trainers.mocoutrl import MoCoUTRLConfig
from multicse.trainers.nonling import NonLingCSEConfig, VisualCSEConfig
from multicse.trainers.pretrain import MaskedLMConfig
from multicse.trainers.recipe import RecipeError
from multicse.trainers.sgbert import SGBERTConfig
from multicse.trainers.simcse import MixedSimCSEConfig, NegativesConfig, SimCSEConfig
from tests.models import tiny_encoder
from tests.worlds import AUDIO, IMAGE, TOWER, example, in_processes

SIMCSEPP, TSDAE, UML = map(example, ("simcsepp", "tsdae", "uml"))
ROWS = 64

METHODS = {
    "simcse": SimCSEConfig(),
    "simcse-supervised": SimCSEConfig(supervised=True, hard_negative_log_weight=0.5),
    "simcse-guided": SimCSEConfig(negatives=NegativesConfig(margin=0.1, guide="frozen", hardness=2.0)),
    "simcse-supervised-masked": SimCSEConfig(
        supervised=True, negatives=NegativesConfig(margin=0.2, margin_strategy="relative")
    ),
    "simcse-mixed": MixedSimCSEConfig(nli_weight=0.5),
    "visualcse": VisualCSEConfig(image=IMAGE),
    "visualcse-paper": VisualCSEConfig(image=IMAGE, variant="paper"),
    "visualcse-released": VisualCSEConfig(image=IMAGE, variant="released"),
    "visualcse-simclr": VisualCSEConfig(image=IMAGE.model_copy(update={"loss": "simclr"})),
    "clip-guided": CLIPConfig(
        tower=TOWER, embed_dim=6, captions=0.1, nli=0.3, negatives=NegativesConfig(margin=0.1, guide="frozen", hardness=2.0)
    ),
    "cyclip": CLIPConfig(tower=TOWER, embed_dim=6, i_cyclic=0.25, c_cyclic=0.5, captions=0.1, nli=0.3, nli_sentences=0.2),
    "cyclip-paper": CLIPConfig(tower=TOWER, embed_dim=6, i_cyclic=0.25, c_cyclic=0.5, captions=0.1, variant="paper"),
    "mocoutrl": MoCoUTRLConfig(perturbation=False, momentum=0.9),
    "mocoutrl-paper": MoCoUTRLConfig(perturbation=False, momentum=0.9, variant="paper"),
    "sg-opt": SGBERTConfig(head_width=24, temperature=0.1),
    # The last layer only: the sampler draws from the generator of each rank.
    "sg": SGBERTConfig(loss="sg", first_layer=2, head_width=0, temperature=0.1, pooling="mean"),
    "sg-opt1": SGBERTConfig(loss="opt1", first_layer=2, head_width=0, temperature=0.1),
    "sg-opt2": SGBERTConfig(loss="opt2", first_layer=2, head_width=0, temperature=0.1),
    "visualcse-supervised": VisualCSEConfig(image=IMAGE, text=SimCSEConfig(supervised=True)),
    "tsdae": TSDAE.TSDAEConfig(deletion=0.0),
    "simcsepp": SIMCSEPP.SimCSEPPConfig(positive_scale=0.9, dimension_weight=0.5),
    # All patches: the mask is drawn from the generator of each rank.
    "uml": UML.UMLConfig(image=UML.UMLImageConfig(image_size=8, patch_size=4, masked=0.99)),
    "both-summed": NonLingCSEConfig(image=IMAGE, audio=AUDIO, summed=True),
}


CHUNK = 8
SOME = ("simcse-supervised-masked", "visualcse", "cyclip-paper", "mocoutrl")
"""One loss, several updates, two streams in one update, a buffer that follows."""
WHOLE, SHARED_CHUNKS = (None, False, tuple(METHODS)), (CHUNK, True, tuple(METHODS))
Kind = tuple[int | None, bool, tuple[str, ...]]
KINDS: dict[int, dict[str, Kind]] = {
    2: {"whole": WHOLE, "shared-chunks": SHARED_CHUNKS, "chunks": (CHUNK, False, SOME), "shared": (None, True, SOME)},
    4: {"whole": WHOLE, "shared-chunks": SHARED_CHUNKS},
}
"""Mini-batches, whether layers are sharded, and the methods, for each number of workers. A method gathers what others have
computed in both ways of the first two; the others and more workers are the engine's."""


def _share(x: Tensor) -> Tensor:
    n = len(x) // world_size()
    return x[offset(n) :][:n]


def _float(batch: Batch) -> Batch:
    return Batch({name: t.float() if t.is_floating_point() else t for name, t in batch.tensors.items()})


def _mean_over_workers(loss: Tensor) -> Tensor:
    total = loss.detach().clone()
    if world_size() > 1:
        dist.all_reduce(total)
    return total / world_size()


def _made(name: str, config: MethodConfig, dropout: float = 0.0) -> tuple[Method, dict[str, Batch]]:
    """Return a method in float64, and this worker's part of its batches."""
    encoder: Any = tiny_encoder.encoder(config=tiny_encoder.bert_config(dropout))
    text = tiny_encoder.text_batch(ROWS, views=3 if "supervised" in name else 1)
    if isinstance(config, GCLSRConfig):
        encoder, text = tiny_encoder.word_encoder(torch.float64), tiny_encoder.text_batch(ROWS, views=2)
    if isinstance(config, MoCoUTRLConfig):
        marks = torch.zeros(ROWS, 3, 6, dtype=torch.long)
        marks[: ROWS - 5, :, 1:3] = 1  # five sentences without a candidate, all on the last worker
        text = tiny_encoder.text_batch(ROWS, views=3).replace(word_mask=marks, candidate=marks[:, 0].any(-1))
    everything = {
        "text": text,
        "image": tiny_encoder.image_batch(ROWS),
        "audio": tiny_encoder.audio_batch(ROWS),
        "pairs": tiny_encoder.pair_batch(ROWS),
        "nli": tiny_encoder.text_batch(ROWS, views=3, seed=4),
        "nli_sentences": tiny_encoder.text_batch(ROWS // 2, seed=5),
    }
    batches = {
        stream: Batch({k: _share(t.double() if t.is_floating_point() else t) for k, t in everything[stream].tensors.items()})
        for update in config.updates().values()
        for stream in update
    }
    return config.build(encoder).double().train(), batches


def _sum(method: Method, output: StepOutput) -> Tensor:
    return torch.stack([method.loss_weights.get(key, 1.0) * loss for key, loss in output.losses.items()]).sum()


def _train(name: str, chunk: int | None, shared: bool) -> dict[str, Tensor]:
    """Run two steps of all updates as the engine does: DDP, mini-batches or sharded layers; AdamW with clipping."""
    method, batches = _made(name, METHODS[name])
    updates = [*METHODS[name].updates().values()]
    model: nn.Module = method
    if shared:
        shard(method, torch.device("cpu"))
    elif world_size() > 1 and chunk is None:
        model = DistributedDataParallel(method, find_unused_parameters=len(updates) > 1, broadcast_buffers=False)

    def backward(output: StepOutput) -> None:
        _sum(method, output).backward()

    groups = [{"params": params} for params in split_sharded(list(method.parameters())) if params]
    optimizers = [torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.0) for _ in updates]
    results: dict[str, Tensor] = {}
    for step in range(2):
        for update, optimizer in zip(updates, optimizers, strict=True):
            given = {stream: batches[stream] for stream in update}
            if chunk is None:
                backward(out := full_tensors(model(given)))
            else:
                out = cached_backward(method, given, chunk, backward, nullcontext)
            if model is method:
                average(split_sharded([p.grad for p in method.parameters() if p.grad is not None])[0])
            results |= {f"{name}/{step}/{key}": _mean_over_workers(loss) for key, loss in out.losses.items()}
            grads = {part: p.grad for part, p in method.named_parameters() if p.grad is not None}
            results |= {f"{name}/{step}/{update}/grad/{part}": full_tensors(grad).clone() for part, grad in grads.items()}
            clip_gradients([p for p in method.parameters() if p.grad is not None], 1.0)
            optimizer.step()
            optimizer.zero_grad()
        method.after_step(step)
    parts = {**dict(method.named_parameters()), **dict(method.named_buffers())}
    return results | {
        f"{name}/weights/{part}": full_tensors(t.detach()).clone() for part, t in parts.items() if t.is_floating_point()
    }


def _everything(chunk: int | None, shared: bool, names: tuple[str, ...]) -> dict[str, Tensor]:
    return {key: value for name in names for key, value in _train(name, chunk, shared).items()}


def _averages(number: int) -> None:
    """Compare averages of tensors of several types, in large and small buckets, with one exchange per tensor.

    They are integers, so the order of the sum, which depends on the position in a bucket, has no effect.
    """
    generator = torch.Generator().manual_seed(number)
    kinds = [torch.float32, torch.float64, torch.float64, torch.bfloat16]
    tensors = [torch.randint(-8, 8, (5, size), generator=generator).to(kind).T for kind in kinds for size in (1, 3, 40, 2)]
    wanted = [tensor.clone() for tensor in tensors]
    for tensor in wanted:
        dist.all_reduce(tensor)
        tensor /= world_size()
    with patch.object(gather, "BUCKET", 200):
        average(tensors)
    for tensor, other in zip(tensors, wanted, strict=True):
        torch.testing.assert_close(tensor, other)


def _worker(number: int, folder: str, world: int) -> None:
    assert (rank(), world_size()) == (number, world)
    _averages(number)
    for kind, given in KINDS[world].items():
        save_file(_everything(*given), f"{folder}/{kind}-{number}.safetensors")


@pytest.fixture(scope="module")
def alone() -> dict[str, Tensor]:
    return _everything(*WHOLE)


def _same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        gap = (found[name] - value).abs().max().item()
        assert gap <= 1e-10 * max(1.0, value.abs().max().item()), f"{name} is off by {gap}"


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.cluster)])
def test_workers_equal_one_process(world: int, alone: dict[str, Tensor], tmp_path: Path) -> None:
    in_processes(_worker, tmp_path, world, count=world)
    for kind, (*_, names) in KINDS[world].items():
        ranks = [load_file(tmp_path / f"{kind}-{number}.safetensors") for number in range(world)]
        _same(ranks[0], {key: value for key, value in alone.items() if key.partition("/")[0] in names})
        for other in ranks[1:]:
            for name, value in ranks[0].items():
                assert torch.equal(other[name], value), f"{name} differs between workers"


RANDOM = {
    "gclsr-plain": GCLSRConfig(augmentation="none", width=8, bottleneck=4, group_size=2),
    "gclsr": GCLSRConfig(width=8, bottleneck=4, group_size=2),
    "mocoutrl": MoCoUTRLConfig(),
    "mocoutrl-released": MoCoUTRLConfig(variant="released", mean_with_padding=False),
    "sg": SGBERTConfig(loss="sg", temperature=0.1),
    "mlm": MaskedLMConfig(),
    "tsdae": TSDAE.TSDAEConfig(),
    "uml": UML.UMLConfig(image=UML.UMLImageConfig(image_size=8, patch_size=4)),
}


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *((name, torch.float64) for name in (*METHODS, *(f"{name}-random" for name in RANDOM))),
        *((name, torch.bfloat16) for name in ("simcse", "visualcse", "cyclip")),
    ],
)
def test_mini_batches_equal_one_graph_with_the_same_random_numbers(name: str, precision: torch.dtype) -> None:
    """Both passes use the same dropout, augmentation and layers, and later random numbers are those without mini-batches."""
    config = {**METHODS, **{f"{name}-random": c for name, c in RANDOM.items()}}[name]
    method, batches = _made(name, config, dropout=0.1)
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    if precision is torch.bfloat16:
        method, batches = method.float(), {n: _float(batch) for n, batch in batches.items()}
        autocast = partial(torch.autocast, "cpu", torch.bfloat16)

    def one_graph(given: dict[str, Batch]) -> None:
        with autocast():
            parts = {n: [method.encode(n, b.rows(i, i + CHUNK)) for i in range(0, len(b), CHUNK)] for n, b in given.items()}
            features = {n: {key: torch.cat([part[key] for part in p]) for key in p[0]} for n, p in parts.items()}
            output = method.losses(features, given)
        (1024 * _sum(method, StepOutput({**output.losses, **method.penalties()}))).backward()

    def cached(given: dict[str, Batch]) -> None:
        cached_backward(method, given, CHUNK, lambda output: (1024 * _sum(method, output)).backward(), autocast)

    for update in config.updates().values():
        found = []
        for way in (one_graph, cached):
            torch.manual_seed(3)
            method.zero_grad(set_to_none=True)
            way({stream: batches[stream] for stream in update})
            gradients = {part: p.grad for part, p in method.named_parameters() if p.grad is not None}
            found.append((gradients, torch.get_rng_state()))
        (wanted, after), (gradients, state) = found
        assert torch.equal(state, after)
        if precision is torch.float64:
            _same(gradients, wanted)
        else:  # gradients are summed in bf16 within one graph, and in float32 over mini-batches
            one, other = (torch.cat([g.flatten() for g in part.values()]) for part in (wanted, gradients))
            assert torch.linalg.vector_norm(one - other) < 0.02 * torch.linalg.vector_norm(one)


def test_synchronised_keeps_names_values_and_hooks() -> None:
    net: Any = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4, eps=1e-3), nn.Flatten(), nn.BatchNorm1d(64, affine=False))
    seen: list[torch.Size] = []
    net[1].register_forward_pre_hook(lambda layer, args: seen.append(args[0].shape))
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    assert id(synchronised(net)) == id(net) and [type(net[i]) for i in (1, 3)] == [nn.SyncBatchNorm] * 2
    assert before.keys() == net.state_dict().keys() and net[1].eps == 1e-3
    assert all(torch.equal(tensor, net.state_dict()[name]) for name, tensor in before.items())
    net.eval()(torch.randn(2, 2, 6, 6))
    assert seen == [(2, 4, 4, 4)]


def test_several_cpu_workers_are_refused() -> None:
    recipe = gclsr.smoke()
    check_settings(recipe.changed({"run.num_workers": 1}))
    check_settings(recipe.changed({"run.num_workers": 2, "run.gpus_per_worker": 1}))
    with pytest.raises(RecipeError, match=r"run\.num_workers=2"):
        check_settings(recipe.changed({"run.num_workers": 2}))
    assert CLIPConfig(tower=ResNetTower()).batch_norm and CLIPConfig(tower=HTSATTower()).batch_norm
    assert not CLIPConfig(tower=ViTTower()).batch_norm
