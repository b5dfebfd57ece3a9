"""Attention: scales, windows, masks, slopes, sinks, and kernels that leave some of them out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import sdpa_mask

from benchmarks.doctor_faults.fault import Change, Fault
from benchmarks.doctor_faults.means import integers, layers
from benchmarks.doctor_faults.sides import Alteration, HFSide
from benchmarks.doctor_faults.surroundings import altered, always, around, configured, drawn, inverse, mixed, whole
from benchmarks.doctor_faults.ways import hide, read_padded, reading
from lockstep.doctor.base import Conditions

_WINDOW, _TILE = 32, 32


def wider_windows(more: int) -> Alteration:
    """The windows of a layer's attention module are wider than its configuration says."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            if layer.self_attn.sliding_window is not None:
                layer.self_attn.sliding_window += more

    return alter


def padded_head_scale(channels: int) -> Alteration:
    """Heads are padded for a kernel, which scales by their padded size."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.self_attn.scaling = (layer.self_attn.head_dim + channels) ** -0.5

    return alter


def by_kernel(name: str, seen: Callable[[Tensor], Tensor] | None = None) -> type[HFSide]:
    """Attention by another kernel; `seen`: of ours, without sinks, from what it makes of queries and keys."""
    if seen is not None:
        AttentionInterface.register(name, _attending(seen))
        AttentionMaskInterface.register(name, sdpa_mask)

    class ByKernel(HFSide):
        def attention(self, conditions: Conditions) -> str:
            return conditions.kernel or name

    return ByKernel


def _attending(seen: Callable[[Tensor], Tensor]) -> Callable[..., tuple[Tensor, None]]:
    def attend(
        module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scaling: float, **_: Any
    ) -> tuple[Tensor, None]:
        causal = mask is None and query.shape[2] > 1
        out = F.scaled_dot_product_attention(
            seen(query), seen(key), value, mask, is_causal=causal, scale=scaling, enable_gqa=True
        )
        return out.transpose(1, 2), None

    return attend


def integer_kernel(step: float) -> type[HFSide]:
    """A kernel that multiplies queries and keys as integers, with a scale for each tile of tokens."""
    return by_kernel(
        f"integers_{round(1 / step)}",
        lambda x: torch.cat([integers(tile, step, -2, -1) for tile in x.split(_TILE, 2)], 2),
    )


def mask_from_ids(count: int) -> type[HFSide]:
    """The trainer makes its mask from ids: what looks like padding is taken for padding, also inside of a text."""
    return reading(
        lambda usual, model, sequences, prompts: read_padded(
            model, sequences, lambda padded, pads: {"attention_mask": (padded >= count).long()}
        ),
        alone=True,
    )


def windowed(sees: Callable[[Tensor, Tensor, int, int], Tensor]) -> type[HFSide]:
    """Sliding layers see keys that a function of places of queries and keys, their number and the window allows."""

    def own(usual: Any, model: PreTrainedModel, sequences: Any, prompts: list[int]) -> Any:
        def masks(padded: Tensor, pads: Tensor) -> dict[str, Any]:
            # Pads lie behind all that sees, so that one mask is right for each row.
            place = torch.arange(padded.shape[1])
            query, key = place[:, None], place[None]
            near = sees(query, key, len(place), model.config.sliding_window)
            both = {"full_attention": key <= query, "sliding_attention": (key <= query) & near}
            return {"attention_mask": {name: hide(seen, model.dtype) for name, seen in both.items()}}

        return read_padded(model, sequences, masks)

    return reading(own, alone=True)


def windows_in_blocks(block: int) -> type[HFSide]:
    """The trainer's block-sparse kernel lets a token see the whole block of keys that its window begins in."""
    return windowed(lambda query, key, count, window: key >= (query - window + 1).clamp(min=0) // block * block)


def one_rank_back(ranks: int) -> type[HFSide]:
    """A sequence lies on ranks in parts, each gets keys from the one before it only, and windows reach further back."""

    def sees(query: Tensor, key: Tensor, count: int, window: int) -> Tensor:
        part = -(-count // ranks)
        return (key > query - window) & (key // part >= query // part - 1)

    return windowed(sees)


def slopes_of_the_first_rank(ranks: int) -> Alteration:
    """Heads lie on ranks, and each rank gives its heads the slopes of the first ones, as if it had no others before."""

    def alter(model: PreTrainedModel) -> None:
        decoder: Any = model.base_model
        usual = decoder.build_alibi_tensor

        def built(mask: Tensor, heads: int, dtype: torch.dtype) -> Tensor:
            bias_BH1T = usual(mask, heads, dtype).unflatten(0, (-1, heads))
            return bias_BH1T[:, : heads // ranks].repeat(1, ranks, 1, 1).flatten(0, 1)

        decoder.build_alibi_tensor = built

    return alter


def sinks_of(strength: float) -> Alteration:
    """Sinks weigh on average as much as so many keys of score 0, on both sides."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            layer.self_attn.sinks += torch.tensor(strength).log().to(layer.self_attn.sinks.dtype)

    return alter


def counted_by_stage(size: int) -> Alteration:
    """Each stage of the trainer counts its layers from 0, and attention takes a factor that depends on the number."""

    def alter(model: PreTrainedModel) -> None:
        usual = [layer.self_attn.lambda_init for layer in layers(model)]
        for place, layer in enumerate(layers(model)):
            layer.self_attn.lambda_init = usual[place % size]

    return alter


FAULTS = (
    Fault(8, 1, "other sliding window", ("sliding_window",), "infer", "tokens", (1000, 4),
          configured(sliding_window=lambda m: _WINDOW + round(m)), around("window")),
    Fault(108, 2, "window of the module", ("sliding_window",), "train", "tokens too wide", (500, 2),
          altered(whole(wider_windows)), around("olmo", "torch", "hf")),
    Fault(209, 3, "scale of padded heads", ("attention",), "infer", "channels of padding", (44, 1),
          altered(whole(padded_head_scale)), around("cohere", "hf", "torch")),
    Fault(216, 3, "attention in integers", ("kernel", "attention"), "infer", "step, of a tile's largest",
          (1 / 7, 1 / 127), mixed(integer_kernel), around("phi2", "torch", "hf")),
    # The plain kernel of the trainer caps scores; the fused one of the engine ignores the cap.
    Fault(308, 4, "scores capped by one kernel", ("kernel", "attention", "softcap"), "infer", "1 / cap", (1.0, 0.1),
          lambda _: (Change(by_kernel("eager"), side="train"),),
          around("vaultgemma", "hf", "hf", attn_logit_softcapping=lambda m: 1 / m)),
    Fault(320, 4, "mask from ids", ("attention", "left_padding"), "train", "ids", (40, 4),
          mixed(whole(mask_from_ids)), around("jetmoe", "hf", "torch")),
    Fault(410, 5, "windows in the other layers", ("sliding_window",), "train", "1 / window", (1 / 8, 1 / 100),
          configured(layer_types=["full_attention", "sliding_attention"] * 2),
          around("cwm", "hf", "torch", drawn(top_p=0.95), sliding_window=lambda m: round(1 / m))),
    Fault(513, 6, "slopes of the first rank", ("attention",), "infer", "ranks − 1", (3, 1),
          altered(lambda m: slopes_of_the_first_rank(1 + round(m)), tensor_parallel_size=lambda m: 1 + round(m)),
          around("bloom", "hf", "hf", drawn(temperature=1.1, top_p=0.92))),
    Fault(610, 7, "windows in blocks", ("sliding_window",), "train", "keys in a block", (48, 2),
          mixed(whole(windows_in_blocks)), around("cohere", "hf", "torch")),
    Fault(614, 7, "kernel without sinks", ("attention", "kernel"), "infer", "keys that sinks stand for", (30.0, 1.0),
          always(by_kernel("sinkless", lambda x: x)), around("gpt oss", "hf", "hf", alter=sinks_of)),
    Fault(706, 8, "layers counted by stage", ("attention",), "train", "1 / layers of a stage", (1.0, 1 / 3),
          altered(inverse(counted_by_stage)), around("diffllama", "hf", "hf", drawn(top_k=50)), split="held-out"),
    Fault(709, 8, "windows reach one rank back", ("sliding_window",), "train", "ranks", (8, 3),
          mixed(whole(one_rank_back)), around("ministral", "hf", "torch"), split="held-out"),
)  # fmt: skip
