"""The held-out faults: written by a sixth hand, which had seen no rule of the doctor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.backends.variants import Alteration
from lockstep.doctor.base import Side
from lockstep.doctor.selftest import heldout_layers as layers
from lockstep.doctor.selftest import heldout_passes as passes
from lockstep.doctor.selftest import heldout_weights as weights
from lockstep.doctor.selftest.fault import Change, Fault, Kind, Setup
from lockstep.doctor.selftest.means import BF16, E4M3, E5M2, FP16
from lockstep.doctor.selftest.second_scoring import parallel
from lockstep.types import SamplingParams

PLAIN = SamplingParams(max_tokens=64)
SHORT = SamplingParams(max_tokens=16, temperature=1.1)
WARM = SamplingParams(max_tokens=64, temperature=1.35)
COOL = SamplingParams(max_tokens=64, temperature=0.8)
NUCLEUS = SamplingParams(max_tokens=64, temperature=1.1, top_p=0.92)
LIKELY = SamplingParams(max_tokens=64, top_k=60)

Changes = Callable[[float], tuple[Change, ...]]
Surroundings = Callable[[float], Setup]


def _around(
    model: str,
    train: Kind,
    infer: Kind,
    sampling: SamplingParams = PLAIN,
    alter: Callable[[float], Alteration] | None = None,
    **config: Callable[[float], Any],
) -> Surroundings:
    return lambda magnitude: Setup(
        model,
        train,
        infer,
        sampling=sampling,
        config=tuple((field, value(magnitude)) for field, value in config.items()),
        alter=alter and alter(magnitude),
    )


def _mixed(side: Side, mixin: Callable[[float], type[HFBackend] | type[TorchBackend]]) -> Changes:
    return lambda magnitude: (Change(side, mixin=mixin(magnitude)),)


def _altered(side: Side, alter: Callable[[float], Alteration]) -> Changes:
    return lambda magnitude: (Change(side, alter=alter(magnitude)),)


def _warmer(magnitude: float) -> Setup:
    drawn = SamplingParams(max_tokens=64, temperature=1 + magnitude)
    return Setup("longcat", "hf", "torch", sampling=drawn)


DRAWING = (
    Fault(501, "first token from a pad", ("first_token",), "train", "tokens in a block",
          (64, 2), _mixed("train", lambda m: passes.first_from_pad(round(m))),
          _around("glm moe, latent", "hf", "torch", SHORT)),
    Fault(502, "capped twice", ("softcap",), "infer", "1 / cap",
          (1 / 6, 1 / 30), _altered("infer", lambda _: layers.capped_twice),
          _around("gemma4", "torch", "hf", COOL, final_logit_softcapping=lambda m: 1 / m)),
    Fault(511, "loss multiplies in a low type", ("head_precision",), "train", "rounding",
          (E4M3, BF16), _mixed("train", layers.head_in_low_type), _around("mimo", "hf", "hf", WARM)),
    Fault(516, "divided in a low type", ("softmax_precision",), "train", "rounding",
          (BF16, FP16), _mixed("train", layers.divides_in_place),
          _around("ctrl", "hf", "torch", WARM, lambda _: layers.off_zero(80.0))),
    Fault(517, "accepted drafts", ("temperature",), "infer", "temperature − 1",
          (0.5, 0.05), _mixed("infer", lambda _: passes.AcceptedDraftsRaw), _warmer),
    Fault(520, "suppressed tokens", ("penalty",), "infer", "tokens",
          (60, 12), _mixed("infer", lambda m: layers.suppressed(round(m))), _around("hrm", "torch", "hf", NUCLEUS)),
)  # fmt: skip

PARTS = (
    Fault(503, "fused without bias", ("bias",), "infer", "layers",
          (4, 1), _altered("infer", lambda m: layers.fused_without_bias(round(m))), _around("youtu", "torch", "hf")),
    Fault(507, "biases in the weights of experts", ("routing",), "train", "spread of the biases",
          (0.5, 0.05), _altered("train", lambda _: layers.biases_in_the_weights),
          _around("lfm moe", "torch", "torch", COOL, layers.expert_biases)),
    Fault(508, "dropout in every mode", ("dropout", "nondeterminism"), "train", "probability",
          (0.2, 0.005), _altered("train", layers.drops_out_always), _around("recurrent gemma", "torch", "hf", LIKELY)),
    Fault(510, "sums sent as integers", ("parallel_reduction",), "infer", "step, of a block's largest",
          (1 / 7, 1 / 127), layers.quick_reduce, _around("jamba", "hf", "torch")),
    Fault(513, "slopes of the first rank", ("attention",), "infer", "ranks − 1",
          (3, 1), lambda m: layers.slopes_of_the_first_rank(1 + round(m)), _around("bloom", "hf", "hf", NUCLEUS)),
    Fault(514, "slope of another model", ("activation",), "train", "slope − 1",
          (0.702, 0.05), _altered("train", layers.swish_of_another_model), _around("doge", "hf", "hf")),
    Fault(515, "added rows without their factor", ("embedding",), "train", "rows",
          (100, 5), _altered("train", lambda m: layers.new_rows_unscaled(round(m))),
          _around("xglm", "hf", "hf", WARM)),
)  # fmt: skip

WEIGHTS = (
    Fault(504, "keys for values", ("swapped_tensors",), "infer", "layers",
          (4, 1), lambda m: weights.keys_for_values(round(m)), _around("qwen3.5", "torch", "hf", LIKELY)),
    Fault(506, "base of normal floats", ("quantised_weights",), "train", "1 / levels",
          (1 / 16, 1 / 256), lambda m: weights.normal_floats(round(1 / m)),
          _around("qwen3 next", "hf", "torch", NUCLEUS)),
    Fault(518, "second rank missed a refit", ("stale_tensor",), "infer", "relative step",
          (0.2, 0.01), _mixed("infer", lambda _: parallel(2)),
          _around("jamba", "torch", "hf", COOL), weights.second_rank_missed),
    Fault(519, "heads not interleaved", ("permuted_tensor",), "train", "layers",
          (4, 1), lambda m: weights.heads_not_interleaved(round(m)), _around("bloom", "hf", "hf")),
)  # fmt: skip

PASSES = (
    Fault(505, "scales of the first batch", ("kv_precision",), "infer", "rounding",
          (E5M2, E4M3), _mixed("infer", passes.scales_of_the_first_batch),
          _around("granite, sinks", "hf", "hf", WARM)),
    Fault(509, "mask of ones", ("packed_leak",), "train", "sequences before",
          (7, 1), _mixed("train", lambda m: passes.mask_of_ones(round(m) + 1)),
          _around("cohere2 moe", "hf", "torch", LIKELY)),
    Fault(512, "splits merged in another base", ("decode_kernel",), "infer", "1 / keys in a split",
          (1 / 4, 1 / 24), _mixed("infer", lambda m: passes.merged_by_base_two(round(1 / m))),
          _around("minicpm", "hf", "torch")),
)  # fmt: skip

HELD_OUT: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
