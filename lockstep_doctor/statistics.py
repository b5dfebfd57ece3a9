"""Statistics of two sides' log-probabilities for the same tokens.

A token to which one side gives no probability (−inf or NaN) is a support violation. Such tokens are
counted, also as outliers and in capped figures; unbounded figures leave them out, so that one such
token does not hide the rest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

CAP = 3.0
"""Cap of |Δ| in `capped_mult_prob_error`, nats; it makes the variance finite."""
_QUANTILES = {"median_abs": 0.5, "p99": 0.99, "p999": 0.999, "max_abs": 1.0}
_LARGEST = 300.0  # nats


@dataclass(frozen=True)
class TokenComparison:
    """Two sides on the same M tokens of B sequences, in order.

    Attributes:
        train: Log-probabilities of the training side, nats, float64 [M].
        infer: Log-probabilities of the inference side, nats, float64 [M].
        lengths: Compared tokens of each sequence, int64 [B]; their sum is M.
        position: Position of each token in its sequence, prompt included, int64 [M].
        cluster: Cluster of each sequence, int64 [B]; sequences of a cluster (answers to one prompt,
            repeats) are not independent. None: all are independent.
    """

    train: Tensor
    infer: Tensor
    lengths: Tensor
    position: Tensor
    cluster: Tensor | None = None

    @property
    def delta(self) -> Tensor:
        """Δ, training side minus inference side, nats, float64 [M]; ±inf if one side gives no
        probability, 0 if both.
        """
        train = _without_nan(self.train)
        infer = _without_nan(self.infer)
        return torch.where(train == infer, 0.0, train - infer)

    @property
    def supported(self) -> Tensor:
        """True where both sides give the token a probability, bool [M]."""
        return self.train.isfinite() & self.infer.isfinite()

    @property
    def row_index(self) -> Tensor:
        """Sequence of each token, int64 [M]."""
        return torch.repeat_interleave(torch.arange(self.lengths.numel()), self.lengths)

    @property
    def token_index(self) -> Tensor:
        """Number of each token among the compared tokens of its sequence, from 1, int64 [M]."""
        starts = torch.cumsum(self.lengths, 0) - self.lengths
        return torch.arange(self.train.numel()) - torch.repeat_interleave(starts, self.lengths) + 1

    def swap_sides(self) -> TokenComparison:
        """The comparison with swapped sides."""
        return TokenComparison(self.infer, self.train, self.lengths, self.position, self.cluster)

    def select_tokens(self, mask_M: Tensor) -> TokenComparison:
        """The masked tokens; `token_index` then counts only these."""
        lengths = torch.zeros_like(self.lengths).index_add_(0, self.row_index, mask_M.long())
        return TokenComparison(
            self.train[mask_M], self.infer[mask_M], lengths, self.position[mask_M], self.cluster
        )

    def in_segments(self, count: int, shortest: int) -> TokenComparison:
        """The comparison with sequences cut into about `count` segments that count as independent;
        unchanged if segments would have fewer than `shortest` tokens.

        This bounds figures of one long sequence (batch means); the bounds hold if correlations
        vanish within a segment.
        """
        size = self.train.numel() // count
        if size < shortest:
            return self
        lengths = list[int]()
        for own in self.lengths.tolist():
            n = max(1, own // size)
            lengths += [own // n + (k < own % n) for k in range(n)]
        return TokenComparison(self.train, self.infer, torch.tensor(lengths), self.position)

    def sum_clusters(self, *columns_M: Tensor) -> Tensor:
        """Sums of columns over each cluster and, last, its number of tokens: float64 [G, K + 1],
        over the G clusters with tokens.
        """
        if self.cluster is None:
            numbers = torch.arange(self.lengths.numel())
        else:
            numbers = self.cluster
        groups = torch.unique(numbers, return_inverse=True)[1][self.row_index]
        table = torch.stack([*columns_M, torch.ones(self.train.numel())], 1).double()
        sums = table.new_zeros(int(numbers.numel()), table.shape[1]).index_add_(0, groups, table)
        return sums[sums[:, -1] > 0]


def pool_comparisons(parts: Sequence[TokenComparison]) -> TokenComparison:
    """Concatenates comparisons; clusters stay separate."""
    clusters = []
    taken = 0
    for part in parts:
        if part.cluster is None:
            own = torch.arange(part.lengths.numel())
        else:
            own = part.cluster - int(part.cluster.min())
        clusters.append(own + taken)
        taken += int(own.max()) + 1
    return TokenComparison(
        torch.cat([part.train for part in parts]),
        torch.cat([part.infer for part in parts]),
        torch.cat([part.lengths for part in parts]),
        torch.cat([part.position for part in parts]),
        torch.cat(clusters),
    )


def compute_figures(compared: TokenComparison) -> dict[str, float]:
    """All figures by name, in nats if they have a unit; NaN only if no token is supported by both
    sides.

    Tokens count as drawn by the inference side: `k1` and `k3` estimate KL(inference ‖ training),
    and `mean_ratio`, the mean of e^Δ, is 1 in expectation if tokens were drawn from the
    distribution that was scored.
    """
    if not compared.train.numel():
        raise ValueError("no token to compare; draw responses first")
    delta = compared.select_tokens(compared.supported).delta
    size = delta.abs()
    if size.numel():
        ordered = size.sort().values
    else:
        ordered = torch.tensor([math.nan])
    return {
        "tokens": float(compared.train.numel()),
        "sequences": float((compared.lengths > 0).sum()),
        "token_mult_prob_error": mult_prob_error(delta),
        "capped_mult_prob_error": float(cap_prob_error(compared.delta).mean()),
        "k1": float(-delta.mean()),
        "k3": float((torch.expm1(delta.clamp(max=_LARGEST)) - delta.clamp(max=_LARGEST)).mean()),
        "mean_ratio": float(
            clamp_exponential(compared.select_tokens(compared.infer.isfinite()).delta).mean()
        ),
        "mean_abs": float(size.mean()),
        "rms": float(size.square().mean().sqrt()),
        **{
            name: float(ordered[math.ceil(share * ordered.numel()) - 1])
            for name, share in _QUANTILES.items()
        },
        "outlier_rate_1": float((compared.delta.abs() > 1).double().mean()),
        "sequence_ess": effective_share(sequence_weights(compared)),
        "support_violations_train": float((~compared.train.isfinite()).sum()),
        "support_violations_infer": float((~compared.infer.isfinite()).sum()),
    }


def clamp_exponential(log_M: Tensor) -> Tensor:
    """e^x, limited so that its square fits float64, [M]."""
    return log_M.clamp(max=_LARGEST).exp()


def mult_prob_error(delta_M: Tensor) -> float:
    """Mean of e^|Δ| over tokens that both sides support; NeMo RL's `token_mult_prob_error`."""
    return float(clamp_exponential(delta_M[delta_M.isfinite()].abs()).mean())


