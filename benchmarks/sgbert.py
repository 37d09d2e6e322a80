"""Steps per second and memory of SG-OPT: ours, against the published algorithm on sentence-transformers and against SimCSE.

    python benchmarks/sgbert.py --data DIR [--model DIR] [--shape 12x768] [--steps 8 --rounds 3] [--profile]

`Plain` is what the paper describes, organised as the released code is. Both sides start from one folder and take the same
tokenised batches and optimizer settings, in alternating blocks. The fastest block of each counts, and what counts is the
ratio; on a machine that others use as well, that of processor time. The plain one is measured a second time with the
cosines of the released code, which broadcasts to (B, B, 4096).
"""

from __future__ import annotations

import copy
import functools
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
import transformers
import tyro
from sentence_transformers.sentence_transformer import modules as st
from sentence_transformers.util import cos_sim
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel

from data.batch import Batch
from evaluation.registry import make_tasks
from models.text_encoder import TextEncoder
from trainers.engine.optim import TurnOptimizer
from trainers.method import Method
from trainers.recipe import OptimConfig
from trainers.sgbert import SGBERT, SGBERTConfig
from trainers.simcse import SimCSEConfig

SMALL = Path(__file__).resolve().parents[1] / "models" / "small-bert-en"
OPTIM = OptimConfig(lr=5e-5, betas=(0.9, 0.9), eps=1e-6, schedule="constant")

Similarity = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Arguments:
    """What is measured."""

    data: Path
    """A folder of raw TSVs or SentEval's downstream folder: the sentences of STS-B train."""
    model: Path = SMALL
    """A Hugging Face folder; with `shape` only its tokenizer is used."""
    shape: str | None = None
    """LAYERSxWIDTH of a BERT of random weights, such as 12x768 (base), in place of the model's own."""
    steps: int = 8
    """Optimizer steps of one block."""
    rounds: int = 3
    """Blocks of each side."""
    batch: int = 16
    seed: int = 1
    threads: int | None = None
    profile: bool = False
    """Print the operations that take longest, too."""


# ---------------------------------------------------------------------------------------------- the published algorithm


def broadcast_cosine(a: Tensor, b: Tensor) -> Tensor:
    """The cosines (N, M) of the released code: products of all pairs of rows, then a sum."""
    return F.cosine_similarity(a.unsqueeze(1), b.unsqueeze(0), dim=-1)


class Plain(nn.Module):
    """SG-OPT with its regulariser (Kim et al., ACL 2021) on sentence-transformers: tokens (B, L) to the loss.

    As in the released code the teacher's parameters take no gradient, so that nothing is recorded of it, and there is no
    `no_grad` around it. It stays in evaluation mode, as in the paper. Projection 0 leaves the head out.
    """

    def __init__(
        self,
        folder: str,
        projection: int = 4096,
        temperature: float = 0.01,
        regulariser: float = 0.1,
        similarity: Similarity = cos_sim,
    ) -> None:
        super().__init__()
        self.temperature, self.regulariser, self.similarity = temperature, regulariser, similarity
        self.student = st.Transformer(folder, max_seq_length=128, config_kwargs={"output_hidden_states": True})
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        self.student.model.embeddings.requires_grad_(False)
        width = self.student.get_embedding_dimension()
        self.pooling = st.Pooling(width, "cls")
        linears = [nn.Linear(width, projection), nn.Linear(projection, projection)] if projection else []
        for linear in linears:
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        self.head = nn.Sequential(*(part for linear in linears for part in (linear, nn.GELU())))

    def train(self, mode: bool = True) -> Plain:
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, tokens: dict[str, Tensor]) -> Tensor:
        sentence = self.pooling(self.student(dict(tokens)))["sentence_embedding"]
        states = torch.stack(self.teacher(dict(tokens))["all_layer_embeddings"], dim=1)
        views = self.max_pooling(states, tokens["attention_mask"])
        return self.contrast(self.head(sentence), self.head(views)) + self.regulariser * self.distance()

    def max_pooling(self, states: Tensor, mask: Tensor) -> Tensor:
        """States (B, l+1, L, d) of all layers and mask (B, L) to views (B, l+1, d)."""
        return states.masked_fill(mask[:, None, :, None] == 0, -1e9).max(dim=2).values

    def contrast(self, sentence: Tensor, views: Tensor) -> Tensor:
        """L_opt3, layer after layer: sentence (B, p), views (B, l+1, p)."""
        batch, layers = views.shape[:2]
        others = ~torch.eye(batch, dtype=torch.bool, device=sentence.device)
        positives, negatives = [], []
        for k in range(layers):
            similarities = self.similarity(sentence, views[:, k]) / self.temperature
            positives.append(similarities.diag())
            negatives.append(similarities[others].view(batch, batch - 1))
        shared = torch.cat(negatives, dim=1)
        target = torch.zeros(batch, dtype=torch.long, device=sentence.device)
        losses = [F.cross_entropy(torch.cat([positive[:, None], shared], dim=1), target) for positive in positives]
        return torch.stack(losses).mean()

    def distance(self) -> Tensor:
        """The squared norm of the difference of student and teacher, over all pairs of parameters, the frozen too."""
        pairs = zip(self.student.parameters(), self.teacher.parameters(), strict=True)
        return torch.stack([torch.norm(old - new) ** 2 for new, old in pairs]).sum()


