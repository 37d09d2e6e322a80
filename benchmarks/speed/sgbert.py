"""A step of SG-OPT: ours, against the published algorithm written plainly on sentence-transformers.

    python -m benchmarks.speed.sgbert [--shape 12x768] [--steps 8] [--rounds 3]

Both sides start from one folder and take the same tokenised sentences of STS-B and the same optimizer settings.
"""

from __future__ import annotations

import copy
import tempfile
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
import tyro
from sentence_transformers.sentence_transformer import modules as st
from sentence_transformers.util import cos_sim
from torch import Tensor, nn
from transformers import AutoTokenizer, BertConfig, BertModel

from benchmarks.timer import Target, datasets, device, peaks, race, ratios, show
from data.batch import Batch
from evaluation.registry import make_tasks
from models.text_encoder import TextEncoder
from pipelines.parts import SMALL_ENCODER
from trainers.engine.optim import TurnOptimizer
from trainers.method import Method
from trainers.recipe import OptimConfig
from trainers.sgbert import SGBERTConfig

OPTIM = OptimConfig(lr=5e-5, betas=(0.9, 0.9), eps=1e-6, schedule="constant")
TEMPERATURE, REGULARISER = 0.01, 0.1
POOLING: Literal["cls_before_pooler"] = "cls_before_pooler"

Tokens = dict[str, Tensor]


class Plain(nn.Module):
    """SG-OPT with its regulariser (Kim et al., ACL 2021) on sentence-transformers: tokens (B, L) to the loss.

    As in the released code the teacher's parameters take no gradient, so that nothing is recorded of it, and there is no
    `no_grad` around it. It stays in evaluation mode, as in the paper. Projection 0 leaves the head out.
    """

    def __init__(self, folder: str, projection: int = 4096) -> None:
        super().__init__()
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

    def forward(self, tokens: Tokens) -> Tensor:
        sentence = self.pooling(self.student(dict(tokens)))["sentence_embedding"]
        states = torch.stack(self.teacher(dict(tokens))["all_layer_embeddings"], dim=1)
        views = states.masked_fill(tokens["attention_mask"][:, None, :, None] == 0, -1e9).max(dim=2).values
        return self.contrast(self.head(sentence), self.head(views)) + REGULARISER * self.distance()

    def contrast(self, sentence: Tensor, views: Tensor) -> Tensor:
        """L_opt3, layer after layer: sentence (B, p), views (B, l+1, p)."""
        batch, layers = views.shape[:2]
        others = ~torch.eye(batch, dtype=torch.bool, device=sentence.device)
        positives, negatives = [], []
        for k in range(layers):
            similarities = cos_sim(sentence, views[:, k]) / TEMPERATURE
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


def method_loss(method: Method, tokens: Tokens) -> Tensor:
    """The sum of the weighted losses, as the engine forms it."""
    output = method({"text": Batch({name: tensor[:, None] for name, tensor in tokens.items()})})
    return torch.stack([method.loss_weights.get(name, 1.0) * value for name, value in output.losses.items()]).sum()


def random_bert(shape: str, folder: str) -> str:
    """Write a BERT of random weights, `shape` layers x width, with the small encoder's tokenizer."""
    layers, width = (int(number) for number in shape.split("x"))
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "intermediate_size": 4 * width}
    torch.manual_seed(0)
    BertModel(BertConfig(num_attention_heads=max(1, width // 64), **sizes)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(SMALL_ENCODER).save_pretrained(folder)
    return folder


def main(shape: str | None = None, steps: int = 8, rounds: int = 3, batch: int = 16) -> None:
    """Print a table and a row. `shape`: LAYERSxWIDTH, such as 12x768, of a BERT of random weights."""
    data, on = datasets("sts"), device()
    sentences = make_tasks(("stsb-train",), data)[0].sentences()
    with tempfile.TemporaryDirectory() as place:
        folder = SMALL_ENCODER if shape is None else random_bert(shape, place)
        tokenize = partial(TextEncoder.from_pretrained(folder).tokenize, max_length=128)
        texts = [sentences[start : start + batch] for start in range(0, steps * batch, batch)]
        batches = [{name: tensor.to(on) for name, tensor in tokenize(part).items()} for part in texts]

        settings = SGBERTConfig(variant="paper", loss="opt3", head_width=4096)
        method = settings.build(TextEncoder.from_pretrained(folder, pooling=POOLING)).to(on).train()
        optimizer = TurnOptimizer(method, "text", OPTIM, 10**6, "fp32")

        def our_block() -> None:
            for tokens in batches:
                optimizer.backward(method_loss(method, tokens))
                optimizer.step()

        model = Plain(folder).to(on).train()
        learned = [p for p in model.parameters() if p.requires_grad]
        adam = torch.optim.AdamW(learned, OPTIM.lr, OPTIM.betas, OPTIM.eps, weight_decay=0)

        def plain_block() -> None:
            for tokens in batches:
                model(tokens).backward()
                nn.utils.clip_grad_norm_(learned, 1.0)
                adam.step()
                adam.zero_grad()

        took, encoder = race({"ours": our_block, "plain": plain_block}, rounds), shape or "small encoder"
        show(f"{steps} steps of {batch} sentences, {encoder}, {on}", took, steps)
        what = f"SG-OPT, {encoder}, batch {batch}: ours / the algorithm written plainly, steps per second"
        found = ratios(took["plain"], took["ours"])
        Target(area="papers", what=what, at_least=1, measured=found, peak_mb=peaks(took)).report()


if __name__ == "__main__":
    tyro.cli(main, description=__doc__)
