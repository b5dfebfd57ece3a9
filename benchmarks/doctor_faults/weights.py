"""What a side holds: tensors under other names, in another order, in few bits."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault, Stream
from benchmarks.doctor_faults.means import E4M3, E5M2, by_blocks, integers, layers, linears, rounded, type_with
from benchmarks.doctor_faults.models import HEADS
from benchmarks.doctor_faults.sides import Alteration
from benchmarks.doctor_faults.surroundings import altered, around, drawn, inverse, whole

Way = Callable[[str, Tensor], tuple[str, Tensor]]
_MOST = 6.0
_LEVELS = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, _MOST])
"""What four bits can hold, but for the sign."""
_MOVED = 3


def carried(way: Way, **said: object) -> Change:
    """Weights come to the side another way, at first and with each refit."""

    def received(stream: Stream) -> Stream:
        return (way(name, tensor) for name, tensor in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        own = dict(model.named_parameters())
        for name, tensor in [way(name, parameter.clone()) for name, parameter in own.items()]:
            own[name].copy_(tensor)

    return Change(alter=alter, received=received, said=said)


def becoming(changed: Callable[[str, Tensor], Tensor], **said: object) -> tuple[Change, ...]:
    """Tensors become what a function makes of their name and value."""
    return (carried(lambda name, tensor: (name, changed(name, tensor)), **said),)


def swapped(first: str, second: str, *where: str) -> tuple[Change, ...]:
    """Two parts of a name are taken for each other, in names that have one of some other parts (default: in all)."""

    def way(name: str, tensor: Tensor) -> tuple[str, Tensor]:
        if where and not any(part in name for part in where):
            return name, tensor
        return (name.replace(first, second) if first in name else name.replace(second, first)), tensor

    return (carried(way),)


def last(count: float, of: int, path: str = "layers") -> tuple[str, ...]:
    """Parts of names of the last layers."""
    return tuple(f".{path}.{layer}." for layer in range(of - round(count), of))


def swapped_gate(share: float) -> Alteration:
    """The engine's name map has gate and up the wrong way round."""

    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model, share):
            gate, up = layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight
            gate.data, up.data = up.data, gate.data

    return alter


def permuted_heads(share: float) -> Alteration:
    """The engine takes the heads of the queries in another order."""

    def alter(model: PreTrainedModel) -> None:
        heads = model.config.num_attention_heads
        for layer in layers(model, share):
            weight = layer.self_attn.q_proj.weight
            weight.data = weight.data.unflatten(0, (heads, -1)).roll(1, 0).flatten(0, 1).contiguous()

    return alter


def coarse_weights(error: float) -> tuple[Change, ...]:
    """The engine holds its layers in fp8, with a scale per row, and quantizes what it loads."""
    dtype = type_with(error)

    def received(stream: Stream) -> Stream:
        return ((name, rounded(x, dtype) if "_proj." in name and x.ndim == 2 else x) for name, x in stream)

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        for layer in layers(model):
            for linear in linears(layer, ""):
                linear.weight.copy_(rounded(linear.weight, dtype))

    return (Change(alter=alter, received=received),)


def channels_rolled(count: int) -> tuple[Change, ...]:
    """The conversion of rotary channels also moves some channels of the keys' norms, the last layer's first."""

    def rolled(name: str, tensor: Tensor) -> Tensor:
        if not name.endswith("k_norm.weight"):
            return tensor
        layer = int(name.split(".layers.")[1].split(".")[0])
        channels = max(0, min(count - (5 - layer) * 16, len(tensor)))
        return torch.cat([tensor[:channels].roll(1), tensor[channels:]])

    return becoming(rolled)


def integer_groups(step: float) -> tuple[Change, ...]:
    """The engine holds projections as integers with a scale for each group of 16 columns."""

    def held(name: str, tensor: Tensor) -> Tensor:
        return by_blocks(tensor, 16, lambda x: integers(x, step)) if name.endswith("_proj.weight") else tensor

    return becoming(held)


def added_rows_reversed(count: int) -> tuple[Change, ...]:
    """The conversion puts the rows of added tokens, the last ones of the vocabulary, in another order."""

    def converted(name: str, tensor: Tensor) -> Tensor:
        return torch.cat([tensor[:-count], tensor[-count:].flip(0)]) if len(tensor) == 448 else tensor

    return becoming(converted)


def experts_in_blocks(step: float) -> tuple[Change, ...]:
    """The engine holds experts in four or eight bits, with a power of two for each block; the rest stays as it is."""

    def block(x: Tensor) -> Tensor:
        scale = torch.exp2((x.abs().amax(-1, keepdim=True) / _MOST).clamp(min=1e-9).log2().ceil())
        return (_four_bits if step >= 0.1 else _eight_bits)(x / scale) * scale

    return becoming(lambda name, x: by_blocks(x, 16, block) if ".experts." in name else x)


def _four_bits(x: Tensor) -> Tensor:
    middles = (_LEVELS[1:] + _LEVELS[:-1]) / 2
    return _LEVELS[torch.bucketize(x.abs().contiguous(), middles)] * x.sign()


def _eight_bits(x: Tensor) -> Tensor:
    return x.to(torch.float8_e4m3fn).to(x.dtype)


def in_order(order: Callable[[Tensor], Iterable[int]], *parts: str) -> tuple[Change, ...]:
    """Rows of tensors with some parts of a name come in another order."""

    def moved(name: str, x: Tensor) -> Tensor:
        return x[list(order(x))] if any(part in name for part in parts) else x

    return becoming(moved)


