"""Rotary embeddings: their base, their scale, their table, the positions that they turn by."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Change, Fault
from benchmarks.doctor_faults.means import BF16, FP16, compute_by, layers, type_with
from benchmarks.doctor_faults.sides import Alteration, undoes
from benchmarks.doctor_faults.surroundings import altered, around, configured, drawn, inverse
from lockstep.doctor.base import Conditions

_THETA = 10_000.0
_BEFORE, _CONTEXT = 48, 384
"""The longest sequence before a model's context was stretched, and after."""
Hooked = tuple[tuple[Any, ...], dict[str, Any]]


def _rotary(model: PreTrainedModel) -> Any:
    return model.base_model.get_submodule("rotary_emb")


def one_rotary_stretched(more: float) -> Alteration:
    """Positions of the second layer's rotary embedding run faster."""

    def alter(model: PreTrainedModel) -> None:
        def stretched(module: nn.Module, values: tuple[Any, ...], named: dict[str, Any]) -> Hooked:
            angles = _rotary(model)(named["position_embeddings"][0], named["position_ids"] * (1 + more))
            return values, named | {"position_embeddings": angles}

        layers(model)[1].self_attn.register_forward_pre_hook(stretched, with_kwargs=True)

    return alter


def short_rotary_table(length: int) -> Alteration:
    """Angles come from a table of so many positions, and what lies behind its end reads its last row."""

    def clamped(module: nn.Module, values: tuple[Any, ...], named: dict[str, Any]) -> Hooked:
        states, *position = values
        place = named["position_ids"] if "position_ids" in named else position[0]
        return (states, place.clamp(max=length - 1)), {}

    return lambda model: _rotary(model).register_forward_pre_hook(clamped, with_kwargs=True)


def _angles_unscaled(model: PreTrainedModel) -> None:
    """The scaling of long contexts moves the frequencies, and forgets that cosines and sines are scaled as well."""
    _rotary(model).attention_scaling = 1.0


def _one_base(model: PreTrainedModel) -> None:
    """The engine knows one rotary base, that of layers with full attention, and turns sliding layers by it too."""
    usual = _rotary(model).forward
    compute_by(
        _rotary(model), lambda _, states, position_ids, layer_type: usual(states, position_ids, "full_attention")
    )


@torch.no_grad()
def _frequencies_rebuilt(model: PreTrainedModel) -> None:
    """The engine is built without memory, and rotary frequencies, never sent, are made with the usual base."""
    inverse_F = _rotary(model).inv_freq
    inverse_F.copy_(_THETA ** -(torch.arange(len(inverse_F)) / len(inverse_F)))


def angles_in_low_type(error: float, model: PreTrainedModel, conditions: Conditions) -> None:
    """The trainer's rotary embedding multiplies positions and frequencies in a low type, so that late tokens err."""
    dtype = type_with(error)

    def low(rotary: Any, states: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angle_BTF = position_ids[..., None].to(dtype) * rotary.inv_freq.to(dtype)
        both, scale = torch.cat([angle_BTF, angle_BTF], -1), rotary.attention_scaling
        return (both.cos() * scale).to(states.dtype), (both.sin() * scale).to(states.dtype)

    rotary = _rotary(model)
    compute_by(rotary, type(rotary).forward if undoes(conditions, "rope") else low)


FAULTS = (
    Fault(7, 1, "other rope base", ("rope",), "infer", "relative", (9.0, 0.1),
          configured(rope_parameters__rope_theta=lambda m: _THETA * (1 + m))),
    Fault(107, 2, "one layer's positions stretched", ("rope",), "infer", "relative", (0.5, 0.003),
          altered(one_rotary_stretched), around("qwen3, deep", "torch", "hf", drawn(temperature=1.3))),
    Fault(207, 3, "rotary table too short", ("rope",), "infer", "1 / positions", (1 / 24, 1 / 115),
          altered(inverse(short_rotary_table)), around("glm4", "hf", "torch")),
    Fault(307, 4, "angles without their scale", ("rope",), "infer", "scale − 1", (0.5, 0.03),
          altered(lambda _: _angles_unscaled),
          around("apertus", "torch", "torch", rope_parameters__attention_factor=lambda m: 1 + m)),
    Fault(409, 5, "one rotary base for all layers", ("rope",), "infer", "ratio of the bases − 1", (49.0, 0.1),
          altered(lambda _: _one_base),
          around(lambda m: f"laguna, bases {'apart' if m > 1 else 'together'}", "torch", "torch")),
    Fault(414, 5, "frequencies nobody sends", ("missed_buffer", "rope"), "infer", "base / 10,000 − 1", (20.0, 0.01),
          altered(lambda _: _frequencies_rebuilt),
          around("minimax 2", "hf", "torch", rope_parameters__rope_theta=lambda m: _THETA * (1 + m))),
    Fault(609, 7, "angles in a low type", ("rope",), "train", "rounding", (BF16, FP16),
          lambda m: (Change(asked=partial(angles_in_low_type, m)),),
          around("seed oss, few spare rows", "hf", "torch", drawn(temperature=0.85))),
    Fault(705, 8, "stretched from the longer context", ("rope",), "train", "factor − 1", (3.0, 0.02),
          configured(rope_parameters__original_max_position_embeddings=_CONTEXT),
          around("seed oss, few spare rows", "hf", "torch", rope_parameters__rope_type="yarn",
                 rope_parameters__factor=lambda m: 1 + m,
                 rope_parameters__original_max_position_embeddings=_BEFORE), split="held-out"),
)  # fmt: skip
