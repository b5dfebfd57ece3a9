"""Heads: the models that learners use.

A head maps a ragged batch to one number per masked token or per state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import assert_never

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional as F
from transformers import PreTrainedModel

from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.types import HeadKind, SamplingParams
from lockstep.distributed.penalties import EarlierTokens, apply_penalties, find_earlier
from lockstep.distributed.ranks import ALONE, RankMesh
from lockstep.distributed.sampling import find_likeliest, hidden_scores, token_scores
from lockstep.losses.base import Outputs
from lockstep.models.cut import RowShare
from lockstep.models.exact.linear import exact_product
from lockstep.models.exact.model import find_multiple, is_exact
from lockstep.models.folder import carries_state
from lockstep.models.laid_out import LaidOut, read_masked, read_values
from lockstep.models.last_layer import compute_needed_states, takes_read
from lockstep_logprobs.collectives import sum_gradient
from lockstep_logprobs.kernel import runs_fused
from lockstep_logprobs.mesh import own_range
from lockstep_logprobs.shard import WHOLE, Shard
from lockstep_logprobs.topk import vocab_topk

PLAIN = SamplingParams(max_tokens=1)
"""The model's own distribution, for batches without sampling parameters."""

_LARGE = 1e4
_ROWS = 256
"""Tokens per chunk of logits if only the likeliest token is needed."""


def scores_tokens(head: HeadKind) -> bool:
    """True if a head gives log-probabilities of tokens; other heads give one number per state."""
    match head:
        case "logits":
            return True
        case "value" | "reward":
            return False
        case _:
            assert_never(head)


def scores_sequences(head: HeadKind) -> bool:
    """True if a head gives one number per sequence, like a classifier."""
    match head:
        case "reward":
            return True
        case "logits" | "value":
            return False
        case _:
            assert_never(head)


def _has_bias(head: HeadKind) -> bool:
    """True if the head's linear unit has a bias."""
    match head:
        case "value":
            return True
        case "logits" | "reward":
            return False
        case _:
            assert_never(head)


def canonical_name(name: str) -> str:
    """A parameter's name in the Hugging Face checkpoint, from its name in a `LogitsHead`."""
    # peft's name of a map with an adapter
    return name.removeprefix("lm.").replace(".base_layer.", ".")


def name_in_folder(backbone: str, name: str) -> str:
    """The name of a head's parameter in the files of a causal language model.

    `backbone` is the name of the model's backbone.
    """
    if name.startswith("backbone."):
        return f"{backbone}.{canonical_name(name.removeprefix('backbone.'))}"
    if name.startswith("value."):  # the name in sequence classifiers of transformers
        return f"score.{name.removeprefix('value.')}"
    return canonical_name(name)


class LogitsHead(nn.Module):
    """A causal language model that scores the masked tokens of a batch.

    Args:
        lm: The model.
        ranks: Ranks that hold the model together.
        products: Whether `logits_are_products` holds; None: try it.
    """

    def __init__(
        self, lm: PreTrainedModel, ranks: RankMesh = ALONE, products: bool | None = None
    ) -> None:
        super().__init__()
        self.lm, self._ranks, self._side_by_side = lm, ranks, carries_state(lm.config)
        self._products = logits_are_products(lm) if products is None else products
        if ranks.size("tp") == 1:
            compute_needed_states(lm)

    def lay_out(self, batch: Batch, share_prefixes: bool = False) -> LaidOut:
        """Lays out a batch for the model."""
        how = self._side_by_side, find_multiple(self.lm), share_prefixes
        return LaidOut.from_batch(batch, self._ranks, read_masked, *how)

    def forward(self, batch: Batch) -> Outputs:
        laid = batch if isinstance(batch, LaidOut) else self.lay_out(batch)
        return policy_outputs(laid, partial(self._logits_at, laid.cut))

    def _logits_at(self, cut: RowShare, state_m: Tensor) -> VocabularyLogits:
        if not self._products:
            # logits_to_keep picks the same columns of every row; 0: all
            kept = state_m if cut.rows == 1 else 0
            logits_mV = self.lm(**cut.model_inputs, logits_to_keep=kept).logits.flatten(0, 1)
            if cut.rows > 1:
                logits_mV = logits_mV.index_select(0, state_m)
            return HeadLogits(logits_mV, WHOLE, is_exact(self.lm))
        head = self.lm.get_output_embeddings()
        assert isinstance(head, nn.Linear)
        hidden_mD = states_at(self.lm.base_model, cut, state_m)
        return LogitProducts(hidden_mD, *own_rows(head.weight, self._ranks), is_exact(self.lm))


