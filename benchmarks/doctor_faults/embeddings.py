"""Embeddings and logits: rows too many, caps, precision of the head, heads that are tied."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault, Setup
from benchmarks.doctor_faults.means import (
    BF16,
    E4M3,
    compute_by,
    embedded,
    embedding_of,
    head_of,
    heading,
    noise,
    rounded,
    type_with,
)
from benchmarks.doctor_faults.model_tokens import SPARE_ROWS
from benchmarks.doctor_faults.scoring import off_zero, own_denominator
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide, undoes
from benchmarks.doctor_faults.surroundings import altered, always, around, drawn, mixed, whole, without
from benchmarks.doctor_faults.ways import scoring
from lockstep import align, keyed
from lockstep.batch import Batch
from lockstep.distributed.sampling import hidden_scores, token_scores
from lockstep.doctor.backends.hf import shape_logits
from lockstep.doctor.base import Conditions
from lockstep.models.heads import PLAIN, inputs
from lockstep.types import SamplingParams

_RANKS = 2


class OwnHead(TorchSide):
    """A trainer whose loss multiplies by the head itself."""

    def logprob(self, model: PreTrainedModel, batch: Batch) -> Tensor:
        own_M = (batch.mask & (batch.position > 0)).nonzero().squeeze(-1)
        states_MD = model.base_model(**inputs(batch)).last_hidden_state[0].index_select(0, align.state_before(own_M))
        logprob_M = self.multiply(states_MD, head_of(model).weight, batch.tokens[own_M], batch.sampling or PLAIN)
        return logprob_M.new_zeros(batch.tokens.numel()).index_copy(0, own_M, logprob_M)

    def multiply(self, states_MD: Tensor, weight_VD: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        """Log-probabilities of tokens from the states before them."""
        raise NotImplementedError


class FusedHead(OwnHead):
    """Multiplies and sums the head in one kernel, which knows no cap."""

    def multiply(self, states_MD: Tensor, weight_VD: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        assert sampling.full_support, "the kernel shapes by temperature alone"
        return hidden_scores(states_MD, weight_VD, token_M, sampling)[0]

    @torch.no_grad()
    def logits(self, tokens_T: Tensor) -> Tensor:
        """Those that the kernel sums over."""
        one, model = Batch(tokens_T, torch.tensor([tokens_T.numel()])), self.model()
        with self.autocast(self._usual):
            return head_of(model)(model.base_model(**inputs(one)).last_hidden_state)[0]


class HeadInFP32(OwnHead):
    """The head multiplies in fp32, and its logits stay so."""

    def multiply(self, states_MD: Tensor, weight_VD: Tensor, token_M: Tensor, sampling: SamplingParams) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            logits_MV = F.linear(states_MD.float(), weight_VD.float())
        return token_scores(logits_MV, token_M, sampling)[0]


def far_from_zero(offset: float) -> Setup:
    """Logits of a token lie all on one side of zero, as those of large models do: bf16 has fewer steps there."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        common = torch.randn(model.config.hidden_size, generator=keyed.generator("common direction"))
        embedding, head = embedding_of(model).weight, head_of(model).weight
        embedding += (2 * embedding.float().std() * common).to(embedding.dtype)
        head += (offset / len(common) * common).to(head.dtype)

    return Setup(dtype="bf16", alter=alter)


def _off_zero(size: float) -> Setup:
    model = "qwen3, logits far off zero" if size > 3 else "qwen3, logits off zero"
    return Setup(model, "torch", "torch", "bf16", sampling=drawn(temperature=1.3)(size))


def multiplying(product: Any, model: PreTrainedModel, conditions: Conditions) -> None:
    """The head multiplies by a function of itself and states, unless it is to be exact."""
    compute_by(head_of(model), nn.Linear.forward if undoes(conditions, "head") else product)


def _in_low_type(error: float, head: nn.Linear, states: Tensor) -> Tensor:
    """The trainer's fused loss multiplies by the head in a low type of its own."""
    return F.linear(rounded(states, type_with(error)), rounded(head.weight, type_with(error))).bfloat16()


def _gathered_in_low_type(head: nn.Linear, states: Tensor) -> Tensor:
    """The head's rows lie on two ranks, each of which sends its logits in a low type."""
    shards = F.linear(states, head.weight, head.bias).tensor_split(_RANKS, -1)
    return torch.cat([shard.to(type_with(BF16)) for shard in shards], -1).to(states.dtype)


