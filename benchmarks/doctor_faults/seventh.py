"""The seventh list of tuning faults: other mistakes, by a seventh hand, which had seen no rule of the doctor.

They were held out once, as those of the lists before it.
"""

from __future__ import annotations

from benchmarks.doctor_faults import seventh_layers as layers
from benchmarks.doctor_faults import seventh_passes as passes
from benchmarks.doctor_faults import seventh_scoring as scoring
from benchmarks.doctor_faults import seventh_weights as weights
from benchmarks.doctor_faults.fault import Fault
from benchmarks.doctor_faults.means import BF16, E4M3, E5M2, FP16
from benchmarks.doctor_faults.surroundings import altered, around, drawn, mixed
from lockstep.types import SamplingParams

SHORT = SamplingParams(max_tokens=16, temperature=1.15)
WARM = SamplingParams(max_tokens=64, temperature=1.3)
COOL = SamplingParams(max_tokens=64, temperature=0.85)
NUCLEUS = SamplingParams(max_tokens=64, temperature=1.2, top_p=0.94)
LIKELY = SamplingParams(max_tokens=64, top_k=70)


DRAWING = (
    Fault(601, "divided twice", ("temperature",), "train", "temperature − 1",
          (0.4, 0.04), mixed("train", lambda _: scoring.DividesTwice),
          drawn("glm4", "torch", "hf", temperature=lambda m: 1 + m)),
    Fault(602, "nucleus of the nucleus", ("top_p",), "infer", "probability cut off",
          (0.3, 0.04), mixed("infer", lambda _: scoring.nucleus_of_the_nucleus()),
          drawn("helium", "torch", "hf", top_p=lambda m: 1 - m)),
    Fault(603, "bias left in slots", ("penalty",), "infer", "nats",
          (2.0, 0.15), mixed("infer", scoring.bias_left_in_slots), around("mistral", "torch", "torch", LIKELY)),
    Fault(604, "bonus token by the draft's position", ("off_by_one",), "infer", "1 / tokens in a run",
          (1 / 2, 1 / 32), mixed("infer", lambda m: scoring.bonus_by_the_draft(round(1 / m))),
          around("command r", "hf", "hf", COOL)),
    Fault(605, "prompt of the group's first row", ("first_token", "batch_variance"), "train", "share of rows",
          (1.0, 0.3), mixed("train", passes.prompt_of_the_group),
          around("ernie moe", "hf", "torch", SHORT)),
    Fault(606, "earlier turns anew", ("retokenised",), "train", "tokens",
          (64, 24), mixed("train", lambda m: scoring.earlier_turns_anew(round(m))), around("qwen3", "hf", "torch")),
    Fault(607, "rows drawn by resizing", ("padded_vocabulary",), "train", "rows",
          (96, 6), altered("train", lambda m: scoring.rows_drawn_by_resizing(round(m))),
          around("apertus", "torch", "hf", WARM)),
)  # fmt: skip

PARTS = (
    Fault(609, "angles in a low type", ("rope",), "train", "rounding",
          (BF16, FP16), mixed("train", layers.angles_in_low_type),
          around("seed oss, few spare rows", "hf", "torch", COOL)),
    Fault(610, "windows in blocks", ("sliding_window",), "train", "keys in a block",
          (48, 2), mixed("train", lambda m: passes.windows_in_blocks(round(m))), around("cohere", "hf", "torch")),
    Fault(611, "bias of every rank", ("bias",), "infer", "size of the biases",
          (1.0, 0.05), lambda _: layers.bias_of_every_rank(),
          around("phi2", "torch", "hf", NUCLEUS, layers.biases_scaled)),
    Fault(612, "epsilon outside the root", ("norm_eps",), "train", "epsilon",
          (0.1, 0.004), altered("train", lambda _: layers.epsilon_outside_the_root),
          around("hyperclova", "torch", "torch", rms_norm_eps=lambda m: m)),
    Fault(613, "activation from a table", ("activation",), "infer", "step",
          (0.5, 0.05), altered("infer", layers.activation_from_a_table), around("granite", "torch", "hf", WARM)),
    Fault(614, "kernel without sinks", ("attention", "kernel"), "infer", "keys that sinks stand for",
          (30.0, 1.0), mixed("infer", lambda _: layers.Sinkless),
          around("gpt oss", "hf", "hf", alter=layers.sinks_of)),
    Fault(615, "added ids clamped", ("embedding",), "infer", "rows",
          (100, 2), altered("infer", lambda m: layers.added_rows_clamped(round(m))),
          around("hunyuan", "hf", "torch", COOL)),
)  # fmt: skip

WEIGHTS = (
    Fault(616, "largest changes sent", ("stale_tensor",), "infer", "relative step",
          (0.1, 0.005), lambda _: (), around("jais", "torch", "torch", LIKELY), weights.largest_changes_sent),
    Fault(617, "stages in another order", ("swapped_tensors",), "train", "parts",
          (4, 1), lambda m: weights.stages_in_another_order(round(m)), around("cwm", "hf", "torch", NUCLEUS)),
    Fault(618, "few bits in the forward pass", ("quantised_weights",), "train", "step, of a row's range",
          (1 / 15, 1 / 127), altered("train", layers.fake_quantised), around("minicpm", "torch", "hf")),
    Fault(619, "factors of layers never sent", ("missed_buffer",), "infer", "spread of their logarithms",
          (0.4, 0.02), lambda _: weights.scalars_never_sent(),
          around("gemma4", "torch", "hf", COOL, weights.scalars_off_one)),
)  # fmt: skip

PASSES = (
    Fault(608, "shares in fp8", ("decode_kernel",), "infer", "rounding",
          (E5M2, E4M3), mixed("infer", passes.shares_in_low_type), around("smollm", "hf", "torch")),
    Fault(620, "boundaries of padded lengths", ("packed_leak",), "train", "tokens",
          (32, 2), mixed("train", lambda m: passes.boundaries_of_padded_lengths(round(m))),
          around("lfm moe", "torch", "hf", LIKELY)),
)  # fmt: skip

SEVENTH: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