class ValueHead(nn.Module):
    """A backbone with one linear unit, fp32, no dropout: V(x_<t) is read at the state of t − 1."""

    def __init__(
        self,
        backbone: PreTrainedModel,
        seed: int,
        ranks: RankMesh = ALONE,
        head: HeadKind = "value",
    ) -> None:
        super().__init__()
        self.backbone, self._ranks, self._side_by_side = (
            backbone,
            ranks,
            carries_state(backbone.config),
        )
        self._size = int(backbone.config.get_text_config().hidden_size)
        self._seed = seed
        self._head: HeadKind = head
        self.value = value_unit(self._size, head)
        if ranks.size("tp") == 1:
            compute_needed_states(backbone)
        with torch.no_grad():
            for name, tensor in self.first_weights().items():
                self.get_parameter(name).copy_(tensor)

    def lay_out(self, batch: Batch, share_prefixes: bool = False) -> LaidOut:
        """Lays out a batch for the model."""
        how = self._side_by_side, find_multiple(self.backbone), share_prefixes
        return LaidOut.from_batch(batch, self._ranks, read_values, *how)

    def forward(self, batch: Batch) -> Outputs:
        laid = batch if isinstance(batch, LaidOut) else self.lay_out(batch)
        unit = partial(sum_rows, self.value) if is_exact(self.backbone) else self.value
        return value_outputs(laid, partial(states_at, self.backbone, laid.cut), unit)

    def first_weights(self) -> dict[str, Tensor]:
        """Initial weights of the unit, by parameter name."""
        return first_value_weights(self._size, self._seed, self._head)