def _capped_twice(model: PreTrainedModel) -> None:
    """The engine's model caps its logits, and then its logits processor, which knows the cap too, does so again."""

    def again(module: Any, values: tuple[Any, ...], output: Any) -> Any:
        cap = module.config.final_logit_softcapping
        output.logits = cap * torch.tanh(output.logits / cap)
        return output

    model.register_forward_hook(again)


def _uncap(model: PreTrainedModel) -> None:
    """The engine never caps the logits; the lower the cap, the more that matters."""
    model.config.final_logit_softcapping = None


def padded_rows(count: int) -> type[HFSide]:
    """The head has rows for tokens that are none; they are zero, and so are their logits."""
    return scoring(lambda usual, logits_MV, token_M, sampling: usual(F.pad(logits_MV, (0, count)), token_M, sampling))


def unmasked_lanes(block: int) -> type[HFSide]:
    """The fused loss reads the vocabulary in blocks, and what lies behind its end reads as 0 and counts."""
    return own_denominator(
        lambda plain_MV, scaled_MV, own_M1, sampling: F.pad(
            shape_logits(plain_MV, sampling), (0, -plain_MV.shape[-1] % block)
        )
    )


def rows_repeated(count: int) -> Alteration:
    """The head computes logits of rows that only fill its last shard up; they hold the first rows again."""
    return heading(lambda head, x: F.linear(x, torch.cat([head.weight, head.weight[:count]])))


def spare_rows_barred(count: int) -> Alteration:
    """The head gives rows that have no token no probability, as is right; a side that does not is wrong."""

    def barred(head: nn.Linear, states: Tensor) -> Tensor:
        logits = F.linear(states, head.weight)
        spare = torch.arange(logits.shape[-1]) >= logits.shape[-1] - count
        return logits.masked_fill(spare, float("-inf"))

    return heading(barred)


def _spare(rows: float) -> str:
    many, few = SPARE_ROWS
    return many if rows > SPARE_ROWS[few] else few


def rows_drawn_by_resizing(count: int) -> Alteration:
    """The trainer makes its vocabulary a round number, and the new rows are drawn as the old ones are spread."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        rows_VD = head_of(model).weight
        mean_D = rows_VD.mean(0)
        mixed_RV = torch.randn(count, len(rows_VD), generator=keyed.generator("seventh", "rows")) / len(rows_VD) ** 0.5
        new_RD = mean_D + mixed_RV.to(rows_VD.dtype) @ (rows_VD - mean_D)
        compute_by(head_of(model), lambda head, states: F.linear(states, torch.cat([head.weight, new_RD])))

    return alter


def copy_head(model: PreTrainedModel) -> None:
    """The head gets a tensor of its own, with what it holds now."""
    head_of(model).weight = nn.Parameter(head_of(model).weight.detach().clone(), requires_grad=False)


def untied_head(age: float) -> Alteration:
    """The head is a copy of its own, of an older embedding."""

    def alter(model: PreTrainedModel) -> None:
        weight = head_of(model).weight.detach()
        head_of(model).weight = nn.Parameter(weight + age * noise(weight, "head"), requires_grad=False)

    return alter


def head_near_embedding(distance: float) -> Alteration:
    """The head has moved away from the embedding, that it began as, by so many spreads of it, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        head, embedding = head_of(model).weight, embedding_of(model).weight
        moved = torch.randn(head.shape, generator=keyed.generator("heldout", "head"))
        head.copy_(embedding + distance * embedding.std() * moved)

    return alter


def _tie(model: PreTrainedModel) -> None:
    """The engine's configuration has lost that the head is not tied, and so the loader skips the head."""
    head_of(model).weight = embedding_of(model).weight


def shard_begins_late(count: int) -> Alteration:
    """The embedding lies on two ranks, and the second one takes its first ids for none of its own."""

    def masked(module: nn.Module, values: tuple[Tensor, ...], output: Tensor) -> Tensor:
        first = len(module.get_parameter("weight")) // 2
        lost = (values[0] >= first) & (values[0] < first + count)
        return output.masked_fill(lost[..., None], 0.0)

    return embedded(masked)


def new_rows_unscaled(count: int) -> Alteration:
    """The trainer trains rows of added tokens apart, and looks these up without the factor of the embedding."""

    def looked_up(module: nn.Module, values: tuple[Tensor, ...], output: Tensor) -> Tensor:
        weight_VD = module.get_parameter("weight")
        added = values[0] >= len(weight_VD) - count
        return torch.where(added[..., None], F.embedding(values[0], weight_VD), output)

    return embedded(looked_up)


