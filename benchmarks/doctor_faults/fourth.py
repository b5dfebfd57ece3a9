"""The fourth list of tuning faults: other mistakes, by a fourth hand, which had seen no rule of the doctor.

They were held out once, as those of the lists before it.
"""

from __future__ import annotations

from benchmarks.doctor_faults import fourth_layers as layers
from benchmarks.doctor_faults import fourth_passes as passes
from benchmarks.doctor_faults import fourth_scoring as scoring
from benchmarks.doctor_faults import fourth_weights as weights
from benchmarks.doctor_faults.fault import Change, Fault, Setup
from benchmarks.doctor_faults.surroundings import around, drawn, mixed
from lockstep.types import SamplingParams

WARM = SamplingParams(max_tokens=64, temperature=1.5)
COOL = SamplingParams(max_tokens=64, temperature=0.85)


def _biased(spread: float) -> Setup:
    return Setup("codegen", "hf", "hf", alter=layers.head_bias(spread))


def _convolved(reach: float) -> Setup:
    return Setup("lfm, long convolution" if reach > 2 else "lfm, short convolution", "hf", "hf")


DRAWING = (
    Fault(301, "temperature not in the last piece", ("temperature",), "train", "1 − temperature",
          (0.4, 0.07), mixed("train", lambda _: scoring.ColdRowsOnly),
          drawn("olmo, first", "torch", "hf", temperature=lambda m: 1 - m)),
    Fault(302, "nucleus before the likeliest", ("top_p", "top_k"), "train", "probability cut off",
          (0.3, 0.05), mixed("train", lambda _: scoring.JointSupport),
          drawn("gemma", "hf", "torch", top_k=lambda _: 20, top_p=lambda m: 1 - m)),
    Fault(303, "first token by another node", ("first_token", "temperature"), "infer", "temperature − 1",
          (1.0, 0.25), mixed("infer", lambda _: scoring.PrefillElsewhere),
          drawn("hunyuan moe", "hf", "torch", max_tokens=lambda _: 16, temperature=lambda m: 1 + m)),
    Fault(304, "letters normalised", ("retokenised",), "train", "letters",
          (30, 3), mixed("train", lambda m: scoring.normalised(round(m))), around("nemotron", "hf", "hf")),
    Fault(305, "running sum of the softmax", ("softmax_precision",), "infer", "blocks",
          (416, 104), mixed("infer", lambda m: scoring.running_sum(round(m))),
          around("command r", "torch", "hf", WARM)),
    Fault(306, "capped after the temperature", ("softcap", "temperature"), "train", "1 − temperature",
          (0.4, 0.04), mixed("train", lambda _: scoring.CapsLast),
          drawn("nanochat", "torch", "hf", temperature=lambda m: 1 - m)),
)  # fmt: skip

PARTS = (
    Fault(307, "angles without their scale", ("rope",), "infer", "scale − 1",
          (0.5, 0.03), lambda _: (Change("infer", alter=layers.angles_unscaled),),
          around("apertus", "torch", "torch", rope_parameters__attention_factor=lambda m: 1 + m)),
    Fault(308, "scores capped by one kernel", ("kernel", "attention", "softcap"), "infer", "1 / cap",
          (1.0, 0.1), mixed("train", lambda _: layers.CapsScores),
          around("vaultgemma", "hf", "hf", attn_logit_softcapping=lambda m: 1 / m)),
    Fault(309, "bias of the head lost", ("bias",), "train", "spread of the bias",
          (1.0, 0.05), lambda _: (Change("train", alter=layers.head_unbiased),), _biased),
    Fault(310, "inputs of experts without a limit", ("activation",), "infer", "1 / limit",
          (2.0, 0.55), lambda _: (Change("infer", alter=layers.unlimited),),
          around("gpt oss", "hf", "hf", swiglu_limit=lambda m: 1 / m)),
    Fault(311, "weights of experts add up to one", ("routing",), "infer", "experts left out",
          (6, 1), lambda _: (Change("infer", alter=layers.renormalised),),
          around("qwen2 moe", "hf", "torch", COOL, num_experts_per_tok=lambda m: 8 - round(m))),
)  # fmt: skip

WEIGHTS = (
    Fault(312, "adapter scaled twice", ("stale_tensor",), "infer", "spreads of the tensor",
          (0.2, 0.01), lambda _: (), around("persimmon", "torch", "hf"), weights.adapter_scaled_twice),
    Fault(313, "norms of heads swapped", ("swapped_tensors",), "infer", "layers",
          (4, 1), lambda m: weights.head_norms_swapped(3, round(m)), around("dots", "torch", "hf", WARM)),
    Fault(314, "experts in blocks", ("quantised_weights",), "infer", "relative step",
          (2**-2, 2**-4), weights.experts_in_blocks, around("ernie moe", "hf", "torch")),
)  # fmt: skip

PASSES = (
    Fault(315, "coarse recurrent states", ("kv_precision", "decode_kernel"), "infer", "step, of a row's largest",
          (1 / 7, 1 / 127), mixed("infer", passes.coarse_states), around("bamba", "hf", "hf")),
    Fault(316, "convolutions over packed sequences", ("packed_leak",), "train", "tokens",
          (15, 2), mixed("train", lambda _: passes.PacksConvolutions), _convolved),
    Fault(317, "noise of training", ("dropout", "nondeterminism", "routing"), "train", "relative noise",
          (0.1, 0.005), lambda _: (Change("train", alter=layers.in_training_mode),),
          around("minimax", "hf", "torch", COOL, router_jitter_noise=lambda m: m)),
    Fault(318, "experts over ranks", ("parallel_reduction",), "train", "rounding",
          (2**-4, 2**-8), lambda m: (Change("train", layers.ExpertParallel, layers.experts_over_ranks(m)),),
          around("phi moe", "torch", "hf")),
    Fault(319, "window as a ring", ("sliding_window", "decode_kernel"), "infer", "tokens too few",
          (24, 1), mixed("infer", lambda m: passes.rolling_buffer(round(m))), around("ministral", "hf", "torch")),
    Fault(320, "mask from ids", ("attention", "left_padding"), "train", "ids",
          (40, 4), mixed("train", lambda m: passes.mask_from_ids(round(m))),
          around("jetmoe", "hf", "torch")),
)  # fmt: skip

FOURTH: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
