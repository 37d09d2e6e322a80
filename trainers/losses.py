"""The formulas: pure functions of tensors that know nothing of models, streams or processes.

Every loss is the mean over the *local* rows (N of them); what they are compared with are the rows of *all* workers
(M of them), and ``offset`` is where the local rows begin among those. In one process N = M and ``offset`` = 0. The mean
over workers of these losses is the loss of the whole batch when every worker holds equally many rows.

Half-precision inputs are computed in float32 with autocast off; float64 stays float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")


def full_precision(formula: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Run a formula in float32 (or the float64 it is given) whatever autocast says: similarities over a temperature of
    .05 reach ±20, where bfloat16 has steps of .125."""

    def full(value: object) -> object:
        return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value

    @functools.wraps(formula)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        device = next((a.device.type for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            # `full` keeps what is no tensor.
            return formula(*map(full, args), **{name: full(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return wrapped


@full_precision
def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """cos(a_i, b_j) as a matrix (N, M), from a (N, d) and b (M, d)."""
    return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T


@full_precision
def whitened(z: Tensor, z_all: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Vectors z (..., d) without the mean of z_all (..., d), those of all workers, and without its correlations: whitening
    (Su et al. 2021) by a batch (Ermolov et al. 2021, W-MSE), up to a rotation, which no cosine sees.

    `shrinkage` s has the covariance S be (1 - s) S + s trace(S) / d I: batches have fewer rows than dimensions, so a little
    is needed; 1 takes the mean off and keeps the directions.
    """
    rows = z_all.flatten(0, -2)
    mean = rows.mean(0)
    if shrinkage == 1:
        return z - mean
    covariance = (rows - mean).T @ (rows - mean) / max(1, len(rows) - 1)
    size = covariance.diagonal().mean()
    identity = torch.eye(len(mean), dtype=z.dtype, device=z.device)
    matrix = (1 - shrinkage) * covariance + shrinkage * size * identity
    # A GPU would be waited for to raise an error. There the loss is NaN, which stops a run.
    root, failed = torch.linalg.cholesky_ex(matrix, check_errors=matrix.device.type == "cpu")
    root = torch.where(failed == 0, root, torch.nan)
    return torch.linalg.solve_triangular(root, (z - mean).flatten(0, -2).T, upper=False).T.unflatten(0, z.shape[:-1])


@full_precision
def info_nce(anchors: Tensor, candidates: Tensor, temperature: float | Tensor, offset: int = 0) -> Tensor:
    """-log( e^s_it / sum_j e^s_ij ) with s = cos / temperature and t = i + offset, mean over i.

    anchors (N, d), candidates (M, d) of which row i + offset is the positive of anchor i and all others are negatives.
    """
    logits = cosine_similarity(anchors, candidates) / temperature
    return F.cross_entropy(logits, torch.arange(len(anchors), device=logits.device) + offset)


@full_precision
def simcse(
    z1: Tensor,
    z2: Tensor,
    z3: Tensor | None = None,
    temperature: float = 0.05,
    hard_negative_log_weight: float = 0.0,
    offset: int = 0,
) -> Tensor:
    """SimCSE, one direction (z1 -> z2); NonLing-CSE eq. 2 without and eq. 3 with hard negatives.

    z1 (N, d) local first views; z2 (M, d) second views and z3 (M, d) hard negatives of all workers. The log weight is
    added to the logit of an anchor's *own* hard negative only (0 is weight 1), as the released SimCSE does.
    """
    own = torch.arange(len(z1), device=z1.device)
    logits = cosine_similarity(z1, z2) / temperature
    if z3 is not None:
        hard = cosine_similarity(z1, z3) / temperature
        itself = own[:, None] + offset == torch.arange(hard.shape[1], device=hard.device)
        logits = torch.cat([logits, hard + torch.where(itself, hard_negative_log_weight, 0.0)], dim=1)
    return F.cross_entropy(logits, own + offset)


def simclr(view1: Tensor, view2: Tensor, temperature: float = 0.07, offset: int = 0) -> Tensor:
    """NonLing-CSE eq. 5 and 7: view1 (N, d) local against view2 (M, d) of all workers, one direction."""
    return info_nce(view1, view2, temperature, offset)


@full_precision
def supcon_eq4(view1: Tensor, view2: Tensor, labels: Tensor, temperature: float = 0.07, offset: int = 0) -> Tensor:
    """NonLing-CSE eq. 4 and 6 as printed: -log( sum_{j of i's class} e^s_ij / sum_{j of other classes} e^s_ij ).

    view1 (N, d) local; view2 (M, d) and labels (M,) of all workers. Positives (i itself among them) are summed inside
    one log and are absent from the denominator, so the loss can be negative.

    Raises ValueError when the batch has one class only: the denominator is then empty. On a GPU, which would have to be
    waited for, the loss is infinite instead, which stops a run.
    """
    if labels.device.type == "cpu" and (labels == labels[0]).all():
        raise ValueError(
            f"supcon_eq4: all {len(labels)} samples of the batch have label {labels[0].item()}, and equation 4 divides "
            "by the samples of other classes. Use a larger batch, shuffle the stream, or choose variant 'fixed'."
        )
    same = labels[offset : offset + len(view1), None] == labels
    logits = cosine_similarity(view1, view2) / temperature
    positives = logits.masked_fill(~same, -torch.inf).logsumexp(1)
    return (logits.masked_fill(same, -torch.inf).logsumexp(1) - positives).mean()


@full_precision
def supcon(anchors: Tensor, candidates: Tensor, labels: Tensor, temperature: float = 0.07, offset: int = 0) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, eq. 2): mean over positives of the log-probability.

    anchors (N, V, d) local samples with V views each, candidates (M, V, d) and labels (M,) of all workers. Every view
    of every sample is an anchor; its positives are the other views of its sample and all views of its class, and only
    the anchor itself is left out of the denominator.
    """
    views = anchors.shape[1]
    logits = cosine_similarity(anchors.flatten(0, 1), candidates.flatten(0, 1)) / temperature
    row = torch.arange(len(logits), device=logits.device)
    itself = row[:, None] + offset * views == torch.arange(logits.shape[1], device=logits.device)
    row_labels = labels.repeat_interleave(views)
    positive = (row_labels[row + offset * views, None] == row_labels) & ~itself
    log_prob = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    return -((log_prob * positive).sum(1) / positive.sum(1)).mean()


def nt_xent(anchors: Tensor, candidates: Tensor, temperature: float = 0.07, offset: int = 0) -> Tensor:
    """NT-Xent (Chen et al. 2020, eq. 1): `supcon` in which every sample is a class of its own. Shapes as there."""
    return supcon(anchors, candidates, torch.arange(len(candidates), device=anchors.device), temperature, offset)


def released_targets(labels: Tensor) -> Tensor:
    """Rank of each label (M,) among the sorted distinct labels of the batch: [7, 3, 7, 5] -> [2, 0, 2, 1]."""
    ordered, order = labels.sort()  # `torch.unique` would wait for a GPU
    ranks = F.pad((ordered.diff() != 0).cumsum(0), (1, 0))
    return torch.zeros_like(ranks).scatter(0, order, ranks)


@full_precision
def supcon_released(view1: Tensor, view2: Tensor, labels: Tensor, temperature: float = 0.07, offset: int = 0) -> Tensor:
    """What the released NonLing-CSE calls SupCon. DEFECTIVE, kept only to reproduce the published numbers.

    The rank of an anchor's label is used as the *column* of its positive (`released_targets`), so the target is an
    unrelated sample nearly always. view1 (N, d) local; view2 (M, d) and labels (M,) of all workers.
    """
    targets = released_targets(labels)[offset : offset + len(view1)]
    return F.cross_entropy(cosine_similarity(view1, view2) / temperature, targets)


@full_precision
def sg(c: Tensor, h: Tensor, c_all: Tensor, h_all: Tensor, temperature: float = 0.01, offset: int = 0) -> Tensor:
    """SG-BERT, L_base: NT-Xent over X = {c_1..c_b, h_1..h_b}, the mean over its 2b members, positives in the denominator.

    Students' vectors c (N, d) and their positives h (N, d), local; c_all and h_all (M, d) of all workers. The released
    code has b labels for its 2b rows and cannot run [errata 3.3].
    """
    return nt_xent(torch.stack([c, h], 1), torch.stack([c_all, h_all], 1), temperature, offset)


@full_precision
def sg_opt1(c: Tensor, c_all: Tensor, h_all: Tensor, temperature: float = 0.01, offset: int = 0) -> Tensor:
    """SG-BERT, L_opt1: only c_i are anchors, so h_i are never pulled: -log phi(c_i, h_i) / Z_i with
    Z_i = sum_{j != i} phi(c_i, c_j) + sum_j phi(c_i, h_j) and phi(u, v) = exp(cos(u, v) / temperature).

    c (N, d) local; c_all and h_all (M, d) of all workers. Mean over i.
    """
    own = torch.arange(len(c), device=c.device) + offset
    logits = cosine_similarity(c, torch.cat([h_all, c_all])) / temperature
    itself = torch.arange(logits.shape[1], device=c.device) == own[:, None] + len(h_all)
    return F.cross_entropy(logits.masked_fill(itself, -torch.inf), own)


def sg_opt2(c: Tensor, h_all: Tensor, temperature: float = 0.01, offset: int = 0) -> Tensor:
    """SG-BERT, L_opt2: `sg_opt1` without the c_j, so that c are not pushed apart: -log phi(c_i, h_i) / sum_j phi(c_i, h_j).

    c (N, d) local; h_all (M, d) of all workers.
    """
    return info_nce(c, h_all, temperature, offset)


@full_precision
def sg_opt2_released(c: Tensor, h_all: Tensor, temperature: float = 0.01, offset: int = 0) -> Tensor:
    """What the released SG-BERT computes as L_opt2. DEFECTIVE, kept only to reproduce [errata 3.4].

    Its list of negatives is cut one too late, so every anchor lacks the first: h_0, and anchor 0 lacks h_1.
    """
    own = torch.arange(len(c), device=c.device) + offset
    logits = cosine_similarity(c, h_all) / temperature
    lost = torch.arange(len(h_all), device=c.device) == (own == 0).long()[:, None]
    return F.cross_entropy(logits.masked_fill(lost, -torch.inf), own)


@full_precision
def sg_opt3(c: Tensor, h_all: Tensor, temperature: float = 0.01, offset: int = 0) -> Tensor:
    """SG-BERT, L_opt3 (SG-OPT), the mean over anchors i and layers k of
    -log( phi(c_i, h_ik) / ( phi(c_i, h_ik) + sum_{m != i} sum_n phi(c_i, h_mn) ) ).

    c (N, d) local; h_all (M, K, d): K layers of every sentence of all workers. Other layers of the anchor's own sentence
    are neither positives nor negatives. One matrix product N x (M K) serves all layers.
    """
    row = torch.arange(len(c), device=c.device)
    logits = (cosine_similarity(c, h_all.flatten(0, 1)) / temperature).unflatten(1, h_all.shape[:2])  # (N, M, K)
    itself = torch.arange(len(h_all), device=c.device) == row[:, None] + offset
    negatives = logits.masked_fill(itself[..., None], -torch.inf).flatten(1).logsumexp(1, keepdim=True)
    return -F.logsigmoid(logits[row, row + offset] - negatives).mean()


@full_precision
def contrastive(
    items: Tensor, texts: Tensor, items_all: Tensor, texts_all: Tensor, scale: float | Tensor, offset: int = 0
) -> Tensor:
    """CLIP's symmetric loss (Radford et al. 2021): the mean of `info_nce` from items to texts and from texts to items,
    whose logits are `scale` times the cosine.

    items and texts (N, d) local, row i of both a pair; items_all and texts_all (M, d) of all workers.
    """
    return (info_nce(items, texts_all, 1 / scale, offset) + info_nce(texts, items_all, 1 / scale, offset)) / 2


@full_precision
def c_cyclic(items: Tensor, texts: Tensor, items_all: Tensor, texts_all: Tensor) -> Tensor:
    """CyCLIP's cross-modal consistency: (1/M) sum_jk ( <I_j, T_k> - <I_k, T_j> )^2, without the logit scale.

    Unit rows, shapes as in `contrastive`. Zhao et al. 2023 prints the sum without 1/M [errata 4.2].
    """
    return (items @ texts_all.T - texts @ items_all.T).square().sum(1).mean()


@full_precision
def i_cyclic(items: Tensor, texts: Tensor, items_all: Tensor, texts_all: Tensor) -> Tensor:
    """CyCLIP's in-modal consistency: (1/M) sum_jk ( <I_j, I_k> - <T_j, T_k> )^2, likewise."""
    return (items @ items_all.T - texts @ texts_all.T).square().sum(1).mean()


def squared_distance(weights: Iterable[Tensor], others: Iterable[Tensor]) -> Tensor:
    """SG-BERT, L_reg = ||theta_F - theta_T||^2, summed over pairs of tensors of one shape; no gradient to `others`.

    No root is taken and squared again, as the released code does: its derivative is singular where the two are equal.
    `mse_loss` keeps no copy of the differences for the backward.
    """
    parts = [F.mse_loss(a, b.detach(), reduction="sum") for a, b in zip(weights, others, strict=True)]
    return torch.stack(parts).sum()


@full_precision
def grouped_cosine(p: Tensor, z: Tensor, size: int | None = None) -> Tensor:
    """GCLSR's loss: minus the cosine of predictions and targets, of each group of `size` dimensions; the mean of all.

    p, z (..., d). Without `size` one group of d, which is SimSiam's. (The paper prints neither the minus sign nor the
    second view [errata 5.4].)
    """
    size = size or p.shape[-1]
    return -F.cosine_similarity(p.unflatten(-1, (-1, size)), z.unflatten(-1, (-1, size)), dim=-1).mean()


@full_precision
def spread(x: Tensor) -> Tensor:
    """Mean over dimensions of the standard deviation over the batch of unit vectors, times sqrt(d); x (N, d).

    1 for independent directions, 0 for one vector (SimSiam's measure of collapse).
    """
    return F.normalize(x, dim=-1).std(0, correction=0).mean() * x.shape[-1] ** 0.5


@full_precision
def long_span(
    z: Tensor, positives: Tensor, negatives: Tensor, temperature: float = 0.07, kept: Tensor | None = None
) -> Tensor:
    """MoCoUTRL eq. 6: -log( e^s(z_i, z_i+) / sum_j e^s(z_i, z_j-) ), s = cos / temperature, mean over i.

    z, positives (N, d) local; negatives (M, d) of all workers, of which `kept` (M,) bool count (all, if not given). The
    positive is not in the denominator, so the loss can be negative [errata 6.2]. Where no negative counts, the first term
    alone is left.
    """
    logits = cosine_similarity(z, negatives) / temperature
    if kept is None:
        below = logits.logsumexp(1)
    else:  # a finite mask: the gradient of `where` would be nan with an infinite one
        below = logits.masked_fill(~kept, torch.finfo(logits.dtype).min).logsumexp(1)
        below = torch.where(kept.any(), below, 0)
    return (below - F.cosine_similarity(z, positives) / temperature).mean()


@full_precision
def nt_xent_with_negatives(
    anchors: Tensor,
    candidates: Tensor,
    negatives: Tensor,
    temperature: float = 0.07,
    offset: int = 0,
    kept: Tensor | None = None,
) -> Tensor:
    """MoCoUTRL as released: NT-Xent over 3B sentences, of which x- are nobody's positive: 2N anchors, each for its other
    view against that one and 3M - 2 negatives.

    anchors (N, 2, d) local x and x+; candidates (M, 2, d) and negatives (M, d) of all workers, of which `kept` (M,) bool
    count (all, if not given).
    """
    logits = cosine_similarity(anchors.flatten(0, 1), torch.cat([candidates.flatten(0, 1), negatives])) / temperature
    own = torch.arange(len(logits), device=logits.device) + 2 * offset
    logits = logits.scatter(1, own[:, None], -torch.inf)
    if kept is not None:
        logits[:, len(candidates) * 2 :].masked_fill_(~kept, -torch.inf)
    return F.cross_entropy(logits, own ^ 1)


@full_precision
def token_eq10(target: Tensor, synonym: Tensor, antonym: Tensor) -> Tensor:
    """MoCoUTRL eq. 10 of every row: MSE(e_ori, w_syn) - MSE(e_ori, w_ant), all (N, d) -> (N,). Unbounded below."""
    return (target - synonym).square().mean(1) - (target - antonym).square().mean(1)


@full_precision
def token_triplet(target: Tensor, synonym: Tensor, antonym: Tensor, margin: float = 1.0) -> Tensor:
    """Eq. 10 with a bound, of every row: max(0, margin + |e - s|² - |e - a|²), s and a at unit length; all (N, d) -> (N,).

    The target e stays as it is: eq. 21 has moved it off the unit sphere on purpose, or it was left as it is (Table 3).
    """
    s, a = F.normalize(synonym, dim=1), F.normalize(antonym, dim=1)
    return ((target - s).square().sum(1) - (target - a).square().sum(1) + margin).relu()


def token_rows(states: Tensor, ids: Tensor, dictionary: Tensor, otherwise: Tensor) -> Tensor:
    """What the released MoCoUTRL computes as its token loss. DEFECTIVE, kept only to reproduce it [errata 6.3].

    The places at which original and antonym sentence differ are listed over the batch; they should be one a triplet, and
    all are read in the *first* triplet, whose states there are drawn to the dictionary's rows of the tokens there, that of
    the antonym sentence with its sign turned.

    states (B, 3, L, d) of x, x+, x- and ids (B, 3, L); dictionary (V, d). If the list has not B places (a replaced word of
    several sub-tokens, after which all others are elsewhere), `otherwise`: the code takes the sentence loss once more.
    """
    differs = ids[:, 0] != ids[:, 2]
    places = (~differs).flatten().argsort(stable=True)[: len(ids)] % ids.shape[2]  # `nonzero` would wait for a GPU
    signs = 1 - 2 * (torch.arange(3, device=ids.device) == 2).to(states)[:, None, None]
    loss = F.mse_loss(states[0, :, places] * signs, F.embedding(ids[0, :, places], dictionary))
    return torch.where(differs.sum() == len(ids), loss, otherwise)


def gaussian_shell(target: Tensor, mean: float = 0.005, deviation: float = 0.005 / 3) -> Tensor:
    """MoCoUTRL eq. 21: e / ||e|| - d, d ~ N(mean, deviation²) in every dimension; target (N, d)."""
    return F.normalize(target, dim=1) - torch.randn_like(target) * deviation - mean


@torch.no_grad()
def move(dictionary: Tensor, table: Tensor, momentum: float, printed: bool = False) -> None:
    """MoCoUTRL eq. 1, in place: xi <- m xi + (1 - m) phi, both (V, d). `printed` has the paper's sign, m - 1, with which the
    dictionary goes to minus the table [errata 6.1]."""
    dictionary.mul_(momentum).add_(table, alpha=momentum - 1 if printed else 1 - momentum)
