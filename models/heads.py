"""Projection heads."""

from __future__ import annotations

from torch import Tensor, nn


class Head(nn.Module):
    """Linear, then an activation (tanh unless told): (B, d_in) -> (B, d_out). The `mlp` and `image_mlp` of the papers.

    Freshly initialised as the Hugging Face pooler is: weights normal with std .02, bias zero.
    """

    def __init__(self, d_in: int, d_out: int | None = None, activation: nn.Module | None = None) -> None:
        super().__init__()
        self.linear = nn.Linear(d_in, d_out or d_in)
        self.activation = activation or nn.Tanh()
        nn.init.normal_(self.linear.weight, std=0.02)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.linear(x))