@dataclass(frozen=True)
class HeadLogits:
    """This rank's columns of the logits of m states [m, v]; `exact` makes rows batch-invariant."""

    logits_mv: Tensor
    shard: Shard
    exact: bool = False

    def score_tokens(
        self, token: Tensor, sampling: SamplingParams, entropy: bool, earlier: EarlierTokens | None
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities of tokens, [m] or [m, K], and the entropy [m] or None.

        `earlier` tokens are penalized.
        """
        if earlier is None:
            logits_mv = self.logits_mv
        else:
            logits_mv = apply_penalties(self.logits_mv, earlier, sampling, self.shard)
        return token_scores(logits_mv, token, sampling, self.shard, self.exact, entropy)

    def find_likeliest(self, k: int) -> tuple[Tensor, Tensor]:
        """Tokens and their log-probabilities, [m, k] each, in the order of
        `sampling.find_likeliest`.
        """
        return find_likeliest(self.logits_mv, k, self.shard, self.exact)

    def find_greedy_token(self) -> Tensor:
        """The likeliest token of the full vocabulary, int64 [m]; no gradient."""
        return vocab_topk(self.logits_mv, 1, self.shard)[1][:, 0]


@dataclass(frozen=True)
class LogitProducts:
    """Logits as products of hidden states [m, D] and this rank's vocabulary head rows [v, D]."""

    hidden_mD: Tensor
    weight_vD: Tensor
    shard: Shard
    exact: bool = False

    def score_tokens(
        self, token: Tensor, sampling: SamplingParams, entropy: bool, earlier: EarlierTokens | None
    ) -> tuple[Tensor, Tensor | None]:
        few = token.dim() == 1 or token.shape[1] < len(self.weight_vD)
        # On a GPU, scores from hidden states and from logits have the same bits only if both
        # multiply in the same way.
        few = few and not (self.exact and runs_fused(self.hidden_mD))
        if few and not sampling.needs_logits:
            how = sampling, self.shard, self.exact, entropy
            return hidden_scores(self.hidden_mD, self.weight_vD, token, *how)
        return self._compute_logits().score_tokens(token, sampling, entropy, earlier)

    def find_likeliest(self, k: int) -> tuple[Tensor, Tensor]:
        return self._compute_logits().find_likeliest(k)

    @torch.no_grad()
    def find_greedy_token(self) -> Tensor:
        """The likeliest token, as in `HeadLogits`; at most `_ROWS` tokens' logits are in memory."""
        multiply = exact_product if self.exact else F.linear
        shard = self.shard
        parts = self.hidden_mD.split(_ROWS)
        return torch.cat(
            [
                HeadLogits(multiply(part_rD, self.weight_vD), shard).find_greedy_token()
                for part_rD in parts
            ]
        )

    def _compute_logits(self) -> HeadLogits:
        multiply = exact_product if self.exact else F.linear
        logits_mv = multiply(sum_gradient(self.hidden_mD, self.shard.group), self.weight_vD)
        return HeadLogits(logits_mv, self.shard, self.exact)


VocabularyLogits = HeadLogits | LogitProducts


def policy_outputs(batch: LaidOut, at: Callable[[Tensor], VocabularyLogits]) -> Outputs:
    """Computes a batch's requested outputs at masked tokens, with logits only for these.

    Args:
        batch: A batch of N tokens.
        at: Maps indices of states in this rank's share, int64 [m], to their logits.
    """
    own = batch.read.into
    vocabulary = at(batch.read.state)

    def spread_column(column: Tensor) -> Tensor:
        return batch.cut.spread_column(column, own, batch.tokens.numel())

    if batch.top_k:
        token_mK, logprob_mK = vocabulary.find_likeliest(batch.top_k)
        return Outputs(top_token=spread_column(token_mK), top_logprob=spread_column(logprob_mK))
    sampling = batch.sampling or PLAIN
    token_m = batch.tokens[own]
    if "top_token" in batch.token:
        token_m = torch.cat([token_m[:, None], batch["top_token"][own]], 1)
    earlier = find_earlier(batch, own) if sampling.penalizes else None
    logprob, entropy_m = vocabulary.score_tokens(token_m, sampling, batch.entropy, earlier)
    logprob = spread_column(logprob)
    entropy_N = None if entropy_m is None else spread_column(entropy_m)
    if token_m.dim() == 1:
        return Outputs(logprob=logprob, entropy=entropy_N)
    first_N = spread_column(vocabulary.find_greedy_token())
    return Outputs(
        logprob=logprob[:, 0], entropy=entropy_N, top_logprob=logprob[:, 1:], first_token=first_N
    )


def value_outputs(
    batch: LaidOut, at: Callable[[Tensor], Tensor], unit: Callable[[Tensor], Tensor]
) -> Outputs:
    """The requested values V(x_<t) of a batch, and V after each sequence's last token, fp32.

    Args:
        batch: A batch of N tokens in B sequences.
        at: Maps indices of states in this rank's share, int64 [m], to the last hidden states [m,
            D].
        unit: The linear unit of the value head.
    """
    count = batch.tokens.numel()
    hidden_mD = at(batch.read.state)
    with torch.autocast(hidden_mD.device.type, enabled=False):
        output_m = unit(hidden_mD.float()).squeeze(-1)
    values = batch.cut.spread_column(output_m, batch.read.into, count + len(batch))
    return Outputs(value=values[:count], final_value=values[count:])


def sum_rows(unit: nn.Linear, x: Tensor) -> Tensor:
    """A linear unit of one column whose rows do not depend on their number, as products do."""
    total = (x * unit.weight).sum(-1, keepdim=True)
    if unit.bias is None:
        return total
    return total + unit.bias


def value_unit(size: int, head: HeadKind) -> nn.Linear:
    """The linear unit of a value or reward head."""
    return nn.Linear(size, 1, bias=_has_bias(head))


def first_value_weights(size: int, seed: int, head: HeadKind) -> dict[str, Tensor]:
    """Initial weights of a head's unit, by parameter name."""
    # A final norm leaves states of norm about √size, so initial values have a standard deviation of
    # about 0.1.
    weight = torch.empty(1, size, device="cpu")
    weight.normal_(0.0, 0.1 / math.sqrt(size), generator=keyed.build_generator("value head", seed))
    bias = {"value.bias": torch.zeros(1, device="cpu")} if _has_bias(head) else {}
    return {"value.weight": weight, **bias}


def own_rows(weight: Tensor, ranks: RankMesh) -> tuple[Tensor, Shard]:
    """This rank's rows of a vocabulary head, and the tokens of that shard."""
    if not isinstance(weight, DTensor):
        return weight, WHOLE
    start, _ = own_range(weight.shape[0], ranks.size("tp"), ranks.index("tp"))
    return weight.to_local(), Shard(start, ranks.group("tp"))


@torch.no_grad()
def logits_are_products(lm: PreTrainedModel) -> bool:
    """True if logits are the last hidden states times the head's weight: no bias, cap or factor.

    Tried on a few tokens: the head's input must be the backbone's output, and the head's output
    must come out unchanged, even if it is so large that a cap would show. For that test it is
    replaced by numbers up to 10,000.
    """
    head = lm.get_output_embeddings()
    batch = Batch(torch.arange(3, device=lm.device), torch.tensor([3]))
    cut = RowShare.from_batch(batch, ALONE, carries_state(lm.config))
    if type(head) is not nn.Linear or head.bias is not None:
        return False
    seen: list[Tensor] = []

    def replace_logits(_: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        ramp = torch.linspace(-_LARGE, _LARGE, output.shape[-1], device=output.device)
        seen.extend([inputs[0][0], ramp.to(output.dtype).expand_as(output)])
        return seen[1]

    lm.eval()
    hook = head.register_forward_hook(replace_logits)
    try:
        logits = lm(**cut.model_inputs).logits[0]
    finally:
        hook.remove()
    return torch.allclose(seen[0], compute_states(lm.base_model, cut)) and torch.equal(
        logits, seen[1][0]
    )


def states_at(backbone: nn.Module, cut: RowShare, state_m: Tensor) -> Tensor:
    """Some of the last hidden states [m, D]; the last layer computes only those if it can."""
    if takes_read(backbone):
        assert isinstance(backbone, PreTrainedModel), "a backbone of `transformers`"
        # Padded to the multiple of the other layers, so that exact products need not pad; only that
        # is proven.
        filling = state_m.new_zeros(-len(state_m) % find_multiple(backbone))
        hidden = backbone(**cut.model_inputs, read=torch.cat([state_m, filling])).last_hidden_state
        return hidden.flatten(0, 1)[: len(state_m)]
    return compute_states(backbone, cut).index_select(0, state_m)


def compute_states(backbone: nn.Module, cut: RowShare) -> Tensor:
    """The last hidden states of this rank's tokens [n, D], full on all tensor-parallel ranks."""
    hidden = backbone(**cut.model_inputs).last_hidden_state
    return (hidden.full_tensor() if isinstance(hidden, DTensor) else hidden).flatten(0, 1)