def cap_prob_error(delta_M: Tensor) -> Tensor:
    """e^min(|Δ|, `CAP`), [M]."""
    return delta_M.abs().clamp(max=CAP).exp()


def find_gap(a: Tensor, b: Tensor) -> float:
    """Root mean square of a − b, each at most `CAP`; NaN counts as `CAP`, equal infinities as 0."""
    off = torch.where(a == b, 0.0, (a - b).nan_to_num(CAP).clamp(-CAP, CAP))
    return float(off.square().mean().sqrt())


def score_tokens(logits_MV: Tensor, ids_M: Tensor) -> Tensor:
    """Log-probabilities of tokens from the logits that predict them, [M], in the type of the
    logits.
    """
    return logits_MV.log_softmax(-1).gather(-1, ids_M[:, None])[:, 0]


def sequence_weights(compared: TokenComparison) -> Tensor:
    """Log importance weights ΣΔ of the sequences with tokens, [B']; −inf if training gives no
    probability.

    Tokens to which the inference side gives no probability are left out.
    """
    rated = compared.select_tokens(compared.infer.isfinite())
    sums = torch.zeros(rated.lengths.numel(), dtype=torch.float64).index_add_(
        0, rated.row_index, rated.delta
    )
    return sums[rated.lengths > 0]


def effective_share(log_weight: Tensor) -> float:
    """Effective sample share (Σw)² / (n·Σw²), without truncation; 0 if all weights are 0."""
    count = torch.tensor(log_weight.numel())
    if not count or log_weight.max() == -math.inf:
        if count:
            return 0.0
        return math.nan
    return float(
        (2 * torch.logsumexp(log_weight, 0) - torch.logsumexp(2 * log_weight, 0)).exp() / count
    )


def _without_nan(logprob_M: Tensor) -> Tensor:
    return logprob_M.masked_fill(logprob_M.isnan(), -math.inf)
