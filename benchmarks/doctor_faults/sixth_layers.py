"""Sixth faults of a model's parts, and of the distribution it gives: biases, routers, sums, slopes, heads, lists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel, SuppressTokensLogitsProcessor

from benchmarks.doctor_faults.fault import Change
from benchmarks.doctor_faults.means import rounded, type_with
from benchmarks.doctor_faults.second_layers import partial_sums
from benchmarks.doctor_faults.second_scoring import parallel
from benchmarks.doctor_faults.sides import Alteration, HFSide, TorchSide, undoes
from benchmarks.doctor_faults.third_scoring import drawing_through
from lockstep import keyed
from lockstep.doctor.base import USUAL, Conditions
from lockstep.types import SamplingParams

_RANKS = 4
_BLOCK = 8
_FIRST_BARRED = 3
Drawn = tuple[Tensor, Tensor]


def capped_twice(model: PreTrainedModel) -> None:
    """The engine's model caps its logits, and then its logits processor, which knows the cap too, does so again."""

    def again(module: Any, values: tuple[Any, ...], output: Any) -> Any:
        cap = module.config.final_logit_softcapping
        output.logits = cap * torch.tanh(output.logits / cap)
        return output

    model.register_forward_hook(again)


def fused_without_bias(count: int) -> Alteration:
    """The two projections into latent states are fused when a layer is loaded, their weights and not their biases."""

    def alter(model: PreTrainedModel) -> None:
        for layer in decoder_layers(model)[-count:]:
            for linear in (layer.self_attn.q_a_proj, layer.self_attn.kv_a_proj_with_mqa):
                linear.forward = partial(F.linear, weight=linear.weight)

    return alter


def expert_biases(spread: float) -> Alteration:
    """Biases that balance experts have such a spread, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for name, buffer in model.named_buffers():
            if name.endswith("expert_bias"):
                buffer.copy_(spread * torch.randn(len(buffer), generator=keyed.generator("sixth", name)))

    return alter


def biases_in_the_weights(model: PreTrainedModel) -> None:
    """The trainer's router weighs experts by the scores that it chose them by, biases included."""
    for layer in decoder_layers(model):
        if "gate" in dict(layer.feed_forward.named_children()):
            layer.feed_forward.gate.forward = _weighing_by_choice(layer.feed_forward.gate.forward)


