"""What it costs to run each paper at full size: FLOPs of a step, GPU-hours, CPU-hours here, a sweep, cores that feed a GPU.

    python benchmarks/costs.py [--papers visualcse clap] [--utilisation 0.3 0.5] [--trials 32 --share 0.35] \\
        [--measured visualcse=812.5] [--json costs.json]

The FLOPs are counted (torch's FlopCounterMode) in a real forward and backward of the recipe's method at full size with
random weights, on a few samples whose texts are padded as far as a batch of the real data is. Steps and batches are
the recipe's, at the size of the paper's data set. GPU-hours are FLOPs / (published dense bf16 rate x utilisation), and at
least what starting the kernels one by one takes; **utilisation and start are assumptions**. `--measured` replaces them: the
metric `time/samples_per_second` of the first 200 steps of a run of your own. Times here are processor time of one thread,
so that others may use the machine.
"""

from __future__ import annotations

import io
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import soundfile
import torch
import tyro
from PIL import Image
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from transformers import BertConfig, CLIPTextConfig, DebertaConfig, PretrainedConfig, RobertaConfig

from data.batch import Batch
from data.shards import RawSample
from data.streams.audio import AudioStream
from data.streams.base import StreamConfig
from data.streams.image import ImageStream
from data.streams.pairs import AudioTextStream, ImageTextStream
from data.streams.text import TextStream
from models.pooling import Pooling
from models.text_encoder import TextEncoder
from models.word_encoder import WordEncoder
from pipelines import audiocse, clap, cyclip, gclsr, mocoutrl, sgbert, simcse, visualcse
from trainers.engine.malloc import keep_freed_memory
from trainers.engine.optim import TurnOptimizer
from trainers.method import Method, MethodConfig
from trainers.recipe import EncoderConfig, Recipe

# -------------------------------------------------------------------------------------------------------------- published


@dataclass(frozen=True)
class GPU:
    """Published dense peak rates in FLOP/s, without sparsity."""

    bf16: float
    """Of the tensor cores; that of fp16 is the same."""
    fp32: float
    """Of the ordinary cores: matrix products of a recipe in fp32. Torch lets only convolutions use TF32 by itself."""


GPUS = {
    "A10G": GPU(70e12, 35e12),  # AWS's instance pages (G5); NVIDIA's A10 has other numbers
    "A100": GPU(312e12, 19.5e12),  # NVIDIA A100 data sheet
    "H100": GPU(989.4e12, 66.9e12),  # NVIDIA H100 SXM data sheet; the H200's are the same
}

LENGTHS: dict[str, tuple[int, ...]] = {
    # At `QUANTILES`: BERT's word pieces with both special tokens, for `words` GCLSR's words. Measured on 2026-11-21.
    "wikipedia": (3, 12, 14, 17, 20, 23, 26, 30, 34, 39, 47, 53, 67, 99, 164),  # 73,604 sentences, mean 28.7
    "sts-b": (4, 8, 8, 9, 10, 11, 12, 13, 16, 19, 26, 31, 38, 46, 70),  # 17,260 sentences, mean 14.7
    "captions": (9, 11, 11, 12, 12, 13, 14, 14, 15, 16, 17, 19, 24, 37, 49),  # 595 of COCO, mean 14.1
    "clotho": (10, 11, 11, 12, 13, 14, 15, 15, 16, 18, 20, 22, 25, 29, 32),  # 14,465, mean 15.2
    "words": (0, 7, 9, 12, 14, 16, 18, 21, 24, 28, 34, 39, 47, 67, 100),  # the Wikipedia sentences, mean 20.0
}
QUANTILES = (0, 5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 99, 99.9, 100)


@dataclass(frozen=True)
class Stated:
    """What a paper or its log says of its own run."""

    where: str
    seconds: float
    """Of all GPUs together."""
    peak: float
    """Dense FLOP/s of one of them at the precision that was used."""


