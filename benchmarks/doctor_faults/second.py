"""The second half of the tuning faults: the list of the first in other code, on other models.

They were held out once. Rules have been mended since with what they showed.
"""

from __future__ import annotations

from dataclasses import replace

from benchmarks.doctor_faults import second_drawing as drawing
from benchmarks.doctor_faults import second_layers as layers
from benchmarks.doctor_faults import second_scoring as scoring
from benchmarks.doctor_faults import second_weights as weights
from benchmarks.doctor_faults.fault import Change, Fault, Injected, Setup
from benchmarks.doctor_faults.surroundings import altered, around, drawn, mixed
from lockstep.doctor.base import DType
from lockstep.types import SamplingParams

WARM = SamplingParams(max_tokens=64, temperature=1.3)
NUCLEUS = SamplingParams(max_tokens=64, top_p=0.95)
COOL = SamplingParams(max_tokens=64, temperature=0.7, top_p=0.95)
LIKELY = SamplingParams(max_tokens=64, top_k=50)
GREEDY = SamplingParams(max_tokens=64, temperature=0.0)


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
          (0.4, 0.03), mixed("infer", lambda _: scoring.RawLogprobs),
          drawn("qwen3, deep", "torch", "hf", temperature=lambda m: 1 + m)),
    Fault(102, "logits multiplied by the temperature", ("temperature",), "train", "temperature below 1",
          (0.3, 0.015), mixed("train", lambda _: scoring.MultipliesTemperature),
          drawn("hunyuan", "torch", "hf", temperature=lambda m: 1 - m)),
    Fault(103, "raw log-probabilities of a nucleus", ("top_p",), "infer", "probability cut off",
          (0.15, 0.02), mixed("infer", lambda _: drawing.RawNucleus),
          drawn("smollm", "hf", "torch", top_p=lambda m: 1 - m)),
    Fault(104, "log-probabilities reported one late", ("off_by_one",), "infer", "share of requests",
          (1.0, 0.1), mixed("infer", drawing.reported_late), around("ernie", "torch", "hf")),
    Fault(105, "first token suppressed", ("first_token",), "infer", "share of the vocabulary",
          (0.6, 0.1), mixed("infer", lambda m: drawing.suppressed_at_first(round(384 * m))),
          around("qwen3, deep", "torch", "torch", WARM)),
    Fault(106, "ids of like text", ("retokenised",), "train", "ids with a twin",
          (40, 2), mixed("train", lambda m: scoring.canonical_ids(round(m))),
          around("mixtral, four experts", "hf", "torch")),
    Fault(125, "top_k dropped", ("top_k",), "train", "share of the vocabulary cut off",
          (0.97, 0.7), mixed("train", lambda _: scoring.DropsTopK),
          drawn("phi", "torch", "hf", temperature=lambda _: 1.3, top_k=lambda m: round(384 * (1 - m)))),
    Fault(130, "presence penalty", ("penalty",), "infer", "nats",
          (1.0, 0.1), mixed("infer", drawing.presence_penalty), around("qwen3 moe", "hf", "torch")),
)  # fmt: skip

OPERATORS = (
    Fault(107, "one layer's positions stretched", ("rope",), "infer", "relative",
          (0.5, 0.003), altered("infer", lambda m: layers.one_rotary_stretched(1 + m)),
          around("qwen3, deep", "torch", "hf", WARM)),
    Fault(108, "window of the module", ("sliding_window",), "train", "tokens too wide",
          (500, 2), altered("train", lambda m: layers.wider_windows(round(m))), around("olmo", "torch", "hf")),
    Fault(109, "fused projections without bias", ("bias",), "infer", "projections",
          (18, 1), altered("infer", lambda m: layers.biases_ignored(round(m))), around("starcoder", "torch", "hf")),
    Fault(110, "fused head without cap", ("softcap",), "train", "1 / cap",
          (1 / 12, 1 / 60), mixed("train", lambda _: scoring.FusedHead), _capped),
    Fault(111, "repeated rows fill the head up", ("padded_vocabulary",), "train", "share of the vocabulary",
          (0.33, 0.02), altered("train", lambda m: layers.padded_head(round(384 * m))),
          around("granite", "hf", "torch")),
    Fault(112, "epsilon of the head norms", ("norm_eps",), "infer", "epsilon",
          (0.5, 0.01), altered("infer", layers.head_norm_epsilon), around("qwen3, deep", "hf", "torch", LIKELY)),
    Fault(121, "coarse router", ("routing",), "infer", "relative step",
          (2**-3, 2**-9), _coarse_router, around("qwen3 moe", "torch", "torch")),
    Fault(129, "dropout in one module", ("dropout",), "train", "probability",
          (0.2, 0.002), altered("train", layers.one_dropout), around("phi", "hf", "torch", WARM)),
)  # fmt: skip

