"""The second half of the tuning faults: the list of the first in other code, on other models.

They were held out once. Rules have been mended since with what they showed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.backends.variants import Alteration
from lockstep.doctor.base import DType, Side
from lockstep.doctor.selftest import second_drawing as drawing
from lockstep.doctor.selftest import second_layers as layers
from lockstep.doctor.selftest import second_scoring as scoring
from lockstep.doctor.selftest import second_weights as weights
from lockstep.doctor.selftest.fault import Change, Fault, Injected, Kind, Setup
from lockstep.types import SamplingParams

AS_IS = SamplingParams(max_tokens=64)
WARM = SamplingParams(max_tokens=64, temperature=1.3)
NUCLEUS = SamplingParams(max_tokens=64, top_p=0.95)
COOL = SamplingParams(max_tokens=64, temperature=0.7, top_p=0.95)
LIKELY = SamplingParams(max_tokens=64, top_k=50)
GREEDY = SamplingParams(max_tokens=64, temperature=0.0)

Changes = Callable[[float], tuple[Change, ...]]
Surroundings = Callable[[float], Setup]


def _around(
    model: str, train: Kind, infer: Kind, sampling: SamplingParams = AS_IS, dtype: DType | None = None
) -> Surroundings:
    return lambda magnitude: Setup(model, train, infer, dtype, sampling=sampling)


def _mixed(side: Side, mixin: Callable[[float], type[HFBackend] | type[TorchBackend]]) -> Changes:
    return lambda magnitude: (Change(side, mixin=mixin(magnitude)),)


def _altered(side: Side, alter: Callable[[float], Alteration]) -> Changes:
    return lambda magnitude: (Change(side, alter=alter(magnitude)),)


def _cooler(magnitude: float) -> Setup:
    return Setup("hunyuan", "torch", "hf", sampling=replace(AS_IS, temperature=1 - magnitude))


def _warmer(magnitude: float) -> Setup:
    return Setup("qwen3, deep", "torch", "hf", sampling=replace(AS_IS, temperature=1 + magnitude))


def _nucleus(magnitude: float) -> Setup:
    return Setup("smollm", "hf", "torch", sampling=replace(AS_IS, top_p=1 - magnitude))


def _likeliest(magnitude: float) -> Setup:
    return Setup("phi", "torch", "hf", sampling=replace(WARM, top_k=round(384 * (1 - magnitude))))


def _capped(magnitude: float) -> Setup:
    return Setup("gemma3" if magnitude > 1 / 30 else "gemma3, high cap", "torch", "hf")


def _off_zero(magnitude: float) -> Setup:
    model = "qwen3, logits far off zero" if magnitude > 3 else "qwen3, logits off zero"
    return Setup(model, "torch", "torch", "bf16", sampling=WARM)


def _low_type(step: float) -> DType:
    return "bf16" if step > 2**-9 else "fp16"


def _coarse_router(magnitude: float) -> tuple[Change, ...]:
    switch = layers.Switch()
    return (Change("infer", scoring.switched(switch), layers.router_rounded(magnitude, switch)),)


def _ranks(magnitude: float) -> tuple[Change, ...]:
    alter = layers.summed_by(layers.by_ranks(magnitude), "o_proj", "down_proj")
    return (Change("train", scoring.parallel(4), alter),)


SAMPLING = (
    Fault(101, "raw log-probabilities at a high temperature", ("temperature",), "infer", "temperature above 1",
          (0.4, 0.03), _mixed("infer", lambda _: scoring.RawLogprobs), _warmer),
    Fault(102, "logits multiplied by the temperature", ("temperature",), "train", "temperature below 1",
          (0.3, 0.015), _mixed("train", lambda _: scoring.MultipliesTemperature), _cooler),
    Fault(103, "raw log-probabilities of a nucleus", ("top_p",), "infer", "probability cut off",
          (0.15, 0.02), _mixed("infer", lambda _: drawing.RawNucleus), _nucleus),
    Fault(104, "log-probabilities reported one late", ("off_by_one",), "infer", "share of requests",
          (1.0, 0.1), _mixed("infer", drawing.reported_late), _around("ernie", "torch", "hf")),
    Fault(105, "first token suppressed", ("first_token",), "infer", "share of the vocabulary",
          (0.6, 0.1), _mixed("infer", lambda m: drawing.suppressed_at_first(round(384 * m))),
          _around("qwen3, deep", "torch", "torch", WARM)),
    Fault(106, "ids of like text", ("retokenised",), "train", "ids with a twin",
          (40, 2), _mixed("train", lambda m: scoring.canonical_ids(round(m))),
          _around("mixtral, four experts", "hf", "torch")),
    Fault(125, "top_k dropped", ("top_k",), "train", "share of the vocabulary cut off",
          (0.97, 0.7), _mixed("train", lambda _: scoring.DropsTopK), _likeliest),
    Fault(130, "presence penalty", ("penalty",), "infer", "nats",
          (1.0, 0.1), _mixed("infer", drawing.presence_penalty), _around("qwen3 moe", "hf", "torch")),
)  # fmt: skip

OPERATORS = (
    Fault(107, "one layer's positions stretched", ("rope",), "infer", "relative",
          (0.5, 0.003), _altered("infer", lambda m: layers.one_rotary_stretched(1 + m)),
          _around("qwen3, deep", "torch", "hf", WARM)),
    Fault(108, "window of the module", ("sliding_window",), "train", "tokens too wide",
          (500, 2), _altered("train", lambda m: layers.wider_windows(round(m))), _around("olmo", "torch", "hf")),
    Fault(109, "fused projections without bias", ("bias",), "infer", "projections",
          (18, 1), _altered("infer", lambda m: layers.biases_ignored(round(m))), _around("starcoder", "torch", "hf")),
    Fault(110, "fused head without cap", ("softcap",), "train", "1 / cap",
          (1 / 12, 1 / 60), _mixed("train", lambda _: scoring.FusedHead), _capped),
    Fault(111, "repeated rows fill the head up", ("padded_vocabulary",), "train", "share of the vocabulary",
          (0.33, 0.02), _altered("train", lambda m: layers.padded_head(round(384 * m))),
          _around("granite", "hf", "torch")),
    Fault(112, "epsilon of the head norms", ("norm_eps",), "infer", "epsilon",
          (0.5, 0.01), _altered("infer", layers.head_norm_epsilon), _around("qwen3, deep", "hf", "torch", LIKELY)),
    Fault(121, "coarse router", ("routing",), "infer", "relative step",
          (2**-3, 2**-9), _coarse_router, _around("qwen3 moe", "torch", "torch")),
    Fault(129, "dropout in one module", ("dropout",), "train", "probability",
          (0.2, 0.002), _altered("train", layers.one_dropout), _around("phi", "hf", "torch", WARM)),
)  # fmt: skip

WEIGHTS = (
    Fault(113, "norms swapped by the name map", ("swapped_tensors",), "infer", "layers",
          (6, 1), lambda m: weights.norms_swapped(5, round(m)), _around("hunyuan", "torch", "hf", GREEDY)),
    Fault(116, "experts never sent", ("stale_tensor",), "infer", "spreads of the tensor",
          (0.5, 0.02), lambda m: weights.never_sent("model.layers.1.mlp.experts.down_proj", m),
          _around("mixtral, four experts", "hf", "torch", NUCLEUS)),
    Fault(117, "channels of the key norms rolled", ("permuted_tensor",), "infer", "channels",
          (96, 2), lambda m: weights.channels_rolled(5, round(m)), _around("qwen3, deep", "torch", "torch")),
    Fault(118, "head untied from its embedding", ("tied_head",), "infer", "spreads of the tensor",
          (0.3, 0.01), _altered("infer", layers.untied_head), _around("olmo, tied", "torch", "hf")),
    Fault(119, "weights as integers", ("quantised_weights",), "infer", "step, of a group's largest",
          (1 / 7, 1 / 127), weights.quantised, _around("ernie", "hf", "torch", COOL)),
    Fault(126, "router's buffer never sent", ("missed_buffer",), "infer", "share of its values",
          (1.0, 0.005), lambda m: weights.buffers_never_sent("e_score_correction_bias", m),
          _around("glm", "torch", "hf")),
)  # fmt: skip

CACHES = (
    Fault(114, "keys and values as integers", ("kv_precision",), "infer", "step, of a token's largest",
          (1 / 7, 1 / 127), _mixed("infer", drawing.cache_in_integers), _around("phi", "torch", "hf", NUCLEUS)),
    Fault(115, "blocks of older prompts", ("stale_prefix_cache",), "infer", "spreads of the weights",
          (0.1, 0.005), _mixed("infer", drawing.stale_prefixes), _around("qwen3, deep", "torch", "hf")),
    Fault(127, "chunks overwritten at their ends", ("chunked_state",), "infer", "tokens",
          (16, 1), _mixed("infer", lambda m: drawing.chunks_overwritten(round(m))),
          _around("smollm", "torch", "hf", LIKELY)),
)  # fmt: skip

ROWS = (
    Fault(122, "mask begins early", ("left_padding",), "infer", "pads seen",
          (64, 1), _mixed("infer", lambda m: drawing.pads_seen(round(m))), _around("ernie", "torch", "hf", NUCLEUS)),
    Fault(123, "another kernel for each batch size", ("batch_variance",), "infer", "relative step",
          (2**-4, 2**-8), _altered("infer", lambda m: layers.summed_by(layers.by_rows(m), "down_proj")),
          _around("qwen3, deep", "torch", "hf")),
    Fault(124, "sums in any order", ("nondeterminism",), "train", "relative step",
          (2**-5, 2**-9), _altered("train", lambda m: layers.summed_by(layers.in_any_order(m), "down_proj")),
          _around("phi", "torch", "torch", COOL)),
    Fault(131, "late positions in packed rows", ("packed_positions",), "train", "tokens a row",
          (40, 1), _mixed("train", lambda m: scoring.late_positions(round(m))), _around("gpt2", "hf", "torch")),
    Fault(132, "boundaries lost in packed rows", ("packed_leak",), "train", "share of sequences",
          (1.0, 0.15), _mixed("train", scoring.boundaries_lost), _around("granite", "torch", "hf")),
)  # fmt: skip

PRECISION = (
    Fault(120, "fp32 head on one side", ("head_precision",), None, "large channel",
          (5.0, 2.5), _mixed("train", lambda _: scoring.HeadInFP32), _off_zero),
    Fault(128, "ranks round their sums", ("parallel_reduction",), "train", "relative step",
          (2**-4, 2**-9), _ranks, _around("ernie", "hf", "torch", LIKELY)),
    Fault(133, "another type", ("dtype",), None, "relative step",
          (2**-8, 2**-11), lambda m: (Change("infer", dtype=_low_type(m)),), _around("olmo", "hf", "hf", COOL)),
    Fault(134, "sum of the softmax in a low precision", ("softmax_precision",), "infer", "relative step",
          (2**-8, 2**-11), _mixed("infer", lambda m: scoring.low_softmax(_low_type(m))),
          _around("smollm", "torch", "hf", WARM)),
)  # fmt: skip

SECOND = tuple(sorted(SAMPLING + OPERATORS + WEIGHTS + CACHES + ROWS + PRECISION, key=lambda fault: fault.number))


def _moved(injected: Injected, setup: Setup) -> Injected:
    return replace(injected.fault, setup=lambda _: setup).at(injected.magnitude)


def _pair(first: int, second: int, setup: Setup) -> tuple[Injected, Injected]:
    """Two large faults in surroundings that suit both."""
    numbered = {fault.number: fault for fault in SECOND}
    return _moved(numbered[first].large, setup), _moved(numbered[second].large, setup)


SECOND_PAIRS = (
    _pair(101, 112, Setup("qwen3, deep", "torch", "hf", sampling=WARM)),
    _pair(114, 129, Setup("phi", "hf", "hf")),
    _pair(104, 110, Setup("gemma3", "torch", "hf")),
    _pair(111, 119, Setup("ernie", "hf", "torch", sampling=NUCLEUS)),
    _pair(117, 124, Setup("qwen3, deep", "torch", "torch")),
)
SECOND_HEALTHY = (
    Setup("gemma3", "hf", "torch", "fp32", 8, GREEDY),
    Setup("qwen3, deep", "torch", "hf", "fp32", 32, COOL),
    Setup("olmo", "hf", "torch", "bf16", 8, WARM),
    Setup("ernie", "torch", "torch", "bf16", 4, LIKELY),
    Setup("phi", "hf", "hf", "fp16", 8, NUCLEUS),
)