@dataclass(frozen=True)
class Paper:
    """A row of the table."""

    recipe: Recipe
    config: PretrainedConfig | None
    """The text encoder's; none: word vectors."""
    samples: int
    """Of the leading stream."""
    texts: str
    """Whose lengths the sentences have."""
    rows: int = 4
    """Samples of a stream that are computed with here; of texts fewer than 8, which a CPU would read in groups."""
    stated: Stated | None = None
    note: str = ""


def bert() -> BertConfig:
    """google-bert/bert-base-uncased."""
    return BertConfig()


def roberta() -> RobertaConfig:
    """FacebookAI/roberta-base."""
    return RobertaConfig(vocab_size=50265, max_position_embeddings=514, type_vocab_size=1, layer_norm_eps=1e-5)


def deberta() -> DebertaConfig:
    """microsoft/deberta-base."""
    return DebertaConfig(relative_attention=True, pos_att_type=["c2p", "p2c"], position_biased_input=False)


def clip_text() -> CLIPTextConfig:
    """The text half of openai/clip-vit-base-patch32."""
    return CLIPTextConfig(bos_token_id=49406, eos_token_id=49407)


RTX6000 = Stated("Quadro RTX 6000, fp16: 3 h 20 min (log)", 12_000, 130.5e12)
HOUR = 3600


def papers() -> dict[str, Paper]:
    """The main row of every paper."""
    cyclip_stated = Stated("4 x A100, fp32: 4 days", 4 * 96 * HOUR, 19.5e12)
    return {
        "simcse": Paper(simcse.bert_base(), bert(), 1_000_000, "wikipedia", 3),
        "visualcse": Paper(visualcse.bert_base(), bert(), 1_000_000, "wikipedia", 3, RTX6000),
        "audiocse": Paper(audiocse.bert_base(), bert(), 1_000_000, "wikipedia", 2),
        "sgbert": Paper(
            sgbert.bert_base(), bert(), 17_256, "sts-b", 4, Stated("Titan Xp, fp32: 455 s", 455, 12.15e12), "launch-bound"
        ),
        "cyclip": Paper(cyclip.model("cyclip-s"), clip_text(), cyclip.CC3M, "captions", 3, cyclip_stated),
        "clap": Paper(
            clap.model("cyclap-s", clap.CLOTHO, "cyclap-s"),
            roberta(),
            clap.CLOTHO.clips,
            "clotho",
            2,
            Stated("A100, fp32: less than a day", 24 * HOUR, 19.5e12),
        ),
        "gclsr": Paper(
            gclsr.full(), None, 10_000, "words", 64, Stated("V100, fp32: about 1 h", HOUR, 15.7e12), "tests every epoch"
        ),
        "mocoutrl": Paper(
            mocoutrl.paper(), deberta(), 74_000_000, "wikipedia", 2, note="all of BookCorpus; the paper's share is unknown"
        ),
    }


# ------------------------------------------------------------------------------------------------------------- arithmetic


def gpu_hours(flops: float, peak: float, utilisation: float) -> float:
    """Hours of one GPU of `peak` FLOP/s of which the share `utilisation` is reached. Raises ValueError outside (0, 1]."""
    if not 0 < utilisation <= 1:
        raise ValueError(f"--utilisation {utilisation}: it is a share, above 0 and at most 1")
    return flops / (peak * utilisation) / HOUR


def gpu_step_seconds(flops: float, launches: int, peak: float, utilisation: float, launch_seconds: float) -> float:
    """Seconds of a step: what the FLOPs take, or what starting its kernels one after the other takes, if that is more."""
    return max(gpu_hours(flops, peak, utilisation) * HOUR, launches * launch_seconds)


def hours_at(steps: int, samples_per_step: int, samples_per_second: float) -> float:
    """Hours of a run whose `time/samples_per_second`, over all streams and workers, was measured."""
    if not samples_per_second > 0:
        raise ValueError(f"--measured {samples_per_second}: it is samples a second, above 0")
    return steps * samples_per_step / samples_per_second / HOUR