# ------------------------------------------------------------------------------------------------------------- the sides


@dataclass
class Side:
    """One implementation: how a batch becomes a loss, and what follows from the loss."""

    module: nn.Module
    loss: Callable[[dict[str, Tensor]], Tensor]
    update: Callable[[], object]
    watched: dict[str, nn.Module]
    """Modules whose forward is timed by itself."""
    seconds: dict[str, float] = field(default_factory=dict)


def method_loss(method: Method, tokens: dict[str, Tensor]) -> Tensor:
    """The sum of the weighted losses, as the engine forms it."""
    output = method({"text": Batch({name: tensor[:, None] for name, tensor in tokens.items()})})
    return torch.stack([method.loss_weights.get(name, 1.0) * value for name, value in output.losses.items()]).sum()


def our_method(folder: str, head_width: int = 4096) -> SGBERT:
    """SG-OPT of the paper; width 0 leaves its projection head out."""
    settings = SGBERTConfig(variant="paper", loss="opt3", head_width=head_width)
    return settings.build(TextEncoder.from_pretrained(folder, pooling="cls_before_pooler"))


def our_side(folder: str, device: torch.device, steps: int) -> Side:
    """The method and the optimizer of the engine."""
    method = our_method(folder).to(device).train()
    optimizer = TurnOptimizer(method, "text", OPTIM, steps, "fp32")
    watched = {"teacher": method.teacher, "student": method.sentence_encoder.model}
    return Side(method, lambda tokens: method_loss(method, tokens), optimizer.step, watched)


