"""A learner over ranks that share rows, heads and tokens against one process: equal losses,
gradients and weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_models import OPTIMIZER, SECTION, VOCABULARY, over, ragged, requests
from twins import STEPS, Models, Twins, demonstrations, lengths, recorded, section, twins

from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection, Parallel
from lockstep.core.batch import Batch
from lockstep.core.types import HeadKind, SamplingParams
from lockstep.learners.base import train
from lockstep.losses.base import Loss
from lockstep.losses.distill import Distillation
from lockstep.losses.ppo import ClippedSurrogate, ClippedValue
from lockstep.losses.preference import Preference
from lockstep.models.load import load_causal_lm
from lockstep.samplers.torch.sampler import TorchSampler

pytestmark = pytest.mark.needs("gloo")
MANY = 20
SURROGATE = ClippedSurrogate(0.2, 0.2, kl_coef=0.05, entropy_coef=0.01)
LAYOUTS: dict[str, tuple[dict[str, int], str]] = {
    "dp2": ({"dp": 2}, "qwen3"),
    "tp2": ({"tp": 2}, "qwen2 tied"),
    "cp2": ({"cp": 2}, "qwen2 window"),
    "dp2 tp2": ({"dp": 2, "tp": 2}, "llama"),
    "dp2 cp2": ({"dp": 2, "cp": 2}, "qwen2 tied"),
    "tp2 cp2": ({"tp": 2, "cp": 2}, "qwen3"),
    "2 copies": ({"dp_replicate": 2}, "qwen2"),
    "2 copies dp2": ({"dp_replicate": 2, "dp": 2}, "qwen3"),
    "2 copies tp2": ({"dp_replicate": 2, "tp": 2}, "llama"),
    "megatron": ({}, "qwen2 tied"),
    "megatron dp2": ({"dp": 2}, "llama"),
    "megatron tp2": ({"tp": 2}, "qwen3"),
    "megatron cp2": ({"cp": 2}, "qwen2"),
    "megatron pp2": ({"pp": 2}, "qwen2 tied"),
    "megatron tp2 pp2": ({"tp": 2, "pp": 2}, "qwen2 tied"),
    "megatron dp2 pp2": ({"dp": 2, "pp": 2}, "qwen3"),
}
TWO = ("dp2", "tp2", "cp2", "2 copies")
"""Of two ranks, which start soonest."""
DAILY = ("dp2", "tp2", "cp2", "megatron pp2")


def layouts(*in_ci: str) -> pytest.MarkDecorator:
    """All of them: some for `make test`, the others of those that are named for `make test-all`,
    the rest as proofs.
    """
    params = [
        pytest.param(name, id=name.replace(" ", ""), marks=[*_tier(name, in_ci), *_needs(name)])
        for name in LAYOUTS
    ]
    return pytest.mark.parametrize("layout", params, indirect=True)


def _tier(layout: str, in_ci: tuple[str, ...]) -> list[pytest.MarkDecorator]:
    if layout not in in_ci:
        return [pytest.mark.proof]
    return [] if layout in DAILY else [pytest.mark.full]


def _needs(layout: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.needs("megatron")] if layout.startswith("megatron") else []


@pytest.fixture(scope="module")
def layout(request: pytest.FixtureRequest, models: Models) -> tuple[LearnerSection, Path]:
    parallel, architecture = LAYOUTS[request.param]
    return section(request.param.split()[0], **parallel), models(architecture)


@pytest.fixture(scope="module")
def policy(
    layout: tuple[LearnerSection, Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Twins]:
    yield from twins(layout, "logits", tmp_path_factory.mktemp("policy"))


def pairs(steps: int) -> list[tuple[Batch, Loss]]:
    made: list[tuple[Batch, Loss]] = []
    for seed in range(steps):
        batch = replace(ragged(lengths(seed), seed), group_size=2)
        reference = -2 - torch.rand(
            batch.tokens.numel(), generator=torch.Generator().manual_seed(seed)
        )
        made.append(
            (batch.with_columns({"ref_logprob": reference}), Preference(beta=0.3, sft_coef=0.1))
        )
    return made


def rollouts(folder: Path, sampling: SamplingParams, steps: int) -> list[tuple[Batch, Loss]]:
    """Responses of the first weights, scored by those who drew them: the steps that follow learn
    from old ones, too.
    """
    sampler, made = TorchSampler(load_causal_lm(folder), 64), []
    for seed in range(steps):
        batch = sampler.generate(
            requests(range(2 + seed % 3, 12 + seed % 3), f"step {seed}"), sampling
        )
        made.append((recorded(batch, seed), SURROGATE))
    return made


SHAPED = SamplingParams(
    max_tokens=12,
    top_k=20,
    top_p=0.9,
    min_p=0.02,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
)
LENGTHS_OF_RUNS = pytest.mark.parametrize(
    "steps", [STEPS, pytest.param(MANY, marks=pytest.mark.proof)]
)


@layouts(*TWO, "2 copies dp2")
@LENGTHS_OF_RUNS
def test_sft_over_ranks_matches_one_process(policy: Twins, steps: int) -> None:
    policy.alike(demonstrations(steps))
    policy.hold_the_same()


@layouts(*TWO, "dp2 tp2", "megatron pp2")
@LENGTHS_OF_RUNS
def test_preference_loss_over_ranks_matches_one_process(policy: Twins, steps: int) -> None:
    policy.alike(pairs(steps))
    policy.hold_the_same()


@layouts(*TWO, "megatron pp2")
@pytest.mark.parametrize(("k", "outside"), [(VOCABULARY, False), (5, True)], ids=["all", "some"])
def test_distillation_over_ranks_matches_one_process(
    policy: Twins, models: Models, k: int, outside: bool
) -> None:
    teacher = LearnerSpec(str(models("llama")), "logits", SECTION, None, seed=0).build()
    made: list[tuple[Batch, Loss]] = []
    for batch, _ in demonstrations(STEPS):
        token, logprob = teacher.topk(batch, k)
        columns = {"mask": batch.mask, "top_token": token, "teacher_logprob": logprob}
        whole = replace(batch, token={"mask": batch.mask, "teacher_logprob": logprob}, top_k=k)
        made.append(
            (
                replace(batch, token=columns) if k < VOCABULARY else whole,
                Distillation("mixed", 0.5, outside),
            )
        )
    policy.alike(made)
    policy.hold_the_same()
    mine, theirs = (learner.topk(made[0][0], k) for learner in (policy.one, policy.many))
    assert torch.equal(mine[0], theirs[0])
    torch.testing.assert_close(mine[1], theirs[1], atol=2e-5, rtol=0.0)


@layouts(*LAYOUTS)
@pytest.mark.parametrize(
    ("sampling", "steps"),
    [
        (SHAPED, STEPS),
        # Only with all tokens: in many steps rounding moves one over the edge of what can be drawn,
        # and that shows.
        pytest.param(SamplingParams(max_tokens=12, temperature=1.2), MANY, marks=pytest.mark.proof),
    ],
    ids=["shaped", "warm"],
)
def test_clipped_surrogate_over_ranks_matches_one_process(
    policy: Twins, layout: tuple[LearnerSection, Path], sampling: SamplingParams, steps: int
) -> None:
    made = rollouts(layout[1], sampling, steps)
    policy.alike(made)
    policy.hold_the_same()
    batch = made[0][0]
    torch.testing.assert_close(
        policy.many.logprobs(batch), policy.one.logprobs(batch), atol=2e-5, rtol=0.0
    )


@layouts("cp2")
@LENGTHS_OF_RUNS
def test_context_parallel_critic_matches_one_process(
    layout: tuple[LearnerSection, Path], tmp_path: Path, steps: int
) -> None:
    plain = [
        batch.with_columns({"sampler_logprob": batch["advantage"]})
        for batch, _ in demonstrations(steps)
    ]
    batches = [recorded(batch, seed) for seed, batch in enumerate(plain)]
    for critic in twins(layout, "value", tmp_path):
        critic.alike([(batch, ClippedValue(0.2)) for batch in batches])
        critic.hold_the_same()
        for mine, theirs in zip(
            critic.one.values(batches[0]), critic.many.values(batches[0]), strict=True
        ):
            torch.testing.assert_close(mine, theirs, atol=2e-5, rtol=0.0)


@pytest.mark.full
@layouts("dp2 tp2", "2 copies dp2")
def test_checkpoint_of_ranks_resumes_in_one_process_and_back(policy: Twins, tmp_path: Path) -> None:
    steps = demonstrations(6)
    policy.alike(steps[:3])
    policy.many.save(tmp_path / "many")
    assert policy.many.poll_save(wait=True)
    files = list((tmp_path / "many").glob("model*.safetensors"))
    parallel = policy.many.section.parallel
    assert len(files) == parallel.ranks // parallel.dp_replicate, (
        "copies of the model are saved once"
    )
    policy.one.load(tmp_path / "many")
    expected = [train(policy.many, *step).floats() for step in steps[3:]]
    assert [train(policy.one, *step).floats() for step in steps[3:]] == [
        pytest.approx(e, rel=1e-5) for e in expected
    ]
    policy.many.load(tmp_path / "many")
    assert [train(policy.many, *step).floats() for step in steps[3:]] == expected, "bit for bit"
    policy.one.save(tmp_path / "one")
    assert policy.one.poll_save(wait=True)
    policy.many.load(tmp_path / "one")
    policy.hold_the_same()


WAYS = [
    (section("torch", dp=4), section("torch", dp=2, tp=2)),
    (section("torch", dp=2), section("megatron", pp=2)),
    (section("megatron", tp=2, pp=2), section("torch", dp=2)),
    (section("torch", dp_replicate=2, tp=2), section("torch", cp=2, dp=2)),
]


@pytest.mark.full
@pytest.mark.parametrize(
    ("first", "then"),
    [*WAYS[:2], *(pytest.param(*way, marks=pytest.mark.proof) for way in WAYS[2:])],
)
def test_checkpoint_resumes_in_other_rank_layout_and_backend(
    models: Models, first: LearnerSection, then: LearnerSection, tmp_path: Path
) -> None:
    spec = LearnerSpec(str(models("llama")), "logits", SECTION, OPTIMIZER, seed=0)
    one, steps = spec.build(), demonstrations(4)
    writes = launch_learner(replace(spec, section=first), timeout_s=400.0)
    for batch, loss in steps[:2]:
        train(writes, batch, loss)
    writes.save(tmp_path)
    assert writes.poll_save(wait=True)
    writes.close()
    one.load(tmp_path)
    expected = [train(one, *step).floats() for step in steps[2:]]
    reads = launch_learner(replace(spec, section=then), timeout_s=400.0)
    reads.load(tmp_path)
    assert [train(reads, *step).floats() for step in steps[2:]] == [
        pytest.approx(e, rel=1e-5) for e in expected
    ]
    reads.close()


@pytest.mark.parametrize(("head", "architecture"), [("logits", "qwen2 tied"), ("value", "llama")])
def test_ranks_load_weights_equal_to_the_model_folder(
    models: Models, head: HeadKind, architecture: str
) -> None:
    spec = LearnerSpec(str(models(architecture)), head, SECTION, None, seed=3)
    expected = dict(spec.build().weights())
    many = launch_learner(over(spec, dp=2), timeout_s=400.0)
    held = dict(many.weights())
    many.close()
    assert held.keys() == expected.keys()
    assert all(torch.equal(held[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "ways",
    [
        pytest.param({"cpu_offload": True, "parallel": Parallel(dp=2)}, id="offload"),
        pytest.param(
            {"compile": True, "parallel": Parallel(dp=2)}, id="compile", marks=pytest.mark.proof
        ),
        pytest.param(
            {"compile": True, "parallel": Parallel(cp=2)}, id="compile_cp", marks=pytest.mark.proof
        ),
    ],
)
def test_offload_checkpointing_and_compile_match_plain_learner(
    models: Models, ways: dict[str, object], tmp_path: Path
) -> None:
    section = SECTION.model_copy(update={"activation_checkpointing": True, **ways})
    saving = launch_learner(
        LearnerSpec(str(models("qwen3")), "logits", section, OPTIMIZER, seed=0), timeout_s=600.0
    )
    one = LearnerSpec(str(models("qwen3")), "logits", SECTION, OPTIMIZER, seed=0).build()
    one.save(tmp_path)
    assert one.poll_save(wait=True)
    Twins(saving, one, tmp_path).alike(demonstrations(3))
    saving.close()


def test_gpt_neox_trains_with_dp_and_cp_and_rejects_tensor_parallelism(
    models: Models, tmp_path: Path
) -> None:
    folder = models("gpt neox")
    for pair in twins((section("torch", dp=2, cp=2), folder), "logits", tmp_path):
        pair.alike(demonstrations(2))
    with pytest.raises(
        ValueError,
        match=(
            "a gpt_neox does not support tensor parallelism; use dp and cp, or a model of these "
            "families"
        ),
    ):
        next(twins((section("torch", tp=2), folder), "logits", tmp_path))
