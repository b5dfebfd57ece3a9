"""Norms: their epsilon, and where it is added."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.means import compute_by
from benchmarks.doctor_faults.sides import Alteration
from benchmarks.doctor_faults.surroundings import altered, around, configured, drawn


def epsilon_of(*endings: str) -> Callable[[float], Alteration]:
    """Norms whose paths end so have another epsilon."""

    def altering(epsilon: float) -> Alteration:
        def alter(model: PreTrainedModel) -> None:
            for path, module in model.named_modules():
                if path.endswith(endings):
                    vars(module)["variance_epsilon"] = epsilon

        return alter

    return altering


def _epsilon_outside_the_root(model: PreTrainedModel) -> None:
    """The trainer's fused norm adds the epsilon to the root of the mean square, not to the mean square."""

    def normed(norm: Any, states: Tensor) -> Tensor:
        root = states.float().square().mean(-1, keepdim=True).sqrt()
        return norm.weight * (states.float() / (root + norm.variance_epsilon)).to(states.dtype)

    for module in model.modules():
        if "variance_epsilon" in vars(module):
            compute_by(module, normed)


FAULTS = (
    Fault(12, 1, "other norm epsilon", ("norm_eps",), "infer", "more", (3e-2, 1e-3),
          configured(rms_norm_eps=lambda m: 1e-5 + m)),
    Fault(112, 2, "epsilon of the head norms", ("norm_eps",), "infer", "epsilon", (0.5, 0.01),
          altered(epsilon_of("q_norm", "k_norm")), around("qwen3, deep", "hf", "torch", drawn(top_k=50))),
    Fault(408, 5, "epsilon of the norms behind", ("norm_eps",), "train", "epsilon", (0.03, 0.0003),
          altered(epsilon_of("post_attention_layernorm", "post_mlp_layernorm")),
          around("afmoe", "torch", "hf", drawn(temperature=0.9, top_k=80))),
    Fault(612, 7, "epsilon outside the root", ("norm_eps",), "train", "epsilon", (0.1, 0.004),
          altered(lambda _: _epsilon_outside_the_root),
          around("hyperclova", "torch", "torch", rms_norm_eps=lambda m: m)),
)  # fmt: skip
