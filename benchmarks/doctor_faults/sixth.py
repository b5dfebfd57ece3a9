"""The sixth list of tuning faults: other mistakes, by a sixth hand, which had seen no rule of the doctor.

They were held out once, as those of the lists before it.
"""

from __future__ import annotations

from benchmarks.doctor_faults import sixth_layers as layers
from benchmarks.doctor_faults import sixth_passes as passes
from benchmarks.doctor_faults import sixth_weights as weights
from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.means import BF16, E4M3, E5M2, FP16
from benchmarks.doctor_faults.second_scoring import parallel
from benchmarks.doctor_faults.surroundings import altered, around, drawn, mixed
from lockstep.types import SamplingParams

SHORT = SamplingParams(max_tokens=16, temperature=1.1)
WARM = SamplingParams(max_tokens=64, temperature=1.35)
COOL = SamplingParams(max_tokens=64, temperature=0.8)
NUCLEUS = SamplingParams(max_tokens=64, temperature=1.1, top_p=0.92)
LIKELY = SamplingParams(max_tokens=64, top_k=60)


DRAWING = (
    Fault(501, "first token from a pad", ("first_token",), "train", "tokens in a block",
          (64, 2), mixed("train", lambda m: passes.first_from_pad(round(m))),
          around("glm moe, latent", "hf", "torch", SHORT)),
    Fault(502, "capped twice", ("softcap",), "infer", "1 / cap",
          (1 / 6, 1 / 30), altered("infer", lambda _: layers.capped_twice),
          around("gemma4", "torch", "hf", COOL, final_logit_softcapping=lambda m: 1 / m)),
    Fault(511, "loss multiplies in a low type", ("head_precision",), "train", "rounding",
          (E4M3, BF16), mixed("train", layers.head_in_low_type), around("mimo", "hf", "hf", WARM)),
    Fault(516, "divided in a low type", ("softmax_precision",), "train", "rounding",
          (BF16, FP16), mixed("train", layers.divides_in_place),
          around("ctrl", "hf", "torch", WARM, lambda _: layers.off_zero(80.0))),
    Fault(517, "accepted drafts", ("temperature",), "infer", "temperature − 1",
          (0.5, 0.05), mixed("infer", lambda _: passes.AcceptedDraftsRaw),
          drawn("longcat", "hf", "torch", temperature=lambda m: 1 + m)),
    Fault(520, "suppressed tokens", ("penalty",), "infer", "tokens",
          (60, 12), mixed("infer", lambda m: layers.suppressed(round(m))), around("hrm", "torch", "hf", NUCLEUS)),
)  # fmt: skip

PARTS = (
    Fault(503, "fused without bias", ("bias",), "infer", "layers",
          (4, 1), altered("infer", lambda m: layers.fused_without_bias(round(m))), around("youtu", "torch", "hf")),
    Fault(507, "biases in the weights of experts", ("routing",), "train", "spread of the biases",
          (0.5, 0.05), altered("train", lambda _: layers.biases_in_the_weights),
          around("lfm moe", "torch", "torch", COOL, layers.expert_biases)),
    Fault(508, "dropout in every mode", ("dropout", "nondeterminism"), "train", "probability",
          (0.2, 0.005), altered("train", layers.drops_out_always), around("recurrent gemma", "torch", "hf", LIKELY)),
    Fault(510, "sums sent as integers", ("parallel_reduction",), "infer", "step, of a block's largest",
          (1 / 7, 1 / 127), layers.quick_reduce, around("jamba", "hf", "torch")),
    Fault(513, "slopes of the first rank", ("attention",), "infer", "ranks − 1",
          (3, 1), lambda m: layers.slopes_of_the_first_rank(1 + round(m)), around("bloom", "hf", "hf", NUCLEUS)),
    Fault(514, "slope of another model", ("activation",), "train", "slope − 1",
          (0.702, 0.05), altered("train", layers.swish_of_another_model), around("doge", "hf", "hf")),
    Fault(515, "added rows without their factor", ("embedding",), "train", "rows",
          (100, 5), altered("train", lambda m: layers.new_rows_unscaled(round(m))),
          around("xglm", "hf", "hf", WARM)),
)  # fmt: skip

WEIGHTS = (
    Fault(504, "keys for values", ("swapped_tensors",), "infer", "layers",
          (4, 1), lambda m: weights.keys_for_values(round(m)), around("qwen3.5", "torch", "hf", LIKELY)),
    Fault(506, "base of normal floats", ("quantised_weights",), "train", "1 / levels",
          (1 / 16, 1 / 256), lambda m: weights.normal_floats(round(1 / m)),
          around("qwen3 next", "hf", "torch", NUCLEUS)),
    Fault(518, "second rank missed a refit", ("stale_tensor",), "infer", "relative step",
          (0.2, 0.01), mixed("infer", lambda _: parallel(2)),
          around("jamba", "torch", "hf", COOL), weights.second_rank_missed),
    Fault(519, "heads not interleaved", ("permuted_tensor",), "train", "layers",
          (4, 1), lambda m: weights.heads_not_interleaved(round(m)), around("bloom", "hf", "hf")),
)  # fmt: skip

PASSES = (
    Fault(505, "scales of the first batch", ("kv_precision",), "infer", "rounding",
          (E5M2, E4M3), mixed("infer", passes.scales_of_the_first_batch),
          around("granite, sinks", "hf", "hf", WARM)),
    Fault(509, "mask of ones", ("packed_leak",), "train", "sequences before",
          (7, 1), mixed("train", lambda m: passes.mask_of_ones(round(m) + 1)),
          around("cohere2 moe", "hf", "torch", LIKELY)),
    Fault(512, "splits merged in another base", ("decode_kernel",), "infer", "1 / keys in a split",
          (1 / 4, 1 / 24), mixed("infer", lambda m: passes.merged_by_base_two(round(1 / m))),
          around("minicpm", "hf", "torch")),
)  # fmt: skip

SIXTH: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
