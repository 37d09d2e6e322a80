"""Loss functions on tensors, independent of models, streams and processes.

Unless described otherwise, a loss is a scalar, the mean over the N rows of this worker (the anchors), which are compared
with the M rows of all workers; `offset` is the index of this worker's first row among the M rows. In a single process N = M
and `offset` = 0. The mean of a loss over the workers is the loss of the global batch if all workers have the same number of
rows.

Cosine similarities are divided by `temperature`, the softmax temperature.

Half-precision inputs are computed in float32 with autocast disabled; float64 inputs stay float64.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, ParamSpec

import torch
import torch.nn.functional as F
from torch import Tensor

P = ParamSpec("P")
MarginStrategy = Literal["absolute", "relative", "threshold"]


def full_precision(formula: Callable[P, Tensor]) -> Callable[P, Tensor]:
    """Decorate a formula so that it computes in float32 (float64 for float64 inputs), also under autocast.

    Similarities divided by a temperature of 0.05 reach ±20, where bfloat16 has a resolution of 0.125.
    """

    def full(value: object) -> object:
        return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value

    @functools.wraps(formula)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> Tensor:
        device = next((a.device.type for a in (*args, *kwargs.values()) if isinstance(a, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            # `full` returns other values unchanged.
            return formula(*map(full, args), **{name: full(value) for name, value in kwargs.items()})  # type: ignore[arg-type]

    return wrapped


@full_precision
def cosine_similarity(a: Tensor, b: Tensor) -> Tensor:
    """Compute the cosine similarity of all pairs of rows.

    Args:
        a: (N, d).
        b: (M, d).

    Returns:
        Matrix (N, M) of cos(a_i, b_j).
    """
    return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T


@full_precision
def whitened(z: Tensor, z_all: Tensor, shrinkage: float = 0.0) -> Tensor:
    """Whiten vectors with the mean and covariance of a batch, up to a rotation, which does not affect cosines.

    Args:
        z: Vectors of this worker, (..., d).
        z_all: Vectors of all workers, (..., d); their mean and covariance are used.
        shrinkage: Weight s in [0, 1] of the shrunk covariance (1 - s) S + s trace(S) / d I. It should be above 0, since a
            batch usually has fewer rows than dimensions. With 1 the vectors are only centred.

    Returns:
        Whitened vectors, (..., d).

    References:
        Su et al., Whitening Sentence Representations for Better Semantics and Faster Retrieval, 2021.
        Ermolov et al., Whitening for Self-Supervised Representation Learning, ICML 2021 (W-MSE).
    """
    rows = z_all.flatten(0, -2)
    mean = rows.mean(0)
    if shrinkage == 1:
        return z - mean
    covariance = (rows - mean).T @ (rows - mean) / max(1, len(rows) - 1)
    size = covariance.diagonal().mean()
    identity = torch.eye(len(mean), dtype=z.dtype, device=z.device)
    matrix = (1 - shrinkage) * covariance + shrinkage * size * identity
    # On a GPU the check would synchronise. There the loss becomes NaN instead, which stops the run.
    root, failed = torch.linalg.cholesky_ex(matrix, check_errors=matrix.device.type == "cpu")
    root = torch.where(failed == 0, root, torch.nan)
    return torch.linalg.solve_triangular(root, (z - mean).flatten(0, -2).T, upper=False).T.unflatten(0, z.shape[:-1])


@full_precision
def info_nce(
    anchors: Tensor,
    candidates: Tensor,
    temperature: float | Tensor,
    offset: int = 0,
    left_out: Tensor | None = None,
) -> Tensor:
    """Compute InfoNCE: -log( e^s_it / sum_j e^s_ij ) with s = cos / temperature and t = i + offset.

    Args:
        anchors: Embeddings of this worker, (N, d).
        candidates: Embeddings of all workers, (C, d). Row i + offset is the positive of anchor i, all others are negatives.
        temperature: Softmax temperature, scalar ().
        offset: Row of `candidates` that belongs to the first anchor.
        left_out: Mask of negatives that are left out, (N, C). If None, all are used.
    """
    logits = cosine_similarity(anchors, candidates) / temperature
    if left_out is not None:
        logits = logits.masked_fill(left_out, -torch.inf)
    return F.cross_entropy(logits, torch.arange(len(anchors), device=logits.device) + offset)


@full_precision
def false_negatives(similarities: Tensor, positives: Tensor, margin: float, strategy: MarginStrategy = "absolute") -> Tensor:
    """Return a mask (N, C) of the candidates that are too similar to an anchor to be its negatives.

    Args:
        similarities: Cosine similarities s of anchors and candidates, (N, C).
        positives: Column p of the positive of each anchor, (N,). It is never a false negative.
        margin: Margin m.
        strategy: Limit that s must exceed. `absolute`: s_p - m. `relative`: s_p (1 - m). `threshold`: m.

    References:
        Solatorio, GISTEmbed, 2024. `absolute` and `relative` are named as in sentence-transformers' `GISTEmbedLoss`.
    """
    column = positives[:, None]
    positive = similarities.gather(1, column)
    limits = {
        "absolute": positive - margin,
        "relative": positive * (1 - margin),
        "threshold": torch.full_like(positive, margin),
    }
    return (similarities > limits[strategy]).scatter(1, column, False)


@full_precision
def simcse(
    z1: Tensor,
    z2: Tensor,
    z3: Tensor | None = None,
    temperature: float = 0.05,
    hard_negative_log_weight: float = 0.0,
    offset: int = 0,
    hardness: float = 0.0,
    left_out: Tensor | None = None,
) -> Tensor:
    """Compute the SimCSE loss in one direction (z1 -> z2), optionally with hard negatives.

    Args:
        z1: First views of this worker, (N, d).
        z2: Second views of all workers, (M, d).
        z3: Hard negatives of all workers, (M, d), or None.
        temperature: Softmax temperature.
        hard_negative_log_weight: Added to the logit of an anchor's *own* hard negative only, as in the released SimCSE; 0 is
            weight 1.
        offset: Row of `z2` that belongs to the first anchor.
        hardness: Negatives with similarity s have the weight exp(hardness s), which has no gradient; 0: equal weights.
        left_out: Mask of `false_negatives`, (N, M), or (N, 2 M) with hard negatives. If None, all negatives are used.

    References:
        Gao et al., SimCSE, EMNLP 2021, eq. 4 and 5; NonLing-CSE, eq. 2 (no hard negatives) and eq. 3.
    """
    own = torch.arange(len(z1), device=z1.device) + offset
    similarities = cosine_similarity(z1, z2)
    if z3 is not None:
        similarities = torch.cat([similarities, cosine_similarity(z1, z3)], dim=1)
    logits = similarities / temperature
    if z3 is not None:
        itself = own[:, None] + len(z2) == torch.arange(logits.shape[1], device=logits.device)
        logits = logits + torch.where(itself, hard_negative_log_weight, 0.0)
    return F.cross_entropy(_weighted(logits, similarities, own, hardness, left_out), own)


def _weighted(logits: Tensor, similarities: Tensor, positives: Tensor, hardness: float, left_out: Tensor | None) -> Tensor:
    """Return logits (N, C) with the weights of negatives, and minus infinity for negatives that are left out.

    References:
        Robinson et al., Contrastive Learning with Hard Negative Samples, ICLR 2021, eq. 4, without the normalisation of the
        weights, as `hardness_strength` of sentence-transformers' `MultipleNegativesRankingLoss`.
    """
    if hardness:
        logits = logits + hardness * similarities.detach().scatter(1, positives[:, None], 0.0)
    return logits if left_out is None else logits.masked_fill(left_out, -torch.inf)


@full_precision
def supcon_eq4(view1: Tensor, view2: Tensor, labels: Tensor, temperature: float = 0.07, offset: int = 0) -> Tensor:
    """Compute the supervised loss as NonLing-CSE prints it, eq. 4 and 6 [errata 2.3].

    The loss of anchor i is -log( sum_{j of i's class} e^s_ij / sum_{j of other classes} e^s_ij ). The positives, i itself
    included, are summed inside one log and are missing in the denominator, so the loss can be negative.

    Args:
        view1: First views of this worker, (N, d).
        view2: Second views of all workers, (M, d).
        labels: Class labels of all workers, (M,).
        temperature: Softmax temperature.
        offset: Row of `view2` that belongs to the first anchor.

    Raises:
        ValueError: If all labels are equal, so that the denominator is empty. On a GPU, where the check would synchronise,
            the loss is infinite instead, which stops the run.
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
    """Compute the supervised contrastive loss, the mean over anchors of the mean over positives.

    Every view of every sample is an anchor. Its positives are the other views of the same sample and all views of samples
    with the same label; the denominator contains every view except the anchor itself.

    Args:
        anchors: Embeddings of this worker, (N, V, d), with V views per sample.
        candidates: Embeddings of all workers, (M, V, d).
        labels: Class labels of all workers, (M,).
        temperature: Softmax temperature.
        offset: Row of `candidates` that is the first row of `anchors`.

    References:
        Khosla et al., Supervised Contrastive Learning, NeurIPS 2020, eq. 2.
    """
    views = anchors.shape[1]
    logits = cosine_similarity(anchors.flatten(0, 1), candidates.flatten(0, 1)) / temperature
    row = torch.arange(len(logits), device=logits.device)
    itself = row[:, None] + offset * views == torch.arange(logits.shape[1], device=logits.device)
    row_labels = labels.repeat_interleave(views)
    positive = (row_labels[row + offset * views, None] == row_labels) & ~itself
    log_prob = logits - logits.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    return -((log_prob * positive).sum(1) / positive.sum(1)).mean()


def released_targets(labels: Tensor) -> Tensor:
    """Return the rank of each label (M,) among the sorted distinct labels: [7, 3, 7, 5] -> [2, 0, 2, 1]."""
    ordered, order = labels.sort()  # `torch.unique` would synchronise with a GPU
    ranks = F.pad((ordered.diff() != 0).cumsum(0), (1, 0))
    return torch.zeros_like(ranks).scatter(0, order, ranks)


@full_precision
def supcon_released(view1: Tensor, view2: Tensor, labels: Tensor, temperature: float = 0.07, offset: int = 0) -> Tensor:
    """Compute the loss that the released NonLing-CSE calls SupCon. DEFECTIVE, kept only to reproduce the published numbers.

    The rank of an anchor's label (`released_targets`) is used as the *column* of its positive, so the target is almost
    always an unrelated sample [errata 2.3].

    Args:
        view1: First views of this worker, (N, d).
        view2: Second views of all workers, (M, d).
        labels: Class labels of all workers, (M,).
        temperature: Softmax temperature.
        offset: Row of `view2` that belongs to the first anchor.
    """
    targets = released_targets(labels)[offset : offset + len(view1)]
    return F.cross_entropy(cosine_similarity(view1, view2) / temperature, targets)


@full_precision
def contrastive(
    items: Tensor, texts: Tensor, items_all: Tensor, texts_all: Tensor, scale: float | Tensor, offset: int = 0
) -> Tensor:
    """Compute CLIP's symmetric loss: the mean of `info_nce` from items to texts and from texts to items.

    Args:
        items: Embeddings of the images or audio clips of this worker, (N, d); row i of items and texts is a pair.
        texts: Embeddings of the texts of this worker, (N, d).
        items_all: Item embeddings of all workers, (M, d).
        texts_all: Text embeddings of all workers, (M, d).
        scale: Logit scale (inverse temperature), scalar (); cosine similarities are multiplied by it.
        offset: Row of `items_all` that is the first row of `items`.

    References:
        Radford et al., Learning Transferable Visual Models From Natural Language Supervision, ICML 2021, fig. 3.
    """
    return (info_nce(items, texts_all, 1 / scale, offset) + info_nce(texts, items_all, 1 / scale, offset)) / 2


@full_precision
def consistency(a: Tensor, b: Tensor, a_all: Tensor, b_all: Tensor) -> Tensor:
    """Compute CyCLIP's consistency: (1/M) sum_jk ( <a_j, a'_k> - <b_j, b'_k> )^2, without the logit scale.

    It is in-modal if a and a' are items (images or audio clips) and b and b' texts, and cross-modal if a' are the texts and
    b' the items.

    Args:
        a: Unit vectors of the items of this worker, (N, d).
        b: Unit vectors of their texts, (N, d).
        a_all: Unit vectors a' of all workers, (M, d).
        b_all: Unit vectors b' of all workers, (M, d).

    References:
        Goel et al., CyCLIP, NeurIPS 2022; Zhao et al. 2023 prints the sum without 1/M [errata 4.2].
    """
    return (a @ a_all.T - b @ b_all.T).square().sum(1).mean()


@full_precision
def grouped_cosine(p: Tensor, z: Tensor, size: int | None = None) -> Tensor:
    """Compute GCLSR's loss: minus the mean cosine similarity of predictions and targets, per group of dimensions.

    Args:
        p: Predictions, (..., d).
        z: Targets, (..., d).
        size: Dimensions per group; it divides d. If None, one group of d dimensions, which is SimSiam's loss.

    References:
        GCLSR, equation 7; views and stop-gradient as in its code [errata 5.4].
    """
    size = size or p.shape[-1]
    return -F.cosine_similarity(p.unflatten(-1, (-1, size)), z.unflatten(-1, (-1, size)), dim=-1).mean()


@full_precision
def spread(x: Tensor) -> Tensor:
    """Compute SimSiam's measure of the collapse of vectors (N, d): 1 for independent directions, 0 if all are equal.

    It is the standard deviation over the batch of unit vectors, averaged over dimensions, times sqrt(d).
    """
    return F.normalize(x, dim=-1).std(0, correction=0).mean() * x.shape[-1] ** 0.5


@full_precision
def long_span(z: Tensor, positives: Tensor, negatives: Tensor, temperature: float, kept: Tensor) -> Tensor:
    """Compute MoCoUTRL's sentence loss as printed: -log( e^s(z_i, z_i+) / sum_j e^s(z_i, z_j-) ), s = cos / temperature.

    The positive is missing in the denominator of eq. 6, so the loss can be negative [errata 6.2]. If no negative is kept,
    only the first term remains.

    Args:
        z: Sentence vectors of this worker, (N, d).
        positives: Vectors of the synonym sentences, (N, d).
        negatives: Vectors of the antonym sentences of all workers, (M, d).
        temperature: Softmax temperature.
        kept: Mask of the negatives that are used, (M,), bool.
    """
    logits = cosine_similarity(z, negatives) / temperature
    # A finite mask: the gradient of `where` would be nan with an infinite one.
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
    hardness: float = 0.0,
    left_out: Tensor | None = None,
) -> Tensor:
    """Compute MoCoUTRL's released sentence loss: NT-Xent over 3B sentences, with the antonym sentences as negatives only.

    Each of the 2N anchors is compared with its other view and 3M - 2 negatives [errata 6.2].

    Args:
        anchors: x and x+ of this worker, (N, 2, d).
        candidates: x and x+ of all workers, (M, 2, d).
        negatives: x- of all workers, (M, d).
        temperature: Softmax temperature.
        offset: Row of `candidates` that is the first row of `anchors`.
        kept: Mask of the negatives that are used, (M,), bool. If None, all of them.
        hardness: As for `simcse`.
        left_out: Mask of `false_negatives`, (2 N, 3 M). If None, no candidate is left out.
    """
    similarities = cosine_similarity(anchors.flatten(0, 1), torch.cat([candidates.flatten(0, 1), negatives]))
    own = torch.arange(len(similarities), device=similarities.device) + 2 * offset
    logits = (similarities / temperature).scatter(1, own[:, None], -torch.inf)
    if kept is not None:
        logits[:, len(candidates) * 2 :].masked_fill_(~kept, -torch.inf)
    return F.cross_entropy(_weighted(logits, similarities, own ^ 1, hardness, left_out), own ^ 1)


@full_precision
def token_eq10(target: Tensor, synonym: Tensor, antonym: Tensor) -> Tensor:
    """Compute MoCoUTRL's token loss of every row (N,), MSE(e_ori, w_syn) - MSE(e_ori, w_ant), eq. 10 [errata 6.3].

    It has no lower bound.

    Args:
        target: Dictionary vectors of the original words, (N, d).
        synonym: States of the synonyms, (N, d).
        antonym: States of the antonyms, (N, d).
    """
    return (target - synonym).square().mean(1) - (target - antonym).square().mean(1)


@full_precision
def token_triplet(target: Tensor, synonym: Tensor, antonym: Tensor, margin: float = 1.0) -> Tensor:
    """Compute eq. 10 of every row (N,) with a margin: max(0, margin + |e - s|² - |e - a|²), s and a of unit length.

    The target e is not normalised: eq. 21 moves it off the unit sphere on purpose (`gaussian_shell`), or leaves it unchanged
    (MoCoUTRL, Table 3).

    Args:
        target: Dictionary vectors e of the original words, (N, d).
        synonym: States s of the synonyms, (N, d).
        antonym: States a of the antonyms, (N, d).
        margin: Margin in squared distances.
    """
    s, a = F.normalize(synonym, dim=1), F.normalize(antonym, dim=1)
    return ((target - s).square().sum(1) - (target - a).square().sum(1) + margin).relu()


def token_rows(states: Tensor, ids: Tensor, dictionary: Tensor, otherwise: Tensor) -> Tensor:
    """Compute the token loss of the released MoCoUTRL. DEFECTIVE, kept only to reproduce its results [errata 6.3].

    The positions at which the original and the antonym sentence differ are listed over the batch; there should be one per
    triplet. All of them are read in the *first* triplet: its states at these positions are drawn to the dictionary's rows of
    its tokens, the states of the antonym sentence with a negative sign.

    Args:
        states: States of x, x+ and x-, (B, 3, L, d).
        ids: Token ids, (B, 3, L).
        dictionary: Word embeddings, (V, d).
        otherwise: Scalar (), returned if the list does not have B positions (if a replaced word has several sub-tokens, all
            later ones are shifted). The released code then uses the sentence loss a second time.
    """
    differs = ids[:, 0] != ids[:, 2]
    places = (~differs).flatten().argsort(stable=True)[: len(ids)] % ids.shape[2]  # `nonzero` would synchronise with a GPU
    signs = 1 - 2 * (torch.arange(3, device=ids.device) == 2).to(states)[:, None, None]
    loss = F.mse_loss(states[0, :, places] * signs, F.embedding(ids[0, :, places], dictionary))
    return torch.where(differs.sum() == len(ids), loss, otherwise)


def gaussian_shell(target: Tensor) -> Tensor:
    """Perturb targets (N, d) as in MoCoUTRL eq. 21: e / ||e|| - d with d ~ N(0.005, (0.005 / 3)²) in every dimension."""
    return F.normalize(target, dim=1) - torch.randn_like(target) * (0.005 / 3) - 0.005


@torch.no_grad()
def move(dictionary: Tensor, table: Tensor, momentum: float) -> None:
    """Update the dictionary in place as in MoCoUTRL eq. 1: xi <- m xi + (1 - m) phi; it prints m - 1 [errata 6.1].

    Args:
        dictionary: Moving average xi, (V, d).
        table: Trained word embeddings phi, (V, d).
        momentum: m.
    """
    dictionary.mul_(momentum).add_(table, alpha=1 - momentum)