WEIGHTS = (
    Fault(113, "norms swapped by the name map", ("swapped_tensors",), "infer", "layers",
          (6, 1), lambda m: weights.norms_swapped(5, round(m)), around("hunyuan", "torch", "hf", GREEDY)),
    Fault(116, "experts never sent", ("stale_tensor",), "infer", "spreads of the tensor",
          (0.5, 0.02), lambda m: weights.never_sent("model.layers.1.mlp.experts.down_proj", m),
          around("mixtral, four experts", "hf", "torch", NUCLEUS)),
    Fault(117, "channels of the key norms rolled", ("permuted_tensor",), "infer", "channels",
          (96, 2), lambda m: weights.channels_rolled(5, round(m)), around("qwen3, deep", "torch", "torch")),
    Fault(118, "head untied from its embedding", ("tied_head",), "infer", "spreads of the tensor",
          (0.3, 0.01), altered("infer", layers.untied_head), around("olmo, tied", "torch", "hf")),
    Fault(119, "weights as integers", ("quantised_weights",), "infer", "step, of a group's largest",
          (1 / 7, 1 / 127), weights.quantised, around("ernie", "hf", "torch", COOL)),
    Fault(126, "router's buffer never sent", ("missed_buffer",), "infer", "share of its values",
          (1.0, 0.005), lambda m: weights.buffers_never_sent("e_score_correction_bias", m),
          around("glm", "torch", "hf")),
)  # fmt: skip

CACHES = (
    Fault(114, "keys and values as integers", ("kv_precision",), "infer", "step, of a token's largest",
          (1 / 7, 1 / 127), mixed("infer", drawing.cache_in_integers), around("phi", "torch", "hf", NUCLEUS)),
    Fault(115, "blocks of older prompts", ("stale_prefix_cache",), "infer", "spreads of the weights",
          (0.1, 0.005), mixed("infer", drawing.stale_prefixes), around("qwen3, deep", "torch", "hf")),
    Fault(127, "chunks overwritten at their ends", ("chunked_state",), "infer", "tokens",
          (16, 1), mixed("infer", lambda m: drawing.chunks_overwritten(round(m))),
          around("smollm", "torch", "hf", LIKELY)),
)  # fmt: skip

ROWS = (
    Fault(122, "mask begins early", ("left_padding",), "infer", "pads seen",
          (64, 1), mixed("infer", lambda m: drawing.pads_seen(round(m))), around("ernie", "torch", "hf", NUCLEUS)),
    Fault(123, "another kernel for each batch size", ("batch_variance",), "infer", "relative step",
          (2**-4, 2**-8), altered("infer", lambda m: layers.summed_by(layers.by_rows(m), "down_proj")),
          around("qwen3, deep", "torch", "hf")),
    Fault(124, "sums in any order", ("nondeterminism",), "train", "relative step",
          (2**-5, 2**-9), altered("train", lambda m: layers.summed_by(layers.in_any_order(m), "down_proj")),
          around("phi", "torch", "torch", COOL)),
    Fault(131, "late positions in packed rows", ("packed_positions",), "train", "tokens a row",
          (40, 1), mixed("train", lambda m: scoring.late_positions(round(m))), around("gpt2", "hf", "torch")),
    Fault(132, "boundaries lost in packed rows", ("packed_leak",), "train", "share of sequences",
          (1.0, 0.15), mixed("train", scoring.boundaries_lost), around("granite", "torch", "hf")),
)  # fmt: skip

PRECISION = (
    Fault(120, "fp32 head on one side", ("head_precision",), None, "large channel",
          (5.0, 2.5), mixed("train", lambda _: scoring.HeadInFP32), _off_zero),
    Fault(128, "ranks round their sums", ("parallel_reduction",), "train", "relative step",
          (2**-4, 2**-9), _ranks, around("ernie", "hf", "torch", LIKELY)),
    Fault(133, "another type", ("dtype",), None, "relative step",
          (2**-8, 2**-11), lambda m: (Change("infer", dtype=_low_type(m)),), around("olmo", "hf", "hf", COOL)),
    Fault(134, "sum of the softmax in a low precision", ("softmax_precision",), "infer", "relative step",
          (2**-8, 2**-11), mixed("infer", lambda m: scoring.low_softmax(_low_type(m))),
          around("smollm", "torch", "hf", WARM)),
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