def _rolled_experts(x: Tensor) -> Iterable[int]:
    """Experts were moved to balance their load, and a refit writes them by the map from before."""
    return [_MOVED - 1, *range(_MOVED - 1), *range(_MOVED, len(x))]


def _by_name(x: Tensor) -> Iterable[int]:
    """The trainer's import sorts files of experts by name, so that 10 comes before 2."""
    return sorted(range(len(x)), key=str)


def _head_by_head(x: Tensor) -> Iterable[int]:
    """The trainer's import takes queries, keys and values for three blocks, and the file has them head by head."""
    return torch.arange(len(x)).unflatten(0, (HEADS, 3, -1)).transpose(0, 1).flatten().tolist()


def normal_floats(count: int) -> tuple[Change, ...]:
    """The trainer trains an adapter over a base of few bits, whose levels are quantiles; the engine has all bits."""
    level = torch.distributions.Normal(0.0, 1.0).icdf((torch.arange(count) + 0.5) / count)
    level, middles = level / level[-1], (level[1:] + level[:-1]) / (2 * level[-1])

    def block(x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-9)
        return level.to(x.dtype)[torch.bucketize((x / scale).contiguous(), middles.to(x.dtype))] * scale

    return becoming(
        lambda name, x: by_blocks(x, 8, block) if name.endswith(("_proj.weight", "_proj")) else x,
        quantization="bitsandbytes",
        **{f"load_in_{count.bit_length() - 1}bit": True},
    )


_PARTS = ("input_layernorm", "post_attention_layernorm", "self_attn.o_proj", "mlp.down_proj")
FAULTS = (
    Fault(13, 1, "gate and up swapped", ("swapped_tensors",), "infer", "share of layers", (1.0, 0.25),
          altered(swapped_gate)),
    Fault(17, 1, "permuted heads", ("permuted_tensor",), "infer", "share of layers", (1.0, 0.25),
          altered(permuted_heads)),
    Fault(19, 1, "fp8 weights", ("quantised_weights",), "infer", "rounding", (E5M2, E4M3), coarse_weights),
    Fault(113, 2, "norms swapped by the name map", ("swapped_tensors",), "infer", "layers", (6, 1),
          lambda m: swapped("input_layernorm", "post_attention_layernorm", *last(m, 6)),
          around("hunyuan", "torch", "hf", drawn(temperature=0.0))),
    Fault(117, 2, "channels of the key norms rolled", ("permuted_tensor",), "infer", "channels", (96, 2),
          whole(channels_rolled), around("qwen3, deep", "torch", "torch")),
    Fault(119, 2, "weights as integers", ("quantised_weights",), "infer", "step, of a group's largest",
          (1 / 7, 1 / 127), integer_groups, around("ernie", "hf", "torch", drawn(temperature=0.7, top_p=0.95))),
    Fault(213, 3, "rows of added tokens reversed", ("permuted_tensor",), "infer", "rows", (120, 2),
          whole(added_rows_reversed), around("helium", "hf", "torch")),
    Fault(313, 4, "norms of heads swapped", ("swapped_tensors",), "infer", "layers", (4, 1),
          lambda m: swapped("q_norm", "k_norm", *last(m, 4)),
          around("dots", "torch", "hf", drawn(temperature=1.5))),
    Fault(314, 4, "experts in blocks", ("quantised_weights",), "infer", "relative step", (2**-2, 2**-4),
          experts_in_blocks, around("ernie moe", "hf", "torch")),
    Fault(412, 5, "experts by an older map", ("permuted_tensor",), "infer", "layers", (4, 1),
          lambda m: in_order(_rolled_experts, *(f"{layer}mlp.experts." for layer in last(m, 4))),
          around("flex olmo", "torch", "torch")),
    # The fused projection's loader has the shards of keys and values the wrong way round, in the last layers.
    Fault(504, 6, "keys for values", ("swapped_tensors",), "infer", "layers", (4, 1),
          lambda m: swapped("k_proj", "v_proj", *last(m, 4)), around("qwen3.5", "torch", "hf", drawn(top_k=60))),
    Fault(506, 6, "base of normal floats", ("quantised_weights",), "train", "1 / levels", (1 / 16, 1 / 256),
          inverse(normal_floats), around("qwen3 next", "hf", "torch", drawn(temperature=1.1, top_p=0.92))),
    Fault(519, 6, "heads not interleaved", ("permuted_tensor",), "train", "layers", (4, 1),
          lambda m: in_order(_head_by_head, *(f"{layer}self_attention.query_key_value" for layer in last(m, 4, "h"))),
          around("bloom", "hf", "hf")),
    # Layers lie on stages in turn; the trainer's import takes parts of the two last for each other's.
    Fault(617, 7, "stages in another order", ("swapped_tensors",), "train", "parts", (4, 1),
          lambda m: swapped(".layers.2.", ".layers.3.", *_PARTS[: round(m)]),
          around("cwm", "hf", "torch", drawn(temperature=1.2, top_p=0.94))),
    # Each layer has two feed-forwards; the trainer's name map takes them for each other in the last layers.
    Fault(714, 8, "halves of layers swapped", ("swapped_tensors",), "train", "layers", (2, 1),
          lambda m: swapped(".mlps.0.", ".mlps.1.", *last(m, 2)), around("longcat", "hf", "torch"), split="held-out"),
    Fault(715, 8, "experts sorted by name", ("permuted_tensor", "swapped_tensors"), "train", "layers", (3, 1),
          lambda m: in_order(_by_name, *(f"{layer}mlp.experts." for layer in last(m, 4))),
          around("deepseek", "hf", "torch", drawn(top_k=50)), split="held-out"),
)  # fmt: skip
