"""The fifth list of tuning faults: other mistakes, by a fifth hand, which had seen no rule of the doctor.

They were held out once, as those of the lists before it.
"""

from __future__ import annotations

from benchmarks.doctor_faults import fifth_layers as layers
from benchmarks.doctor_faults import fifth_passes as passes
from benchmarks.doctor_faults import fifth_scoring as scoring
from benchmarks.doctor_faults.fault import Change, Fault, Setup
from benchmarks.doctor_faults.faults_weights import refit, refit_after_serving
from benchmarks.doctor_faults.surroundings import altered, around, drawn, mixed
from lockstep.types import SamplingParams

WARM = SamplingParams(max_tokens=64, temperature=1.25)
COOL = SamplingParams(max_tokens=64, temperature=0.75)
NUCLEUS = SamplingParams(max_tokens=64, top_p=0.95)
LIKELY = SamplingParams(max_tokens=64, temperature=0.9, top_k=80)


def _bytes(share: float) -> Setup:
    return Setup("bitnet, many bytes" if share > 1 / 40 else "bitnet, few bytes", "hf", "hf", sampling=WARM)


def _bases(ratio: float) -> Setup:
    return Setup("laguna, bases apart" if ratio > 1 else "laguna, bases together", "torch", "torch")


DRAWING = (
    Fault(401, "log-probabilities divided", ("temperature",), "infer", "temperature − 1",
          (0.4, 0.03), mixed("infer", lambda _: scoring.DividesLogprobs),
          drawn("ministral 3", "torch", "hf", temperature=lambda m: 1 + m)),
    Fault(402, "nucleus before the temperature", ("top_p", "temperature"), "train", "temperature − 1",
          (0.8, 0.1), mixed("train", lambda _: scoring.NucleusFirst),
          drawn("jais", "hf", "torch", temperature=lambda m: 1 + m, top_p=lambda _: 0.9)),
    Fault(403, "likeliest of each rank", ("top_k",), "train", "1 / k",
          (1 / 8, 1 / 90), mixed("train", lambda _: scoring.LikeliestOfEachRank),
          drawn("hyperclova", "hf", "torch", temperature=lambda _: 0.9, top_k=lambda m: round(1 / m))),
    Fault(404, "aborted and resumed", ("off_by_one",), "infer", "share behind the seam",
          (0.75, 0.05), mixed("infer", scoring.resumed), around("glm, first", "hf", "torch", COOL)),
    Fault(405, "bytes that are no text", ("retokenised",), "train", "share of the vocabulary",
          (0.1, 0.0025), mixed("train", lambda _: scoring.ThroughUTF8), _bytes),
    Fault(406, "prompt favoured", ("penalty",), "infer", "penalty − 1",
          (0.5, 0.05), mixed("infer", lambda m: scoring.prompt_favoured(1 + m)), around("biogpt", "torch", "hf")),
    Fault(407, "lanes behind the vocabulary", ("padded_vocabulary",), "train", "tokens in a block",
          (4096, 1024), mixed("train", lambda m: scoring.unmasked_lanes(round(m))),
          around("granite moe, shared", "hf", "torch", WARM)),
)  # fmt: skip

PARTS = (
    Fault(408, "epsilon of the norms behind", ("norm_eps",), "train", "epsilon",
          (0.03, 0.0003), altered("train", layers.post_norm_epsilon), around("afmoe", "torch", "hf", LIKELY)),
    Fault(409, "one rotary base for all layers", ("rope",), "infer", "ratio of the bases − 1",
          (49.0, 0.1), altered("infer", lambda _: layers.one_base), _bases),
    Fault(410, "windows in the other layers", ("sliding_window",), "train", "1 / window",
          (1 / 8, 1 / 100),
          lambda _: (Change("train", config={"layer_types": ["full_attention", "sliding_attention"] * 2}),),
          around("cwm", "hf", "torch", NUCLEUS, sliding_window=lambda m: round(1 / m))),
    Fault(418, "whole tiles by another kernel", ("batch_variance",), "train", "rounding",
          (2**-3, 2**-7), altered("train", layers.tiles_summed_in_pieces), around("diffllama", "hf", "hf")),
    Fault(419, "rounded by chance", ("nondeterminism",), "infer", "rounding",
          (2**-5, 2**-9), altered("infer", layers.rounded_by_chance), around("granite moe", "torch", "hf", COOL)),
)  # fmt: skip

WEIGHTS = (
    Fault(411, "merged weights of before", ("stale_tensor",), "infer", "relative step",
          (0.2, 0.01), altered("infer", lambda _: layers.gate_and_up_cached), around("stablelm", "hf", "hf"), refit),
    Fault(412, "experts by an older map", ("permuted_tensor",), "infer", "layers",
          (4, 1), lambda m: layers.experts_moved(3, round(m)), around("flex olmo", "torch", "torch")),
    Fault(413, "head and embedding drift apart", ("tied_head",), "train", "relative step",
          (0.3, 0.02), altered("train", lambda _: layers.untied), around("hunyuan 3", "hf", "torch", NUCLEUS),
          layers.step_and_send_tied),
    Fault(414, "frequencies nobody sends", ("missed_buffer", "rope"), "infer", "base / 10,000 − 1",
          (20.0, 0.01), altered("infer", lambda _: layers.frequencies_rebuilt),
          around("minimax 2", "hf", "torch", rope_parameters__rope_theta=lambda m: 10_000.0 * (1 + m))),
)  # fmt: skip

PASSES = (
    Fault(415, "chunks that see themselves only", ("chunked_state",), "infer", "1 / tokens in a chunk",
          (1 / 12, 1 / 56), mixed("infer", lambda m: passes.blind_chunks(round(1 / m))),
          around("exaone moe", "hf", "torch")),
    Fault(416, "pinned blocks", ("stale_prefix_cache",), "infer", "relative step",
          (0.1, 0.005), mixed("infer", lambda _: passes.PinnedPrompts), around("solar", "torch", "torch", WARM),
          refit_after_serving),
    Fault(417, "pads between turns", ("left_padding",), "train", "tokens in a block",
          (48, 2), mixed("train", lambda m: passes.pads_between_turns(round(m))), around("mellum", "hf", "torch")),
    Fault(420, "positions of unpadded boundaries", ("packed_positions",), "train", "tokens in a block",
          (32, 8), mixed("train", lambda m: passes.unpadded_boundaries(round(m))),
          around("deepseek 2", "hf", "torch", LIKELY)),
)  # fmt: skip

FIFTH: tuple[Fault, ...] = tuple(sorted(DRAWING + PARTS + WEIGHTS + PASSES, key=lambda fault: fault.number))