def _weighing_by_choice(usual: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., Any]:
    def forward(states_ND: Tensor, bias_E: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits_NE, _, expert_NK = usual(states_ND, bias_E)
        weight_NK = (logits_NE.sigmoid() + bias_E).gather(1, expert_NK)
        return logits_NE, weight_NK / weight_NK.sum(-1, keepdim=True), expert_NK

    return forward


def drops_out_always(probability: float) -> Alteration:
    """A patched attention drops out by the function, whose default is training, so no mode switches it off."""

    def patched(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        return lambda x: F.dropout(F.linear(x, linear.weight, linear.bias), probability)

    def alter(model: PreTrainedModel) -> None:
        for layer in decoder_layers(model):
            layer.temporal_block.o_proj.forward = patched(layer.temporal_block.o_proj)

    return alter


def quick_reduce(step: float) -> tuple[Change, ...]:
    """The engine's ranks send their sums as integers with a scale for each block, and so they send the total."""

    class QuickReduce(TorchSide):
        def settings(self) -> Mapping[str, Any]:
            bits = round(1 / step).bit_length() + 1
            return {**super().settings(), "tensor_parallel_size": _RANKS, "quick_reduce_quantization": f"INT{bits}"}

    def reduced(linear: nn.Linear) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            parts = [_integers(part, step) for part in partial_sums(x, linear, _RANKS)]
            return _integers(torch.stack(parts).sum(0), step)

        return forward

    def alter(model: PreTrainedModel) -> None:
        module: Any
        for path, module in model.named_modules():
            if path.endswith(("o_proj", "down_proj")):
                module.forward = reduced(module)

    return (Change("infer", QuickReduce, alter),)


def _integers(x: Tensor, step: float) -> Tensor:
    blocks = x.unflatten(-1, (-1, _BLOCK))
    scale = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-9) * step
    return ((blocks / scale).round() * scale).flatten(-2)


def slopes_of_the_first_rank(ranks: int) -> tuple[Change, ...]:
    """Heads lie on ranks, and each rank gives its heads the slopes of the first ones, as if it had no others before."""

    def alter(model: PreTrainedModel) -> None:
        decoder: Any = model.base_model
        usual = decoder.build_alibi_tensor

        def built(mask: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
            bias_BH1T = usual(mask, heads, dtype).unflatten(0, (-1, heads))
            return bias_BH1T[:, : heads // ranks].repeat(1, ranks, 1, 1).flatten(0, 1)

        decoder.build_alibi_tensor = built

    return (Change("infer", parallel(ranks), alter),)


class _Swish(nn.Module):
    def __init__(self, more: float) -> None:
        super().__init__()
        self._slope = 1 + more

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self._slope * x)


def swish_of_another_model(more: float) -> Alteration:
    """The trainer's fused feed-forward has the slope inside its sigmoid that another model wanted."""

    def alter(model: PreTrainedModel) -> None:
        for layer in decoder_layers(model):
            layer.mlp.act_fn = _Swish(more)

    return alter


def new_rows_unscaled(count: int) -> Alteration:
    """The trainer trains rows of added tokens apart, and looks these up without the factor of the embedding."""

    def looked_up(module: nn.Module, values: tuple[Tensor, ...], output: Tensor) -> Tensor:
        weight_VD = module.get_parameter("weight")
        added = values[0] >= len(weight_VD) - count
        return torch.where(added[..., None], F.embedding(values[0], weight_VD), output)

    def alter(model: PreTrainedModel) -> None:
        model.get_input_embeddings().register_forward_hook(looked_up)

    return alter


def head_in_low_type(rounding: float) -> type[HFSide]:
    """The trainer's fused loss multiplies by the head in a low type of its own, whatever the model computes in."""
    dtype = type_with(rounding)

    def product(head: nn.Linear) -> Callable[[Tensor], Tensor]:
        return lambda states: F.linear(rounded(states, dtype), rounded(head.weight, dtype)).bfloat16()

    class HeadInLowType(HFSide):
        def model(self, conditions: Conditions = USUAL) -> PreTrainedModel:
            model = super().model(conditions)
            head: Any = model.get_output_embeddings()
            head.forward = partial(F.linear, weight=head.weight) if undoes(conditions, "head") else product(head)
            return model

    return HeadInLowType


def off_zero(offset: float) -> Alteration:
    """The bias of the head moves all logits by the same, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        head: Any = model.get_output_embeddings()
        head.bias += offset

    return alter


def divides_in_place(rounding: float) -> type[HFSide]:
    """To save memory the trainer divides logits by the temperature, and takes off their largest, in a low type."""
    dtype = type_with(rounding)

    class DividesInPlace(HFSide):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            if undoes(conditions, "softmax") or sampling.greedy or not sampling.full_support:
                return super().logprob(logits_MV, token_M, sampling, conditions)
            low_MV = logits_MV.to(dtype).div_(sampling.temperature)
            above_MV = (low_MV - low_MV.amax(-1, keepdim=True)).float()
            return above_MV.gather(-1, token_M[:, None])[:, 0] - above_MV.logsumexp(-1)

    return DividesInPlace


def suppressed(count: int) -> type[HFSide]:
    """The model's generation_config lists tokens to suppress, and the engine reads it."""

    barred = list(range(_FIRST_BARRED, _FIRST_BARRED + count))
    return drawing_through(lambda *_: SuppressTokensLogitsProcessor(barred))


def decoder_layers(model: PreTrainedModel) -> list[Any]:
    """Its layers."""
    decoder: Any = model.base_model
    return list(decoder.layers)
