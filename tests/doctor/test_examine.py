"""The examination: each probe names its fault in real backends, and nothing else is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from tiers import one_in
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaAttention

from benchmarks.doctor_faults.ground import make_ground
from benchmarks.doctor_faults.heldout import HELD_OUT
from benchmarks.doctor_faults.tuning import TUNING
from lockstep.batch import Batch
from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.torch import TorchBackend
from lockstep.doctor.base import USUAL, Capability, Conditions, DType, Scores, Side
from lockstep.doctor.examine import AT_FLOOR, Diagnosis, examine
from lockstep.doctor.selftest.fault import PLAINLY, Case, Change, Setup, build, built
from lockstep.doctor.selftest.ground import Ground
from lockstep.types import Request, SamplingParams

FAULTS = {fault.number: fault for fault in TUNING + HELD_OUT}
COOL = replace(PLAINLY, temperature=0.7)
LIKE_ENGINES = frozenset[Capability](
    ("generate", "dtype", "batch_size", "config", "fresh", "unchunked", "weights", "load")
)


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    return make_ground(tmp_path_factory.mktemp("ground"))


def examined(case: Case, requests: int = 10, tokens: int = 24) -> Diagnosis:
    sampling = replace(case.sampling, max_tokens=tokens)
    diagnosis = examine(case.train, case.infer, case.folder, case.requests[:requests], sampling)
    refused = [(one.name, one.said.split(":")[0]) for one in diagnosis.log if one.status == "refused"]
    assert len(refused) == len(set(refused)), "what was refused is asked again"
    return diagnosis


def named(diagnosis: Diagnosis) -> dict[str, str | None]:
    return {one.cause: one.side for one in diagnosis.causes}


def said(diagnosis: Diagnosis, probe: str) -> dict[str, str]:
    """What a probe said, by status."""
    return {looked.status: looked.said for looked in diagnosis.log if looked.name == probe}


PROBES = [
    (6, "token ids"),
    (12, "configuration"),
    (33, "types"),
    (24, "repeats"),
    (29, "repeats"),
    (4, "sampling semantics"),
    (30, "sampling semantics"),
    (11, "sampling semantics"),
    (16, "weight fingerprints"),
    (5, "first token"),
    (2, "sampling semantics"),
    (22, "batch and padding"),
    (31, "batch and padding"),
    (32, "batch and padding"),
    (14, "decoding against prefill"),
    (15, "caches"),
    (10, "layer by layer"),
    (28, "layer by layer"),
    (21, "layer by layer"),
    (613, "layer by layer"),
    (620, "batch and padding"),
    (701, "sampling semantics"),
    (704, "layer by layer"),
    (707, "layer by layer"),
    (711, "weight fingerprints"),
    (719, "batch and padding"),
]


@pytest.mark.parametrize("one", one_in(4, PROBES, lambda one: f"{one[0]}-{one[1]}"))
def test_a_fault_gets_its_name_from_its_probe_and_no_other(one: tuple[int, str], ground: Ground) -> None:
    number, probe = one
    fault = FAULTS[number]
    diagnosis = examined(build(ground, fault.large))
    assert {one.cause for one in diagnosis.causes} <= set(fault.causes)
    (found,) = diagnosis.causes
    assert fault.side in (found.side, None)
    assert found.confidence == "confirmed"
    assert found.evidence
    assert found.cause in said(diagnosis, probe)["found"]
    assert diagnosis.disagrees
    assert diagnosis.explained
    # Nodes are given the other side's values in fp32 alone, not token by token, so that takes most of a gap away.
    assert diagnosis.left <= AT_FLOOR * diagnosis.floor_left or probe == "layer by layer"


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_healthy_sides_get_no_name(dtype: DType, ground: Ground) -> None:
    diagnosis = examined(built(ground, Setup(dtype=dtype), ()))
    assert not diagnosis.causes
    assert not diagnosis.disagrees
    assert not diagnosis.explained
    assert {looked.status for looked in diagnosis.log} == {"clean", "skipped"}
    assert said(diagnosis, "layer by layer") == {"skipped": "nothing is left to explain"}


def test_two_faults_get_two_names_each_with_its_side(ground: Ground) -> None:
    diagnosis = examined(build(ground, FAULTS[12].large, FAULTS[5].large))
    assert named(diagnosis) == {"norm_eps": "infer", "first_token": "train"}
    assert diagnosis.explained
    assert diagnosis.left < AT_FLOOR * diagnosis.floor_left


@pytest.mark.parametrize("side", ["train", "infer"])
def test_the_side_that_is_wrong_is_blamed(side: Side, ground: Ground) -> None:
    faulty = [replace(change, side=side) for change in FAULTS[7].large.changes]
    diagnosis = examined(built(ground, Setup(train="torch", infer="hf"), faulty))
    assert named(diagnosis) == {"rope": side}


@pytest.mark.parametrize("side", ["train", "infer"])
def test_the_wrong_side_is_found_in_layers_too(side: Side, ground: Ground) -> None:
    """A factor between modules, which neither configuration nor weights show."""

    @torch.no_grad()
    def alter(model: PreTrainedModel) -> None:
        norm = model.get_submodule("model.layers.1.post_attention_layernorm")
        usual = norm.forward
        norm.forward = lambda x: usual(x) * 1.3

    diagnosis = examined(built(ground, Setup(), [Change(side, alter=alter)]))
    assert named(diagnosis) == {"norm_eps": side}
    assert "model.layers.1.post_attention_layernorm:out" in said(diagnosis, "layer by layer")["found"]


class Misaligned(HFBackend):
    """Each number stands one place late."""

    def score(self, batch: Batch, conditions: Conditions = USUAL) -> Scores:
        scores = super().score(batch, conditions)
        return replace(scores, logprob=scores.logprob.roll(1) * batch.mask)


def test_numbers_one_place_late_are_off_by_one(ground: Ground) -> None:
    diagnosis = examined(built(ground, Setup(), [Change("train", Misaligned)]))
    assert named(diagnosis) == {"off_by_one": "train"}
    assert "off_by_one" in said(diagnosis, "lag")["found"]
    assert diagnosis.left < AT_FLOOR * diagnosis.floor_left


@pytest.mark.full
def test_a_kernel_is_named_where_layers_cannot_be_seen(ground: Ground) -> None:
    class Closed(HFBackend):
        capabilities = HFBackend.capabilities - {"modules"}

    def alter(model: PreTrainedModel) -> None:
        if model.config._attn_implementation == "sdpa":
            for module in model.modules():
                if isinstance(module, LlamaAttention):
                    module.scaling *= 1.2

    diagnosis = examined(built(ground, Setup(), [Change("train", Closed, alter)]))
    assert named(diagnosis) == {"kernel": "train"}
    assert "no modules" in said(diagnosis, "layer by layer")["skipped"]


@pytest.mark.full
def test_probes_say_what_a_backend_cannot_show(ground: Ground) -> None:
    class Bare(TorchBackend):
        capabilities = frozenset[Capability](("generate",))

    class BareToo(HFBackend):
        capabilities = frozenset[Capability](("generate",))

    cold = [Change("train", BareToo), Change("infer", Bare), *FAULTS[13].large.changes]
    diagnosis = examined(built(ground, Setup(), cold))
    assert not diagnosis.causes
    assert diagnosis.disagrees
    assert not diagnosis.explained
    for probe in ("weight fingerprints", "layer by layer", "precision", "kernel"):
        assert said(diagnosis, probe).keys() == {"skipped"}


@pytest.mark.full
def test_a_side_without_shaped_scores_is_asked_for_none(ground: Ground) -> None:
    class LikeAnEngine(TorchBackend):
        capabilities = LIKE_ENGINES

        def score(self, batch: Batch, conditions: Conditions = USUAL) -> Scores:
            assert batch.sampling is None
            return super().score(batch, conditions)

    raw = [Change("infer", LikeAnEngine), *FAULTS[1].large.changes]
    diagnosis = examined(built(ground, Setup(dtype="bf16", sampling=COOL), raw))
    assert named(diagnosis) == {"temperature": "infer"}


@pytest.mark.full
def test_what_no_probe_knows_gets_no_name(ground: Ground) -> None:
    class Wavering(HFBackend):
        def logprob(
            self, logits_MV: Tensor, token_M: Tensor, sampling: SamplingParams, conditions: Conditions
        ) -> Tensor:
            wave = torch.sin(12.9898 * token_M + 78.233 * torch.arange(len(token_M)))
            return super().logprob(logits_MV, token_M, sampling, conditions) + 0.1 * wave

    diagnosis = examined(built(ground, Setup(), [Change("train", Wavering)]))
    assert not diagnosis.causes
    assert diagnosis.disagrees
    assert not diagnosis.explained
    assert diagnosis.left == diagnosis.gap
    assert "router could not be put into fp32" in said(diagnosis, "precision")["clean"]


@pytest.mark.full
def test_a_counter_setting_has_to_take_effect(ground: Ground) -> None:
    class Stubborn(TorchBackend):
        def score(self, batch: Batch, conditions: Conditions = USUAL) -> Scores:
            return super().score(batch, replace(conditions, dtype=None))

    changes = [Change("infer", Stubborn, dtype="bf16"), Change("train", dtype="fp32")]
    diagnosis = examined(built(ground, Setup(), changes))
    denial = "took no effect: infer was asked for dtype float32, and computed with bfloat16"
    assert denial in said(diagnosis, "types")["refused"]
    assert "dtype" not in named(diagnosis)


def test_a_counter_setting_that_cannot_be_built_is_refused_in_words(ground: Ground) -> None:
    class Unbuildable(HFBackend):
        def score(self, batch: Batch, conditions: Conditions = USUAL) -> Scores:
            changed = (("hidden_act", "nothing"),) if conditions.config else ()
            return super().score(batch, replace(conditions, config=changed))

    changes = [Change("train", Unbuildable, config={"rope_parameters.rope_theta": 500.0})]
    diagnosis = examined(built(ground, Setup(), changes))
    assert "cannot build the model" in said(diagnosis, "configuration")["refused"]
    assert "hidden_act=nothing" in said(diagnosis, "configuration")["refused"]


def test_what_cannot_be_taken_back_keeps_the_share_that_it_took(ground: Ground) -> None:
    case = build(ground, FAULTS[15].large, FAULTS[12].large)
    assert named(examined(case)).keys() == {"stale_prefix_cache", "norm_eps"}


def test_dropout_is_found_on_the_side_that_draws(ground: Ground) -> None:
    def alter(model: PreTrainedModel) -> None:
        model.train()

    setup = Setup(infer="hf", config=(("attention_dropout", 0.1),))
    case = built(ground, setup, [Change("infer", alter=alter)])
    assert named(examined(case)) == {"dropout": "infer"}
    assert case.infer.settings()["training"]


@pytest.mark.full
def test_noise_does_not_stand_for_what_decoding_does(ground: Ground) -> None:
    """Taking prefill scores instead would take away both."""

    class Trembling(TorchBackend):
        def score(self, batch: Batch, conditions: Conditions = USUAL) -> Scores:
            scores = super().score(batch, conditions)
            return replace(scores, logprob=(scores.logprob + 5e-4 * torch.randn(len(scores.logprob))) * batch.mask)

    changes = [Change("infer", Trembling), *FAULTS[14].large.changes]
    assert named(examined(built(ground, Setup(), changes)))["kv_precision"] == "infer"


@pytest.mark.parametrize("tokens", [1, 2])
def test_responses_of_a_token_or_two(tokens: int, ground: Ground) -> None:
    assert not examined(built(ground, Setup(), ()), tokens=tokens).causes
    assert named(examined(build(ground, FAULTS[12].large), tokens=tokens)) == {"norm_eps": "infer"}


def test_a_fault_of_single_tokens_is_no_first_token_fault(ground: Ground) -> None:
    assert not named(examined(build(ground, FAULTS[23].large), tokens=1)).keys() & {"first_token", "temperature"}


@pytest.mark.full
def test_impossible_tokens_are_a_gap_and_no_noise(ground: Ground) -> None:
    class Impossible(TorchBackend):
        def generate(
            self, requests: Sequence[Request], sampling: SamplingParams, conditions: Conditions = USUAL
        ) -> Batch:
            drawn = super().generate(requests, sampling, conditions)
            never = drawn.mask & (drawn.position % 7 == 0)
            return drawn.with_columns({"sampler_logprob": drawn["sampler_logprob"].masked_fill(never, -torch.inf)})

    diagnosis = examined(built(ground, Setup(), [Change("infer", Impossible)]))
    assert diagnosis.gap > 0.5
    assert named(diagnosis) == {}  # no kernel is to blame: the head is given what prefill gives it
    assert any("they part where the logits are used" in looked.said for looked in diagnosis.log)


def test_backends_are_as_they_were(ground: Ground) -> None:
    case = build(ground, FAULTS[16].large)
    sides = (case.train, case.infer)
    before = [{name: tensor.clone() for name, tensor in side.weights()} for side in sides]
    drawn = case.infer.generate(case.requests[:4], replace(PLAINLY, max_tokens=8))
    scores = [side.score(drawn).logprob for side in sides]
    examined(case)
    for side, held, score in zip(sides, before, scores, strict=True):
        assert all(torch.equal(tensor, held[name]) for name, tensor in side.weights())
        assert torch.equal(side.score(drawn).logprob, score)
        modules = list(side.network().modules.modules())
        assert not any(module._forward_hooks or module._forward_pre_hooks for module in modules)


def test_what_a_side_holds_for_a_while_leaves_no_trace(ground: Ground) -> None:
    case = built(ground, Setup(), [Change("train", HFBackend, dtype="bf16"), Change("infer", TorchBackend)])
    fine, drawn = Conditions(dtype="fp32"), case.infer.generate(case.requests[:2], replace(PLAINLY, max_tokens=8))
    before = [case.train.score(drawn, conditions).logprob for conditions in (USUAL, fine)]
    name, tensor = next((name, tensor) for name, tensor in case.train.weights() if "q_proj" in name)
    with case.train.holding({name: 2 * tensor}):
        meanwhile = [case.train.score(drawn, conditions).logprob for conditions in (USUAL, fine)]
    after = [case.train.score(drawn, conditions).logprob for conditions in (USUAL, fine)]
    assert all(map(torch.equal, after, before))
    assert not any(map(torch.equal, meanwhile, before))
