"""The held-out faults: written without sight of any rule of the doctor."""

from __future__ import annotations

from benchmarks.doctor_faults import heldout_layers as layers
from benchmarks.doctor_faults import heldout_passes as passes
from benchmarks.doctor_faults import heldout_scoring as scoring
from benchmarks.doctor_faults import heldout_weights as weights
from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.faults_weights import refit_after_serving
from benchmarks.doctor_faults.means import BF16
from benchmarks.doctor_faults.sixth_layers import off_zero
from benchmarks.doctor_faults.surroundings import altered, around, configured, mixed
from lockstep.types import SamplingParams

WARM = SamplingParams(max_tokens=64, temperature=1.2)
COOL = SamplingParams(max_tokens=64, temperature=0.7)
NUCLEUS = SamplingParams(max_tokens=64, temperature=0.9, top_p=0.96)
LIKELY = SamplingParams(max_tokens=64, top_k=50)
BEFORE, CONTEXT = 48, 384
"""The longest sequence before a model's context was stretched, and after."""


DRAWING = (
    Fault(701, "min_p of the model's defaults", ("top_p", "top_k"), "infer", "share of the likeliest",
          (0.1, 0.01), mixed("infer", scoring.least_of_the_likeliest), around("granite", "torch", "hf")),
    Fault(702, "no repeats allowed", ("penalty",), "infer", "1 / tokens in a row",
          (1 / 2, 1 / 5), mixed("infer", lambda m: scoring.no_repeats(round(1 / m))),
          around("hunyuan", "torch", "hf", COOL)),
    Fault(703, "begins twice", ("retokenised",), "train", "share of prompts",
          (1.0, 0.2), mixed("train", scoring.begins_twice), around("jais", "hf", "torch")),
    Fault(704, "logits gathered in a low type", ("head_precision",), "infer", "offset of the logits",
          (60.0, 6.0), mixed("infer", lambda _: scoring.gathered_in_low_type(BF16)),
          around("phi2", "torch", "hf", WARM, off_zero)),
)  # fmt: skip

PARTS = (
    Fault(705, "stretched from the longer context", ("rope",), "train", "factor − 1",
          (3.0, 0.02), configured("train", "rope_parameters.original_max_position_embeddings", lambda _: CONTEXT),
          around("seed oss, few spare rows", "hf", "torch",
                 rope_parameters__rope_type=lambda _: "yarn",
                 rope_parameters__factor=lambda m: 1 + m,
                 rope_parameters__original_max_position_embeddings=lambda _: BEFORE)),
    Fault(706, "layers counted by stage", ("attention",), "train", "1 / layers of a stage",
          (1.0, 1 / 3), altered("train", lambda m: layers.counted_by_stage(round(1 / m))),
          around("diffllama", "hf", "hf", LIKELY)),
    Fault(707, "biases of experts unweighted", ("bias", "routing"), "train", "size of the biases",
          (3.0, 0.1), altered("train", lambda _: layers.biases_unweighted),
          around("gpt oss", "hf", "hf", alter=layers.expert_biases_scaled)),
    Fault(708, "routed experts unscaled", ("routing",), "infer", "factor − 1",
          (0.5, 0.01), altered("infer", lambda _: layers.routed_unscaled),
          around("solar", "torch", "torch", COOL, routed_scaling_factor=lambda m: 1 + m)),
    Fault(709, "windows reach one rank back", ("sliding_window",), "train", "ranks",
          (8, 3), mixed("train", lambda m: passes.one_rank_back(round(m))), around("ministral", "hf", "torch")),
    Fault(710, "noise on the embedding", ("dropout", "embedding", "nondeterminism"), "train", "strength",
          (3.0, 0.15), altered("train", layers.noisy_embedding), around("youtu", "hf", "torch", NUCLEUS)),
)  # fmt: skip

WEIGHTS = (
    Fault(711, "tied by default", ("tied_head",), "infer", "spreads of the embedding",
          (0.5, 0.02), lambda _: weights.tied_by_default(),
          around("ernie", "torch", "hf", WARM, weights.head_near_embedding)),
    Fault(712, "products of integers", ("quantised_weights",), "infer", "step, of a row's largest",
          (1 / 7, 1 / 127), weights.integer_products, around("nemotron", "hf", "hf")),
    Fault(713, "only the adapter sent", ("stale_tensor",), "infer", "relative step",
          (0.2, 0.01), lambda _: (), around("exaone", "hf", "torch", NUCLEUS), weights.adapter_alone_sent),
    Fault(714, "halves of layers swapped", ("swapped_tensors",), "train", "layers",
          (2, 1), lambda m: weights.halves_of_layers_swapped(round(m)), around("longcat", "hf", "torch")),
    Fault(715, "experts sorted by name", ("permuted_tensor", "swapped_tensors"), "train", "layers",
          (3, 1), lambda m: weights.experts_by_name(round(m)), around("deepseek", "hf", "torch", LIKELY)),
)  # fmt: skip

PASSES = (
    Fault(716, "prompts sent as integers", ("kv_precision",), "infer", "step, of a head's largest",
          (1 / 7, 1 / 127), mixed("infer", passes.sent_in_integers), around("phi moe", "torch", "hf", WARM)),
    Fault(717, "blocks kept on the host", ("stale_prefix_cache",), "infer", "relative step",
          (0.1, 0.005), mixed("infer", lambda _: passes.HostTierKept), around("qwen3", "hf", "torch", COOL),
          refit_after_serving),
    Fault(718, "empty slots of the last page", ("decode_kernel",), "infer", "slots of a page",
          (64, 4), mixed("infer", lambda m: passes.whole_pages(round(m))), around("command r", "torch", "torch")),
    Fault(719, "positions begin with the pads", ("left_padding",), "train", "most pads",
          (64, 6), mixed("train", lambda m: passes.positions_with_pads(round(m))), around("gpt2", "hf", "torch")),
    Fault(720, "positions from numbered segments", ("packed_positions",), "train", "sequences before",
          (7, 1), mixed("train", lambda m: passes.positions_from_segments(round(m) + 1)),
          around("neox", "hf", "torch", NUCLEUS)),
)  # fmt: skip

HELD_OUT: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
