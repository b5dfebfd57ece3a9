"""A learner computes shared prefixes once: fewer tokens, the same results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import OPTIMIZER, SECTION, WeightedLogprob, over
from torch import nn

from lockstep.cluster.learner_group import launch_learner
from lockstep.cluster.specs import LearnerSpec
from lockstep.config import LearnerSection
from lockstep.core.batch import PATH, Batch
from lockstep.learners.packing import deal_to_ranks, find_families, pack_families
from lockstep.learners.rank import RankLearner
from lockstep.learners.torch.learner import TorchLearner
from lockstep.models.folder import read_config
from lockstep.models.laid_out import LaidOut
from lockstep.models.open_kernels import explain_unshared


def sampled(prompts: int, responses: int, prompt_length: int = 20, length: int = 6) -> Batch:
    """Responses to each of some prompts, shuffled; the responses are masked."""
    draw = torch.Generator().manual_seed(3)
    rows = list[torch.Tensor]()
    for _ in range(prompts):
        prompt = torch.randint(3, 60, (prompt_length,), generator=draw)
        for number in range(responses):
            response = torch.randint(3, 60, (length,), generator=draw)
            response[0] = number  # no two begin alike
            rows.append(torch.cat([prompt, response]))
    batch = Batch(torch.cat(rows), torch.tensor([len(row) for row in rows]))
    columns = {
        "mask": batch.position >= prompt_length,
        "advantage": torch.randn(batch.tokens.numel(), generator=draw),
    }
    order = torch.randperm(len(rows), generator=draw)
    return batch.with_columns(columns).select(order)


def spec_of(folder: Path, section: LearnerSection, shares: bool) -> LearnerSpec:
    section = section.model_copy(update={"share_prefixes": shares})
    return LearnerSpec(str(folder), "logits", section, OPTIMIZER, seed=0)


def computed_tokens(learner: RankLearner) -> list[int]:
    """Filled with the number of computed tokens of each pass."""
    seen: list[int] = []

    def note_size(_: nn.Module, inputs: tuple[LaidOut]) -> None:
        seen.append(inputs[0].cut.tokens.numel())

    learner.model.register_forward_pre_hook(note_size)
    return seen


@pytest.mark.parametrize("architecture", ["qwen2", "qwen2 window", "llama"])
def test_exact_learner_scores_shared_prefixes_to_the_same_bits(
    models: Callable[..., Path], architecture: str
) -> None:
    folder = models(architecture)
    batch = sampled(prompts=3, responses=4)
    section = SECTION.model_copy(update={"micro_batch_tokens": 60}).compute_exactly()
    shared = spec_of(folder, section, shares=True).build()
    alone = spec_of(folder, section, shares=False).build()
    assert isinstance(shared, TorchLearner)
    assert torch.equal(shared.logprobs(batch), alone.logprobs(batch))
    token, logprob = shared.topk(batch, 3)
    other_token, other_logprob = alone.topk(batch, 3)
    assert torch.equal(token, other_token)
    torch.testing.assert_close(logprob, other_logprob, atol=1e-5, rtol=0.0)


def test_learner_computes_each_prompt_of_a_pass_once(models: Callable[..., Path]) -> None:
    section = SECTION.model_copy(update={"micro_batch_tokens": 100})
    learner = spec_of(models("qwen2"), section, shares=True).build()
    seen = computed_tokens(learner)
    learner.logprobs(sampled(prompts=3, responses=4))
    assert sorted(seen) == [20 + 4 * 6, 2 * (20 + 4 * 6)]


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"share_prefixes": False}, "learner.share_prefixes=false"),
        ({"backend": "megatron"}, "learner.backend=megatron computes"),
        ({"parallel": {"cp": 2}}, "learner.parallel.cp splits"),
        ({"dtype": "bf16"}, "flash attention"),
    ],
    ids=str,
)
def test_reason_for_computing_sequences_separately_is_named(
    models: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, object],
    reason: str | None,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    config = read_config(str(models("qwen2")))
    section = LearnerSection.model_validate({"device": "cpu", **options})
    found = explain_unshared(config, section, torch.device("cuda"), is_exact=False)
    assert (found is None) == (reason is None)
    assert (found or "").startswith(reason or "")


@pytest.mark.full
@pytest.mark.parametrize("layout", [{"dp": 2}, {"tp": 2}, {"cp": 2}], ids=str)
def test_ranks_score_and_train_shared_prefixes_like_one_process(
    models: Callable[..., Path], layout: dict[str, int]
) -> None:
    batch = sampled(prompts=3, responses=4)
    one = spec_of(models("qwen2"), SECTION, shares=True)
    alone = one.build()
    many = launch_learner(over(one, **layout), timeout_s=300.0)
    try:
        for _ in range(2):
            torch.testing.assert_close(
                many.logprobs(batch), alone.logprobs(batch), atol=2e-5, rtol=0.0
            )
            for learner in (many, alone):
                learner.forward_backward(batch, WeightedLogprob())
                learner.optim_step()
    finally:
        many.close()


@given(st.integers(1, 5), st.integers(1, 6), st.integers(20, 200), st.integers(1, 4))
def test_families_hold_every_response_once_within_the_budget(
    prompts: int, responses: int, budget: int, ranks: int
) -> None:
    batch = sampled(prompts, responses)
    families = find_families(batch, budget, share_prefixes=True)
    groups = [group for family in families for group in family.groups]
    assert sorted(groups) == list(range(len(batch)))
    for family in families:
        rows = [batch.sequences()[group].tolist() for group in family.groups]
        distinct = {tuple(row[:count]) for row in rows for count in range(1, len(row) + 1)}
        assert family.computed_tokens == len(distinct)
        assert family.budget_tokens <= budget or len(rows) == 1
        assert sum(map(len, rows)) <= 4 * family.budget_tokens
    for packed in pack_families(families, budget):
        assert sum(family.budget_tokens for family in packed) <= budget or len(packed) == 1
    shares = deal_to_ranks(families, budget, ranks)
    assert sorted(g for passes in shares for one in passes for g in one) == sorted(groups)
    assert len({len(passes) for passes in shares}) == 1


def test_groups_of_pairs_share_prompts_across_pairs() -> None:
    batch = replace(sampled(prompts=2, responses=4).select(range(8)), group_size=2)
    families = find_families(batch, 10_000, share_prefixes=True)
    assert sum(len(family) for family in families) == 4


def test_turns_of_growing_episodes_compute_each_token_about_once() -> None:
    draw = torch.Generator().manual_seed(3)
    rows = list[torch.Tensor]()
    for _ in range(8):
        path = torch.arange(128)
        for _ in range(20):
            rows.append(torch.cat([path, torch.randint(999, (24,), generator=draw)]))
            path = torch.cat([rows[-1], torch.randint(999, (16,), generator=draw)])
    lengths = torch.tensor([len(row) for row in rows])
    batch = Batch(torch.cat(rows), lengths)
    mask = batch.position >= (lengths - 24)[batch.row]
    batch = batch.with_columns({"mask": mask}).select(torch.randperm(160, generator=draw))
    families = find_families(batch, 16384, share_prefixes=True)
    distinct = 128 + 8 * (20 * 24 + 19 * 16)
    assert sum(family.computed_tokens for family in families) <= 1.1 * distinct
    assert batch.tokens.numel() > 13 * distinct


def with_rewritten_history(models_of: torch.Generator) -> tuple[Batch, Batch]:
    """Episodes of one, three and two paths, a row each; and all paths as rows."""
    prompt = torch.randint(3, 60, (20,), generator=models_of)
    paths = [
        torch.cat([prompt[: 20 - cut], torch.randint(3, 60, (9,), generator=models_of)])
        for cut in (0, 0, 3, 6, 0, 1)
    ]
    lengths = torch.tensor([len(path) for path in paths])
    alone = Batch(torch.cat(paths), lengths)
    columns = {
        "mask": alone.position >= (lengths - 9)[alone.row],
        "advantage": torch.randn(alone.tokens.numel(), generator=models_of),
    }
    alone = alone.with_columns(columns)
    number = torch.tensor([0, 0, 1, 2, 0, 1])[alone.row]
    rows = torch.stack([lengths[:1].sum(), lengths[1:4].sum(), lengths[4:].sum()])
    return replace(alone.with_columns({PATH: number}), lengths=rows), alone


@pytest.mark.parametrize("budget", [40, 1000])
def test_paths_of_an_episode_are_read_from_their_beginnings_and_trained_as_one_row(
    models: Callable[..., Path], budget: int
) -> None:
    episodes, alone = with_rewritten_history(torch.Generator().manual_seed(3))
    section = SECTION.model_copy(update={"micro_batch_tokens": budget}).compute_exactly()
    learner = spec_of(models("qwen2"), section, shares=True).build()
    assert torch.equal(learner.logprobs(episodes), learner.logprobs(alone))
    assert torch.equal(
        learner.logprobs(episodes.select([2, 0])), learner.logprobs(alone.select([4, 5, 0]))
    )
    other = spec_of(models("qwen2"), section, shares=True).build()
    learner.forward_backward(episodes, WeightedLogprob())
    other.forward_backward(alone, WeightedLogprob())
    norms = [float(one.optim_step().floats()["grad_norm"]) for one in (learner, other)]
    assert norms[0] == pytest.approx(norms[1], rel=1e-5)
    torch.testing.assert_close(
        learner.logprobs(episodes), other.logprobs(alone), atol=1e-5, rtol=0.0
    )


def test_paths_of_an_episode_share_computed_tokens() -> None:
    episodes, alone = with_rewritten_history(torch.Generator().manual_seed(3))
    families = find_families(episodes, 10_000, share_prefixes=True)
    rows = [row.tolist() for row in alone.sequences()]
    distinct = {tuple(row[:count]) for row in rows for count in range(1, len(row) + 1)}
    assert sum(family.computed_tokens for family in families) == len(distinct)
    assert [family.lengths for family in families] == [(78, 29, 57)]