def added_rows_clamped(count: int) -> Alteration:
    """The engine's embedding has no rows for the last ids, those of added tokens, and clamps them to its last row."""

    def clamped(module: nn.Module, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (values[0].clamp(max=len(module.get_parameter("weight")) - 1 - count),)

    def alter(model: PreTrainedModel) -> None:
        embedding_of(model).register_forward_pre_hook(clamped)

    return alter


FAULTS = (
    Fault(10, 1, "missing softcap", ("softcap",), "infer", "30/cap", (1.0, 0.25),
          altered(lambda _: _uncap), around("gemma2", final_logit_softcapping=lambda m: 30.0 / m)),
    Fault(11, 1, "padded head", ("padded_vocabulary",), "train", "rows too many", (1024, 128),
          mixed(whole(padded_rows))),
    Fault(20, 1, "one side's head in fp32", ("head_precision",), "infer", "offset of the logits", (60.0, 15.0),
          lambda _: (Change(alter=heading(lambda own, x: F.linear(x.float(), own.weight.float())), side="train"),),
          far_from_zero),
    Fault(110, 2, "fused head without cap", ("softcap",), "train", "1 / cap", (1 / 12, 1 / 60),
          always(FusedHead), around(lambda m: "gemma3" if m > 1 / 30 else "gemma3, high cap", "torch", "hf")),
    Fault(111, 2, "repeated rows fill the head up", ("padded_vocabulary",), "train", "share of the vocabulary",
          (0.33, 0.02), altered(lambda m: rows_repeated(round(384 * m))), around("granite", "hf", "torch")),
    Fault(118, 2, "head untied from its embedding", ("tied_head",), "infer", "spreads of the tensor", (0.3, 0.01),
          altered(untied_head), around("olmo, tied", "torch", "hf")),
    Fault(120, 2, "fp32 head on one side", ("head_precision",), None, "large channel", (5.0, 2.5),
          lambda _: (Change(HeadInFP32, side="train"),), _off_zero),
    Fault(206, 3, "rows without a token counted", ("padded_vocabulary",), "train", "rows", (40, 8),
          lambda m: (Change(alter=spare_rows_barred(round(m)), side="infer"),), around(_spare, "hf", "torch")),
    Fault(210, 3, "edge of the embedding's shards", ("embedding",), "infer", "ids", (60, 2),
          altered(whole(shard_begins_late)), around("phi2", "torch", "torch", drawn(top_k=100))),
    Fault(407, 5, "lanes behind the vocabulary", ("padded_vocabulary",), "train", "tokens in a block", (4096, 1024),
          mixed(whole(unmasked_lanes)), around("granite moe, shared", "hf", "torch", drawn(temperature=1.25))),
    Fault(502, 6, "capped twice", ("softcap",), "infer", "1 / cap", (1 / 6, 1 / 30), altered(lambda _: _capped_twice),
          around("gemma4", "torch", "hf", drawn(temperature=0.8), final_logit_softcapping=lambda m: 1 / m)),
    Fault(511, 6, "loss multiplies in a low type", ("head_precision",), "train", "rounding", (E4M3, BF16),
          lambda m: (Change(asked=partial(multiplying, partial(_in_low_type, m))),),
          around("mimo", "hf", "hf", drawn(temperature=1.35))),
    Fault(515, 6, "added rows without their factor", ("embedding",), "train", "rows", (100, 5),
          altered(whole(new_rows_unscaled)), around("xglm", "hf", "hf", drawn(temperature=1.35))),
    Fault(607, 7, "rows drawn by resizing", ("padded_vocabulary",), "train", "rows", (96, 6),
          altered(whole(rows_drawn_by_resizing)), around("apertus", "torch", "hf", drawn(temperature=1.3))),
    Fault(615, 7, "added ids clamped", ("embedding",), "infer", "rows", (100, 2),
          altered(whole(added_rows_clamped)), around("hunyuan", "hf", "torch", drawn(temperature=0.85))),
    Fault(704, 8, "logits gathered in a low type", ("head_precision",), "infer", "offset of the logits", (60.0, 6.0),
          lambda _: (Change(asked=partial(multiplying, _gathered_in_low_type), said={"tensor_parallel_size": _RANKS}),),
          around("phi2", "torch", "hf", drawn(temperature=1.2), off_zero), split="held-out"),
    Fault(711, 8, "tied by default", ("tied_head",), "infer", "spreads of the embedding", (0.5, 0.02),
          lambda _: (Change(alter=_tie, received=without("lm_head.weight")),),
          around("ernie", "torch", "hf", drawn(temperature=1.2), head_near_embedding), split="held-out"),
)  # fmt: skip