def sweep_hours(hours: float, trials: int, share: float) -> float:
    """Hours of a sweep of which the share `share` of all steps is run: 1 without early stopping.

    Raises ValueError where the trials could not even be one run: trial 0 is never less than the recipe.
    """
    if trials < 1 or not 0 < share <= 1:
        raise ValueError(f"--trials {trials} --share {share}: at least 1 trial, and a share above 0 and at most 1")
    return hours * max(1.0, trials * share)


def cores(samples_per_second: float, per_core: float) -> int:
    """CPU cores that make as many samples a second as are consumed."""
    return math.ceil(samples_per_second / per_core)


def padded_length(quantiles: Sequence[float], rows: int, limit: int, draws: int = 2000) -> int:
    """Mean length of the longest of `rows` random texts cut at `limit`: what a batch is padded to."""
    rng = np.random.default_rng(0)
    lengths = np.interp(rng.uniform(0, 100, (draws, rows)), QUANTILES, quantiles)
    return max(1, round(float(np.minimum(lengths, limit).max(1).mean())))


# --------------------------------------------------------------------------------------------------------- model and data


def build(paper: Paper) -> Method:
    """The recipe's method at full size with random weights; nothing is read or downloaded."""
    content = paper.recipe.model_dump()
    for part in content["method"].values():
        if isinstance(part, dict) and part.get("path"):
            part["path"] = None  # random patches and towers of the default sizes, which are the papers'
    if "tower" in content["method"]:
        kind = type(paper.recipe.method.tower)  # type: ignore[attr-defined]  # the key is there
        content["method"]["tower"] = kind().model_dump()
    method = cast(MethodConfig, Recipe.model_validate(content).method)
    settings = paper.recipe.encoder
    torch.manual_seed(0)
    if not isinstance(settings, EncoderConfig):
        shape = settings.model_dump(include={"max_words", "regions", "filters", "letters", "unknown"})
        return method.build(WordEncoder([str(word) for word in range(WORDS)], torch.randn(WORDS, settings.dim), **shape))
    assert paper.config is not None
    tokenizer = SimpleNamespace(model_max_length=512, padding_side="right", pad_token_id=0)
    encoder = TextEncoder.from_config(paper.config, tokenizer, cast(Pooling, settings.pooling or "eot"))
    if settings.pooling == "cls":  # a saved model's pooler
        encoder.add_head(only_trains=False)
    return method.build(encoder)


WORDS = 1000


