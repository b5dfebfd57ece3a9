"""The third list of tuning faults: other mistakes, by a third hand, on models of its own.

They were held out once, as those of the second list.
"""

from __future__ import annotations

from benchmarks.doctor_faults import third_layers as layers
from benchmarks.doctor_faults import third_passes as passes
from benchmarks.doctor_faults import third_scoring as scoring
from benchmarks.doctor_faults import third_weights as weights
from benchmarks.doctor_faults.fault import Fault, Setup
from benchmarks.doctor_faults.sides import Alteration
from benchmarks.doctor_faults.surroundings import altered, around, configured, drawn, mixed
from benchmarks.doctor_faults.third_ground import SPARE_ROWS
from lockstep.types import SamplingParams

WARM = SamplingParams(max_tokens=64, temperature=1.2)
COOL = SamplingParams(max_tokens=64, temperature=0.8)
LIKELY = SamplingParams(max_tokens=64, top_k=100)


def _spare(rows: float) -> Setup:
    many, few = SPARE_ROWS
    return Setup(many if rows > SPARE_ROWS[few] else few, "hf", "torch")


def _barred(rows: float) -> Alteration:
    return scoring.spare_rows_barred(round(rows))


DRAWING = (
    Fault(201, "frequency penalty", ("penalty",), "infer", "nats each time",
          (1.0, 0.05), mixed("infer", scoring.frequency_penalty), around("helium", "torch", "hf")),
    Fault(202, "nucleus without its last token", ("top_p",), "train", "probability cut off",
          (0.4, 0.05), mixed("train", lambda _: scoring.NarrowNucleus),
          drawn("arcee", "torch", "hf", top_p=lambda m: 1 - m)),
    Fault(203, "seams between pieces", ("off_by_one",), "train", "share of tokens",
          (0.5, 1 / 64), mixed("train", scoring.seams), around("llama", "torch", "torch")),
    Fault(204, "newline before the first token", ("first_token",), "infer", "share of requests",
          (1.0, 0.15), mixed("infer", scoring.newline_first), around("exaone", "torch", "hf", WARM)),
    Fault(205, "special tokens skipped", ("retokenised",), "train", "ids taken for special",
          (60, 8), mixed("train", lambda m: scoring.specials_skipped(round(m))), around("mistral", "hf", "torch")),
    Fault(206, "rows without a token counted", ("padded_vocabulary",), "train", "rows",
          (40, 8), altered("infer", _barred), _spare),
)  # fmt: skip

PARTS = (
    Fault(207, "rotary table too short", ("rope",), "infer", "1 / positions",
          (1 / 24, 1 / 115), altered("infer", lambda m: layers.short_rotary_table(round(1 / m))),
          around("glm4", "hf", "torch")),
    Fault(208, "other activation in the configuration", ("activation",), "infer", "largest difference",
          (0.17, 0.02), configured("infer", "hidden_act", layers.activation), around("neox", "torch", "hf", COOL)),
    Fault(209, "scale of padded heads", ("attention",), "infer", "channels of padding",
          (44, 1), altered("infer", lambda m: layers.padded_head_scale(round(m))), around("cohere", "hf", "torch")),
    Fault(210, "edge of the embedding's shards", ("embedding",), "infer", "ids",
          (60, 2), altered("infer", lambda m: layers.shard_begins_late(round(m))),
          around("phi2", "torch", "torch", LIKELY)),
    Fault(211, "fewer groups of experts", ("routing",), "infer", "groups too few",
          (5, 1), configured("infer", "topk_group", lambda m: 6 - round(m)), around("deepseek", "torch", "hf")),
    Fault(217, "experts of fixed capacity", ("batch_variance", "routing"), "train", "1 / tokens",
          (1 / 320, 1 / 420), altered("train", lambda m: layers.fixed_capacity(round(1 / m))),
          around("olmoe", "hf", "torch")),
    Fault(218, "dropout of a merged adapter", ("dropout",), "train", "probability",
          (0.3, 0.002), altered("train", layers.adapter_dropout), around("llama", "hf", "torch", WARM)),
)  # fmt: skip

WEIGHTS = (
    Fault(212, "last bucket lost", ("stale_tensor",), "infer", "relative step",
          (0.2, 0.006), lambda _: (), around("arcee", "torch", "hf", COOL), weights.last_bucket_lost),
    Fault(213, "rows of added tokens reversed", ("permuted_tensor",), "infer", "rows",
          (120, 2), lambda m: weights.added_rows_reversed(round(m)), around("helium", "hf", "torch")),
)  # fmt: skip

PASSES = (
    Fault(214, "pages packed when full", ("kv_precision",), "infer", "step, of a range",
          (1 / 7, 1 / 127), mixed("infer", passes.quantised_pages), around("mistral", "hf", "torch", WARM)),
    Fault(215, "splits end early", ("decode_kernel",), "infer", "1 / keys in a split",
          (1 / 8, 1 / 100), mixed("infer", lambda m: passes.lossy_splits(round(1 / m))),
          around("exaone", "torch", "torch")),
    Fault(216, "attention in integers", ("kernel", "attention"), "infer", "step, of a tile's largest",
          (1 / 7, 1 / 127), mixed("infer", passes.integer_kernel), around("phi2", "torch", "hf")),
    Fault(219, "segment ids begin again", ("packed_leak",), "train", "1 / sequences",
          (1.0, 1 / 7), mixed("train", lambda m: passes.narrow_segment_ids(round(1 / m))),
          around("neox", "hf", "torch")),
    Fault(220, "pads left of a block counted", ("left_padding",), "train", "tokens in a block",
          (64, 2), mixed("train", lambda m: passes.pads_counted(round(m))), around("opt", "hf", "torch")),
)  # fmt: skip

THIRD: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