def plain_side(folder: str, device: torch.device, similarity: Similarity) -> Side:
    """The plain one with AdamW as PyTorch gives it."""
    model = Plain(folder, similarity=similarity).to(device).train()
    learned = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(learned, OPTIM.lr, OPTIM.betas, OPTIM.eps, weight_decay=0)

    def update() -> None:
        torch.nn.utils.clip_grad_norm_(learned, 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return Side(model, model, update, {"teacher": model.teacher, "student": model.student})


# ---------------------------------------------------------------------------------------------------------------- speed


class Spent(NamedTuple):
    """Seconds on the clock, and of processor time."""

    seconds: float
    processor: float


def synchronised(device: torch.device) -> float:
    """The clock, once the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


@contextmanager
def timed(seconds: dict[str, float], name: str, device: torch.device) -> Iterator[None]:
    """Add the seconds of what is inside to `seconds[name]`."""
    began = synchronised(device)
    yield
    seconds[name] = seconds.get(name, 0.0) + synchronised(device) - began


def watch(side: Side, device: torch.device) -> None:
    """Time the forward of the side's teacher and student from now on."""

    def timing(name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with timed(side.seconds, name, device):
                return forward(*args, **kwargs)

        return wrapped

    for name, module in side.watched.items():
        module.forward = timing(name, module.forward)


def block(side: Side, batches: list[dict[str, Tensor]], device: torch.device) -> Spent:
    """One optimizer step on each batch; the parts of a step are added to `side.seconds`."""
    began = synchronised(device), time.process_time()
    for tokens in batches:
        with timed(side.seconds, "forward", device):
            loss = side.loss(tokens)
        with timed(side.seconds, "backward", device):
            loss.backward()
        with timed(side.seconds, "update", device):
            side.update()
    return Spent(synchronised(device) - began[0], time.process_time() - began[1])


def race(sides: dict[str, Side], batches: list[dict[str, Tensor]], a: Arguments, device: torch.device) -> dict[str, Spent]:
    """The fastest block of each side; the sides take turns, in alternating order."""
    best: dict[str, Spent] = {}
    for side in sides.values():
        block(side, batches[:1], device)  # what is set up once
        watch(side, device)
        side.seconds.clear()
    for turn in range(a.rounds):
        for name in list(sides) if turn % 2 == 0 else list(sides)[::-1]:
            torch.manual_seed(a.seed)
            now = block(sides[name], batches, device)
            old = best.get(name, now)
            best[name] = Spent(min(now.seconds, old.seconds), min(now.processor, old.processor))
    return best


def print_speed(sides: dict[str, Side], best: dict[str, Spent], a: Arguments) -> None:
    """Steps per second with ratios, and milliseconds of each part of a step."""
    ours = best["ours"]
    print("| side | steps/s | ours is faster by | by processor time |\n|---|---|---|---|")
    for name, spent in best.items():
        ratios = f"{spent.seconds / ours.seconds:.2f} | {spent.processor / ours.processor:.2f}"
        print(f"| {name} | {a.steps / spent.seconds:.2f} | {ratios} |")
    print("\nMean milliseconds of a step:\n")
    print("| side | teacher | student forward | rest of forward | backward | clip and AdamW |\n|---|---|---|---|---|---|")
    for name, side in sides.items():
        ms = {part: 1000 * seconds / (a.steps * a.rounds) for part, seconds in side.seconds.items()}
        rest = ms["forward"] - ms["teacher"] - ms["student"]
        parts = (ms["teacher"], ms["student"], rest, ms["backward"], ms["update"])
        print(f"| {name} | {' | '.join(f'{part:.1f}' for part in parts)} |")


def print_profile(name: str, side: Side, batches: list[dict[str, Tensor]], device: torch.device) -> None:
    """The operations of one block by their own time."""
    with torch.profiler.profile() as profile:
        block(side, batches, device)
    key = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    print(f"\n{name}:\n{profile.key_averages().table(sort_by=key, row_limit=15, max_name_column_width=40)}")


# --------------------------------------------------------------------------------------------------------------- memory


def saved_bytes(module: nn.Module, loss: Callable[[], Tensor]) -> int:
    """Bytes that autograd keeps for the backward of a loss, every storage once, parameters and buffers not counted."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*module.parameters(), *module.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = loss()
    total = sum(kept.values())
    del result  # the graph lived until here, so that no address was used twice
    return total


def peak_bytes(module: nn.Module, loss: Callable[[], Tensor], device: torch.device, fresh: bool) -> int:
    """Most bytes of tensors alive in forward and backward, above those alive before.

    Not fresh: the gradients exist already, as from the second batch of an accumulation on. Fresh: as in training with one
    batch a step, the parameters have none before and they count when they come.
    """
    loss().backward()
    if fresh:
        module.zero_grad()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        loss().backward()
        return torch.cuda.max_memory_allocated(device) - before
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        loss().backward()
    with tempfile.TemporaryDirectory() as place:
        profile.export_chrome_trace(f"{place}/trace.json")
        events = json.loads(Path(place, "trace.json").read_text())["traceEvents"]
    changes = sorted((event["ts"], event["args"]["Bytes"]) for event in events if event["name"] == "[memory]")
    alive = peak = 0
    for _, change in changes:
        alive += change
        peak = max(peak, alive)
    return peak


def print_memory(folder: str, batches: list[dict[str, Tensor]], device: torch.device) -> None:
    """What ours, SimCSE and the plain one hold, all without projection heads: in the narrowest and the widest batch.

    In a narrow batch activations are small and what is as large as the parameters counts.
    """
    simcse = SimCSEConfig(head="none").build(TextEncoder.from_pretrained(folder, pooling="cls_before_pooler"))
    ours, plain = our_method(folder, 0), Plain(folder, 0)
    measured: dict[str, tuple[nn.Module, Callable[[dict[str, Tensor]], Tensor]]] = {
        "SG-OPT, ours": (ours, functools.partial(method_loss, ours)),
        "SimCSE, two views": (simcse, functools.partial(method_loss, simcse)),
        "SG-OPT, plain": (plain, plain),
    }
    widths = {tokens["input_ids"].shape[1]: tokens for tokens in batches}
    print("Without projection heads:\n")
    print("| batch | method | MB saved for backward | MB at the peak, gradients apart | with gradients |")
    print("|---|---|---|---|---|")
    for width in sorted({min(widths), max(widths)}):
        for name, (module, of_tokens) in measured.items():
            module.to(device).train()
            loss = functools.partial(of_tokens, widths[width])
            sizes = saved_bytes(module, loss), *(peak_bytes(module, loss, device, fresh) for fresh in (False, True))
            shape = f"{len(widths[width]['input_ids'])} x {width}"
            print(f"| {shape} | {name} | {' | '.join(f'{size / 1e6:.1f}' for size in sizes)} |")
    print()


# ----------------------------------------------------------------------------------------------------------------- main


def random_bert(shape: str, tokenizer: Path, folder: str) -> str:
    """Write a BERT of random weights, `shape` layers x width, with the vocabulary size of BERT."""
    layers, width = (int(number) for number in shape.split("x"))
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    torch.manual_seed(0)
    BertModel(BertConfig(num_attention_heads=max(1, width // 64), **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tokenizer).save_pretrained(folder)
    return folder


def tokenised(a: Arguments, folder: str, device: torch.device) -> list[dict[str, Tensor]]:
    """Batches of shuffled sentences of STS-B train, each padded to its longest."""
    sentences = make_tasks(("stsb-train",), a.data)[0].sentences()
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(a.seed)).tolist()
    encoder = TextEncoder.from_pretrained(folder)
    starts = range(0, a.steps * a.batch, a.batch)
    texts = [[sentences[i] for i in order[start : start + a.batch]] for start in starts]
    return [{name: t.to(device) for name, t in encoder.tokenize(part, max_length=128).items()} for part in texts]


def main(a: Arguments) -> None:
    """Print tables."""
    if a.threads is not None:
        torch.set_num_threads(a.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory() as place:
        folder = str(a.model) if a.shape is None else random_bert(a.shape, a.model, place)
        batches = tokenised(a, folder, device)
        lengths = sum(tokens["attention_mask"].sum().item() for tokens in batches)
        padded = sum(tokens["attention_mask"].numel() for tokens in batches)
        print(f"{device}, {torch.get_num_threads()} threads; {a.shape or a.model}; batch {a.batch}; ", end="")
        print(f"{padded / len(batches) / a.batch:.0f} tokens a row, of which {lengths / padded:.0%} are no padding\n")
        print_memory(folder, batches, device)
        sides = {"ours": our_side(folder, device, a.steps * (a.rounds + 1) + 1)}
        sides["plain"] = plain_side(folder, device, cos_sim)
        sides["plain, cosines by broadcasting"] = plain_side(folder, device, broadcast_cosine)
        best = race(sides, batches, a, device)
        print_speed(sides, best, a)
        for name in ("ours", "plain") if a.profile else ():
            print_profile(name, sides[name], batches, device)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