def batch(stream: StreamConfig, rows: int, quantiles: Sequence[float], end: int | None = None) -> Batch:
    """`rows` samples of a stream as a method takes them; texts all as long as a full batch is padded to, as on a GPU.

    end: the token that ends a text, where the encoder looks for it.
    """
    rng = torch.Generator().manual_seed(0)
    tensors: dict[str, Tensor] = {}
    if stream.texts:
        views = stream.n_texts if isinstance(stream, TextStream) else 1
        length = padded_length(quantiles, stream.batch_size, cast(Any, stream).max_length)
        ids = torch.randint(5, WORDS, (rows, views, length), generator=rng)
        if end is not None:
            ids[..., -1] = end
        tensors |= {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if stream.kind == "triplet":  # type: ignore[attr-defined]  # every stream has one
            marks = torch.zeros_like(ids)
            marks[..., length // 2] = 1
            tensors |= {"word_mask": marks, "candidate": torch.ones(rows, dtype=torch.bool)}
    if isinstance(stream, ImageStream):
        tensors["image"] = torch.randn(rows, stream.n_views, 3, stream.size, stream.size, generator=rng)
    if isinstance(stream, AudioStream):
        tensors["spectrogram"] = torch.randn(rows, 1, stream.frames, stream.bins, generator=rng)
    if isinstance(stream, (ImageStream, AudioStream)):
        tensors["label"] = torch.arange(rows) // 2  # a partner of the same class
    if isinstance(stream, ImageTextStream):
        tensors["image"] = torch.randn(rows, 1, 3, stream.input.size, stream.input.size, generator=rng)
    if isinstance(stream, AudioTextStream):
        tensors["spectrogram"] = torch.randn(rows, 1, stream.input.frames, stream.input.bins, generator=rng)
    return Batch(tensors, [str(row) for row in range(rows)])


# ------------------------------------------------------------------------------------------------------------ measurement


@dataclass
class Turn:
    """One optimizer step of a training step, at the recipe's batch."""

    flops: float
    """Of forward and backward."""
    seconds: float
    """Of the same here, one thread's processor time."""
    update_seconds: float
    """Of clipping and the optimizer."""
    launches: int
    """Operations that a GPU would start a kernel for, in forward, backward and update."""


@dataclass
class Cost:
    """One paper."""

    name: str
    row: str
    precision: str
    batches: dict[str, int]
    tokens: dict[str, int]
    """Length that texts are padded to."""
    steps: int
    parameters: int
    turns: dict[str, Turn]
    core_rate: float
    """FLOP/s of a matrix product on one thread here."""
    note: str = ""
    stated: Stated | None = None
    gpu_hours: dict[str, dict[str, float]] = field(default_factory=dict)
    """By GPU and utilisation, in bf16."""
    sweep_hours: dict[str, dict[str, float]] = field(default_factory=dict)
    fp32_gpu_hours: dict[str, dict[str, float]] = field(default_factory=dict)
    launch_hours: float = 0.0
    """What starting the kernels takes; hours above are never less."""
    measured_hours: float | None = None

    @property
    def step_flops(self) -> float:
        return sum(turn.flops for turn in self.turns.values())

    @property
    def flops(self) -> float:
        return self.steps * self.step_flops

    @property
    def launches(self) -> int:
        """Of a step."""
        return sum(turn.launches for turn in self.turns.values())

    @property
    def step_seconds(self) -> float:
        return sum(turn.seconds + turn.update_seconds for turn in self.turns.values())

    @property
    def core_hours(self) -> float:
        return self.steps * self.step_seconds / HOUR

    @property
    def core_share(self) -> float:
        """Of the rate of a matrix product that the step reaches here."""
        return self.step_flops / self.step_seconds / self.core_rate

    @property
    def implied(self) -> float | None:
        """Utilisation at which this many FLOPs take the time that the paper states."""
        return self.flops / (self.stated.seconds * self.stated.peak) if self.stated else None


def addmm_flops(_: Any, x: Any, y: Any, **__: Any) -> int:
    """FLOPs of ``out.addmm_(x, y)``, which torch's counter does not know; it hands over shapes, that of `out` first."""
    return 2 * math.prod(x) * y[-1]


@contextmanager
def counted() -> Iterator[FlopCounterMode]:
    """Counts matrix products and convolutions; attention is made of products here, since the CPU's kernel is not counted."""
    known = {torch.ops.aten.addmm_: addmm_flops}
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False, custom_mapping=known) as counter:
        yield counter


class Launches(TorchDispatchMode):
    """Counts the operations that compute; those that only look at memory in another way start no kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += not (func.is_view or func in FREE)
        return func(*args, **(kwargs or {}))


FREE = {torch.ops.aten.detach.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.empty.memory_format}


def measure_turn(method: Method, paper: Paper, turn: str, rounds: int) -> Turn:
    """FLOPs and times of a turn, from a few samples.

    FLOPs are a straight line in the number of samples, through two counts: DeBERTa's relative positions cost the same for
    any batch. Time is multiplied up.
    """
    recipe, streams = paper.recipe, paper.recipe.turns[turn]
    end = paper.config.eos_token_id if isinstance(paper.config, CLIPTextConfig) else None
    size = recipe.streams[streams[0]].batch_size
    optimizer = TurnOptimizer(method, turn, recipe.optim[turn], 10**6, "fp32")
    weights = method.loss_weights

    def forward_and_backward(batches: dict[str, Batch]) -> None:
        output = method(batches)
        loss = torch.stack([weights.get(name, 1.0) * value.float() for name, value in output.losses.items()]).sum()
        optimizer.backward(loss)

    full = {name: batch(recipe.streams[name], paper.rows, LENGTHS[paper.texts], end) for name in streams}
    fewer = {name: Batch({key: t[:-1] for key, t in each.tensors.items()}, each.keys[:-1]) for name, each in full.items()}
    with counted() as less:
        forward_and_backward(fewer)
    method.zero_grad(set_to_none=True)  # adding to gradients would be further kernels
    with Launches() as launches, counted() as more:
        forward_and_backward(full)
    with launches:
        optimizer.step()  # makes the moments
    flops = line(less.get_total_flops(), more.get_total_flops(), paper.rows, size)
    taken: dict[str, list[float]] = {"compute": [], "update": []}
    for _ in range(rounds):
        for name, call in (("compute", partial(forward_and_backward, full)), ("update", optimizer.step)):
            began = time.process_time()
            call()
            taken[name].append(time.process_time() - began)
    compute, update = (statistics.median(values) for values in taken.values())
    return Turn(flops, compute * size / paper.rows, update, launches.count)


def line(less: float, more: float, rows: int, size: int) -> float:
    """The value at `size` of the line through `less` at ``rows - 1`` and `more` at `rows`."""
    return more + (more - less) * (size - rows)


def measure(name: str, paper: Paper, rounds: int, core_rate: float) -> Cost:
    """All turns of a paper."""
    method = build(paper).train()
    recipe = paper.recipe
    tokens = {
        stream: padded_length(LENGTHS[paper.texts], config.batch_size, cast(Any, config).max_length)
        for stream, config in recipe.streams.items()
        if config.texts
    }
    return Cost(
        name=name,
        row=recipe.name,
        precision=recipe.run.precision,
        batches={stream: config.batch_size for stream, config in recipe.streams.items()},
        tokens=tokens,
        steps=recipe.steps(paper.samples),
        parameters=sum(p.numel() for p in cast(nn.Module, method).parameters() if p.requires_grad),
        turns={turn: measure_turn(method, paper, turn, rounds) for turn in recipe.turns},
        core_rate=core_rate,
        note=paper.note,
        stated=paper.stated,
    )


def matrix_rate(size: int = 1536, seconds: float = 2.0) -> float:
    """FLOP/s of fp32 matrix products, one thread's processor time, the fastest of all."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    torch.mm(a, b)
    taken: list[float] = []
    end = time.process_time() + seconds
    while time.process_time() < end:
        began = time.process_time()
        torch.mm(a, b)
        taken.append(time.process_time() - began)
    return 2 * size**3 / min(taken)


# --------------------------------------------------------------------------------------------------- what feeds the GPU


def picture(width: int = 500, height: int = 375) -> bytes:
    """A JPEG of about 100 KB, as ImageNet's and COCO's are: coarse shapes with some noise."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (height // 25, width // 25, 3), np.uint8)).resize((width, height))
    pixels = np.asarray(coarse, np.int16) + rng.normal(0, 12, (height, width, 3)).astype(np.int16)
    out = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def sound(rate: int, seconds: float) -> bytes:
    """A FLAC of noise that is stronger at low frequencies, as speech is."""
    rng = np.random.default_rng(0)
    wave = np.cumsum(rng.normal(0, 1, round(rate * seconds)))
    wave -= np.convolve(wave, np.ones(400) / 400, "same")
    out = io.BytesIO()
    soundfile.write(out, (wave / np.abs(wave).max() * 0.5).astype(np.float32), rate, format="FLAC")
    return out.getvalue()


def stream_rates(seconds: float) -> dict[str, float]:
    """Samples per second and core of each kind of stream: from the stored bytes to what a batch is made of."""
    jpg, text = picture(), b"a dog runs across the wet grass"
    captioned = clap.model("cyclap-s", clap.CLOTHO, "cyclap-s").streams["pairs"]
    streams: dict[str, tuple[StreamConfig, dict[str, bytes]]] = {
        "image": (visualcse.bert_base().streams["image"], {"jpg": jpg, "cls": b"3"}),
        "audio": (audiocse.bert_base().streams["audio"], {"flac": sound(16_000, 12.5), "cls": b"3"}),
        "image_text": (cyclip.model("cyclip-s").streams["pairs"], {"jpg": jpg, "txt": text}),
        "audio_text": (captioned, {"flac": sound(44_100, 22.5), "txt": text}),
        "audio_text_48k": (captioned, {"flac": sound(48_000, 10), "txt": text}),
    }
    rates = {}
    for name, (stream, fields) in streams.items():
        rng = np.random.default_rng(0)
        # mypy infers no lambda with defaults.
        rates[name] = per_second(lambda s=stream, f=fields, r=rng: s.row(RawSample("0", "0", f), r), seconds)  # type: ignore[misc]
    return rates


def per_second(call: Callable[[], object], seconds: float) -> float:
    """Calls per second of processor time, the median of all."""
    call()
    taken: list[float] = []
    end = time.process_time() + seconds
    while time.process_time() < end or len(taken) < 5:
        began = time.process_time()
        call()
        taken.append(time.process_time() - began)
    return 1 / statistics.median(taken)


# ------------------------------------------------------------------------------------------------------------------ tables


@dataclass
class Arguments:
    """What is measured and assumed."""

    papers: tuple[str, ...] = ()
    """Rows of the table; none: all."""
    utilisation: tuple[float, ...] = (0.3, 0.5)
    """Assumed shares of the GPU's published rate; the second half of the tables uses the first."""
    launch_microseconds: float = 10.0
    """Assumed for starting one operation; small steps on fast GPUs are bound by it."""
    trials: int = 32
    """Of a sweep."""
    share: float = 0.35
    """Of all steps of a sweep that ASHA runs."""
    measured: tuple[str, ...] = ()
    """``visualcse=812.5``: `time/samples_per_second` of a run of your own, in place of the assumption."""
    rounds: int = 2
    """Steps that are timed."""
    seconds: float = 2.0
    """For each of the small measurements."""
    json: Path | None = None
    """Where all numbers are written too."""


def fill(cost: Cost, a: Arguments) -> None:
    """The hours, from the FLOPs."""
    launch = a.launch_microseconds * 1e-6
    cost.launch_hours = cost.steps * cost.launches * launch / HOUR

    def at(peak: float) -> dict[str, float]:
        seconds = {share: gpu_step_seconds(cost.step_flops, cost.launches, peak, share, launch) for share in a.utilisation}
        return {f"{share:.0%}": cost.steps * value / HOUR for share, value in seconds.items()}

    for name, gpu in GPUS.items():
        cost.gpu_hours[name], cost.fp32_gpu_hours[name] = at(gpu.bf16), at(gpu.fp32)
        cost.sweep_hours[name] = {key: sweep_hours(value, a.trials, a.share) for key, value in cost.gpu_hours[name].items()}


def rates_given(given: Sequence[str]) -> dict[str, float]:
    """``name=number`` parted. Raises ValueError for anything else."""
    rates = {}
    for item in given:
        name, _, number = item.partition("=")
        if name not in papers() or not number.replace(".", "", 1).isdigit():
            raise ValueError(f"--measured {item!r}: write PAPER=SAMPLES_PER_SECOND; papers: {', '.join(papers())}")
        rates[name] = float(number)
    return rates


def hours(value: float) -> str:
    """Two significant digits, or a whole number."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def mark(cost: Cost, value: float) -> str:
    """Hours, with an asterisk where starting kernels is what they are spent on."""
    return hours(value) + ("*" if value <= cost.launch_hours else "")


def cost_table(costs: Sequence[Cost], a: Arguments) -> str:
    """The Markdown table of the papers."""
    shares = [f"{share:.0%}" for share in a.utilisation]
    head = ["recipe", "batches", "tokens", "steps", "TFLOP/step", "total FLOP", "core-hours here (share of matrix rate)"]
    head += [f"{gpu} hours at {' / '.join(shares)}" for gpu in GPUS]
    head += [f"{a.trials} trials, A100 hours"]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for cost in costs:
        row = [
            f"`{cost.row}`",
            " + ".join(f"{size} {name}" for name, size in cost.batches.items()),
            " + ".join(str(length) for length in cost.tokens.values()),
            f"{cost.steps:,}",
            f"{cost.step_flops / 1e12:.3g}",
            f"{cost.flops:.2g}",
            f"{hours(cost.core_hours)} ({cost.core_share:.0%})",
            *(" / ".join(mark(cost, cost.gpu_hours[gpu][share]) for share in shares) for gpu in GPUS),
            " / ".join(hours(cost.sweep_hours["A100"][share]) for share in shares),
        ]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def check_table(costs: Sequence[Cost]) -> str:
    """What the papers' own times mean."""
    lines = ["| recipe | stated | utilisation that this implies |", "|---|---|---|"]
    for cost in costs:
        if cost.stated is not None and cost.implied is not None:
            lines.append(f"| `{cost.row}` | {cost.stated.where} | {cost.implied:.1%} |")
    return "\n".join(lines)


def stream_table(costs: Sequence[Cost], rates: dict[str, float], share: float, launch: float) -> str:
    """Cores that keep one GPU busy."""
    lines = [
        f"| recipe, stream | samples/s and core | {' | '.join(f'{gpu}: samples/s, cores' for gpu in GPUS)} |",
        "|---|---|" + "---|" * len(GPUS),
    ]
    for cost in costs:
        for kind, name in STREAMS.get(cost.name, {}).items():
            cells = []
            for gpu in GPUS.values():
                seconds = gpu_step_seconds(cost.step_flops, cost.launches, gpu.bf16, share, launch)
                used = cost.batches[name] / seconds
                cells.append(f"{used:,.0f}, {cores(used, rates[kind])}")
            lines.append(f"| `{cost.row}` {name}: {STORED[kind]} | {rates[kind]:,.0f} | {' | '.join(cells)} |")
    return "\n".join(lines)


STREAMS = {
    "visualcse": {"image": "image"},
    "audiocse": {"audio": "audio"},
    "cyclip": {"image_text": "pairs"},
    "clap": {"audio_text": "pairs", "audio_text_48k": "pairs"},
}
STORED = {
    "image": "JPEG 500 x 375 -> 2 crops of 224",
    "audio": "FLAC 12.5 s, 16 kHz -> 1,024 frames",
    "image_text": "JPEG 500 x 375 -> 224",
    "audio_text": "FLAC 22.5 s, 44.1 kHz -> 10 s, 48 kHz",
    "audio_text_48k": "FLAC 10 s, 48 kHz",
}
"""What is stored, and what a step gets of it; the log-mel spectrogram is made on the GPU."""


def main(a: Arguments) -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    keep_freed_memory()
    known = papers()
    if wrong := [name for name in a.papers if name not in known]:
        raise ValueError(f"--papers {' '.join(wrong)}: allowed: {', '.join(known)}")
    given = rates_given(a.measured)
    began, core_rate = time.perf_counter(), matrix_rate(seconds=a.seconds)
    costs = []
    for name in a.papers or known:
        costs.append(measure(name, known[name], a.rounds, core_rate))
        fill(costs[-1], a)
        if name in given:
            costs[-1].measured_hours = hours_at(costs[-1].steps, sum(costs[-1].batches.values()), given[name])
        print(f"{name}: {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
    rates = stream_rates(a.seconds)
    print(f"One core here: {core_rate / 1e9:.0f} GFLOP/s in fp32 matrix products.\n")
    print(cost_table(costs, a), "\n")
    print(check_table(costs), "\n")
    for cost in costs:
        if cost.measured_hours is not None:
            print(f"{cost.row}: {hours(cost.measured_hours)} h at {given[cost.name]:g} samples/s (measured);", end=" ")
            print(f"sweep of {a.trials}: {hours(sweep_hours(cost.measured_hours, a.trials, a.share))} h\n")
    print(stream_table(costs, rates, a.utilisation[0], a.launch_microseconds * 1e-6))
    if a.json is not None:
        extra = ("step_flops", "flops", "launches", "step_seconds", "core_hours", "core_share", "implied")
        rows = [{**asdict(cost), **{name: getattr(cost, name) for name in extra}} for cost in costs]
        content = {"core_rate": core_rate, "stream_rates": rates, "arguments": asdict(a) | {"json": None}, "papers": rows}
        a.json.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
