"""BERT-flow (Li et al. 2020): an invertible network maps sentence embeddings to a standard normal distribution."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from multicse.evaluation.encoders.whitening import PostProcessed
from multicse.evaluation.task import Encoder, EvaluationError

logger = logging.getLogger(__name__)

STEPS, WIDTH = 9, 32  # the authors' 3 levels of 3 steps, and the width of their coupling networks
BATCH, RATE = 32, 1e-3


class FlowStep(nn.Module):
    """Invertible step of Glow as simplified by BERT-flow: actnorm, fixed permutation, additive coupling.

    The actnorm learns the scale and bias of standardised components. This is equivalent to actnorm without standardisation,
    but makes the updates of the optimizer independent of the scale of the components.

    Args:
        size: Dimension of the embeddings.
    """

    mean: Tensor
    std: Tensor
    order: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("std", torch.ones(size))
        self.register_buffer("order", torch.randperm(size))
        self.bias = nn.Parameter(torch.zeros(size))
        self.log_scale = nn.Parameter(torch.zeros(size))
        self.fixed = size // 2
        last = nn.Linear(WIDTH, size - self.fixed)
        nn.init.zeros_(last.weight)  # the coupling starts as the identity
        nn.init.zeros_(last.bias)
        self.shift = nn.Sequential(nn.Linear(self.fixed, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), last)

    def start_from(self, x: Tensor) -> None:
        """Initialise from x (N, d): outputs have mean 0 and variance 1; constant components keep their scale."""
        self.mean, std = x.mean(0), x.std(0, correction=0)
        self.std = torch.where(std > 1e-6 * (self.mean.abs() + std.max()), std, 1.0)

    def log_determinant(self) -> Tensor:
        """Return log |det dy/dx|, which does not depend on x: permutation and shift preserve volume."""
        return (self.log_scale - self.std.log()).sum()

    def forward(self, x: Tensor) -> Tensor:
        """Transform x (N, d) to y (N, d)."""
        y = ((x - self.mean) / self.std * self.log_scale.exp() + self.bias)[:, self.order]
        return torch.cat([y[:, : self.fixed], y[:, self.fixed :] + self.shift(y[:, : self.fixed])], dim=1)


class Flow(nn.Sequential):
    """Normalizing flow of `STEPS` steps from x (N, d) to z (N, d) with a standard normal prior.

    Args:
        size: Dimension of the embeddings.
    """

    def __init__(self, size: int) -> None:
        super().__init__(*(FlowStep(size) for _ in range(STEPS)))

    @property
    def steps(self) -> list[FlowStep]:
        """Return the steps in order."""
        return [step for step in self if isinstance(step, FlowStep)]

    @torch.no_grad()
    def start_from(self, x: Tensor) -> None:
        """Initialise the actnorms one after the other from data x (N, d)."""
        for step in self.steps:
            step.start_from(x)
            x = step(x)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log p(x) (N,) in nats: the log density of z plus the log-determinant."""
        z = self(x)
        prior = -0.5 * (z.square() + math.log(2 * math.pi)).sum(1)
        return prior + torch.stack([step.log_determinant() for step in self.steps]).sum()


def fit_flow(vectors: np.ndarray, seed: int = 0) -> Flow:
    """Fit a flow by maximum likelihood for one epoch on the CPU: Adam, learning rate 1e-3, batch size 32.

    Args:
        vectors: (N, d), embeddings to fit.
        seed: Seed of the initial weights and of the order.
    """
    x = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))
    if x.shape[1] < 2:
        raise EvaluationError(f"a flow needs vectors of at least 2 dimensions; these have {x.shape[1]}")
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        flow = Flow(x.shape[1])
        flow.start_from(x)
        optimizer = torch.optim.Adam(flow.parameters(), lr=RATE)
        for rows in torch.randperm(len(x)).split(BATCH):
            loss = -flow.log_prob(x[rows]).mean() / x.shape[1]
            if not torch.isfinite(loss):
                raise EvaluationError("the loss of the flow is not finite; the embeddings are out of range")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    logger.info("flow fitted on %d sentences; last loss %.3f nats per dimension", len(x), loss.item())
    return flow.eval()


class Flowed(PostProcessed):
    """Encoder followed by a flow that is fitted for one epoch, reproducibly by seed.

    Args:
        encoder: Encoder of the sentences.
        sentences: Sentences to fit the flow on.
        seed: Seed of the fit.
        source: Name of the sentences, for reports.
    """

    def __init__(self, encoder: Encoder, sentences: Sequence[str], *, seed: int = 0, source: str = "given") -> None:
        super().__init__(encoder, sentences, "flow", source)
        self.fitted_on |= {"seed": seed, "epochs": 1}
        self.flow = fit_flow(self.encoded.vectors, seed)

    @torch.no_grad()
    def transform(self, vectors: np.ndarray) -> np.ndarray:
        """Transform embeddings (N, d) to z (N, d)."""
        return self.flow(torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32))).numpy()
