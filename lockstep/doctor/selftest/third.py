"""The third list of tuning faults: other mistakes, by a third hand, on models of its own.

They were held out once, as those of the second list.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.backends.variants import Alteration
from lockstep.doctor.base import Side
from lockstep.doctor.selftest import third_layers as layers
from lockstep.doctor.selftest import third_passes as passes
from lockstep.doctor.selftest import third_scoring as scoring
from lockstep.doctor.selftest import third_weights as weights
from lockstep.doctor.selftest.fault import Change, Fault, Kind, Setup
from lockstep.doctor.selftest.third_ground import SPARE_ROWS
from lockstep.types import SamplingParams

PLAIN = SamplingParams(max_tokens=64)
WARM = SamplingParams(max_tokens=64, temperature=1.2)
COOL = SamplingParams(max_tokens=64, temperature=0.8)
LIKELY = SamplingParams(max_tokens=64, top_k=100)

Changes = Callable[[float], tuple[Change, ...]]
Surroundings = Callable[[float], Setup]


def _around(model: str, train: Kind, infer: Kind, sampling: SamplingParams = PLAIN) -> Surroundings:
    return lambda magnitude: Setup(model, train, infer, sampling=sampling)


def _mixed(side: Side, mixin: Callable[[float], type[HFBackend] | type[TorchBackend]]) -> Changes:
    return lambda magnitude: (Change(side, mixin=mixin(magnitude)),)


def _altered(side: Side, alter: Callable[[float], Alteration]) -> Changes:
    return lambda magnitude: (Change(side, alter=alter(magnitude)),)


def _configured(side: Side, field: str, value: Callable[[float], object]) -> Changes:
    return lambda magnitude: (Change(side, config={field: value(magnitude)}),)


def _nucleus(magnitude: float) -> Setup:
    return Setup("arcee", "torch", "hf", sampling=SamplingParams(max_tokens=64, top_p=1 - magnitude))


def _spare(rows: float) -> Setup:
    many, few = SPARE_ROWS
    return Setup(many if rows > SPARE_ROWS[few] else few, "hf", "torch", sampling=PLAIN)


def _barred(rows: float) -> Alteration:
    return scoring.spare_rows_barred(round(rows))


DRAWING = (
    Fault(201, "frequency penalty", ("penalty",), "infer", "nats each time",
          (1.0, 0.05), _mixed("infer", scoring.frequency_penalty), _around("helium", "torch", "hf")),
    Fault(202, "nucleus without its last token", ("top_p",), "train", "probability cut off",
          (0.4, 0.05), _mixed("train", lambda _: scoring.NarrowNucleus), _nucleus),
    Fault(203, "seams between pieces", ("off_by_one",), "train", "share of tokens",
          (0.5, 1 / 64), _mixed("train", scoring.seams), _around("llama", "torch", "torch")),
    Fault(204, "newline before the first token", ("first_token",), "infer", "share of requests",
          (1.0, 0.15), _mixed("infer", scoring.newline_first), _around("exaone", "torch", "hf", WARM)),
    Fault(205, "special tokens skipped", ("retokenised",), "train", "ids taken for special",
          (60, 8), _mixed("train", lambda m: scoring.specials_skipped(round(m))), _around("mistral", "hf", "torch")),
    Fault(206, "rows without a token counted", ("padded_vocabulary",), "train", "rows",
          (40, 8), _altered("infer", _barred), _spare),
)  # fmt: skip

PARTS = (
    Fault(207, "rotary table too short", ("rope",), "infer", "1 / positions",
          (1 / 24, 1 / 115), _altered("infer", lambda m: layers.short_rotary_table(round(1 / m))),
          _around("glm4", "hf", "torch")),
    Fault(208, "other activation in the configuration", ("activation",), "infer", "largest difference",
          (0.17, 0.02), _configured("infer", "hidden_act", layers.activation), _around("neox", "torch", "hf", COOL)),
    Fault(209, "scale of padded heads", ("attention",), "infer", "channels of padding",
          (44, 1), _altered("infer", lambda m: layers.padded_head_scale(round(m))), _around("cohere", "hf", "torch")),
    Fault(210, "edge of the embedding's shards", ("embedding",), "infer", "ids",
          (60, 2), _altered("infer", lambda m: layers.shard_begins_late(round(m))),
          _around("phi2", "torch", "torch", LIKELY)),
    Fault(211, "fewer groups of experts", ("routing",), "infer", "groups too few",
          (5, 1), _configured("infer", "topk_group", lambda m: 6 - round(m)), _around("deepseek", "torch", "hf")),
    Fault(217, "experts of fixed capacity", ("batch_variance", "routing"), "train", "1 / tokens",
          (1 / 320, 1 / 420), _altered("train", lambda m: layers.fixed_capacity(round(1 / m))),
          _around("olmoe", "hf", "torch")),
    Fault(218, "dropout of a merged adapter", ("dropout",), "train", "probability",
          (0.3, 0.002), _altered("train", layers.adapter_dropout), _around("llama", "hf", "torch", WARM)),
)  # fmt: skip

WEIGHTS = (
    Fault(212, "last bucket lost", ("stale_tensor",), "infer", "relative step",
          (0.2, 0.006), lambda _: (), _around("arcee", "torch", "hf", COOL), weights.last_bucket_lost),
    Fault(213, "rows of added tokens reversed", ("permuted_tensor",), "infer", "rows",
          (120, 2), lambda m: weights.added_rows_reversed(round(m)), _around("helium", "hf", "torch")),
)  # fmt: skip

PASSES = (
    Fault(214, "pages packed when full", ("kv_precision",), "infer", "step, of a range",
          (1 / 7, 1 / 127), _mixed("infer", passes.quantised_pages), _around("mistral", "hf", "torch", WARM)),
    Fault(215, "splits end early", ("decode_kernel",), "infer", "1 / keys in a split",
          (1 / 8, 1 / 100), _mixed("infer", lambda m: passes.lossy_splits(round(1 / m))),
          _around("exaone", "torch", "torch")),
    Fault(216, "attention in integers", ("kernel", "attention"), "infer", "step, of a tile's largest",
          (1 / 7, 1 / 127), _mixed("infer", passes.integer_kernel), _around("phi2", "torch", "hf")),
    Fault(219, "segment ids begin again", ("packed_leak",), "train", "1 / sequences",
          (1.0, 1 / 7), _mixed("train", lambda m: passes.narrow_segment_ids(round(1 / m))),
          _around("neox", "hf", "torch")),
    Fault(220, "pads left of a block counted", ("left_padding",), "train", "tokens in a block",
          (64, 2), _mixed("train", lambda m: passes.pads_counted(round(m))), _around("opt", "hf", "torch")),
)  # fmt: skip

THIRD: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
