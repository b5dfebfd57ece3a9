"""A share of the responses is scored, and the rest is compared in training, on fakes that are
exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tabular import TabularLearner, TabularSampler
from tabular_ppo import ppo_step, recipe, workers
from torch import Tensor

from lockstep.algorithms.policy_gradient.step import (
    build_settings,
    prepare_batch,
    sample_step,
    train_policy,
)
from lockstep.algorithms.ppo.step import PPOSettings, PPOWorkers
from lockstep.core.batch import Batch
from lockstep.monitor.agreement import Agreement, AgreementPromise, DisagreementError
from lockstep.rollouts.sampler_session import SamplerSession


def exact_workers(
    exact: bool = True, stops_inexact: bool = False
) -> tuple[PPOWorkers, PPOSettings, list[str]]:
    place, notes = workers(TabularSampler()), list[str]()
    its = AgreementPromise(1.001, True, "lockstep doctor quick", exact, stops_inexact)
    agreement = Agreement(place.policy, place.collector.engine, its, None, notes.append)
    return replace(place, agreement=agreement), build_settings(recipe(), ()), notes


def agreement_of(place: PPOWorkers) -> Agreement:
    assert place.agreement is not None
    return place.agreement


def sampled(place: PPOWorkers, rule: PPOSettings) -> Batch:
    return sample_step(0, 0, place, rule).rollouts.batch


def scored(place: PPOWorkers, batch: Batch, step: int = 0) -> Batch:
    return agreement_of(place).score_recomputed(batch, 0, step)


def moved(batch: Batch, rows: Tensor, move: Callable[[Tensor], Tensor]) -> Batch:
    """The batch with another `sampler_logprob` in some responses."""
    said = batch["sampler_logprob"]
    return batch.with_columns(
        {"sampler_logprob": torch.where(rows[batch.row] & batch.mask, move(said), said)}
    )


def test_one_eighth_of_responses_is_recomputed_and_chosen_anew_each_step() -> None:
    place, rule, _ = exact_workers()
    batch = sampled(place, rule)
    shares = torch.stack([scored(place, batch, step)["recomputed"] for step in range(64)])
    assert shares.sum(1).tolist() == [8] * 64
    assert shares.any(0).all()
    assert len(shares.unique(dim=0)) == 64
    few = batch.select(range(3))
    assert scored(place, few)["recomputed"].all()
    assert scored(place, batch.select(range(10)))["recomputed"].sum() == 4


@pytest.mark.parametrize("promise", [{"exact": False}, {"stops_inexact": True}])
def test_every_response_is_recomputed_if_run_is_inexact_or_stops_on_inexactness(
    promise: dict[str, bool],
) -> None:
    place, rule, _ = exact_workers(**promise)
    assert scored(place, sampled(place, rule))["recomputed"].all()


def test_mismatch_in_recomputed_share_or_nan_causes_full_recompute() -> None:
    place, rule, notes = exact_workers()
    batch = sampled(place, rule)
    share = scored(place, batch)["recomputed"]
    true = place.policy.logprobs(batch)
    up = moved(batch, share, lambda said: torch.nextafter(said, said + 1))
    nothing = moved(batch, ~share, lambda said: torch.full_like(said, torch.nan))
    for faulty in (up, nothing):
        found = scored(place, faulty)
        assert found["recomputed"].all()
        assert torch.equal(found["old_logprob"], true)
    metrics = agreement_of(place).compare(1, 0, scored(place, up)).floats()
    assert metrics["agreement/mismatches"] == 8 * 4
    assert (metrics["agreement/tokens"], metrics["agreement/not_recomputed"]) == (256, 0)
    [note] = notes
    assert "step 1: 32 of 256 tokens" in note
    assert note.endswith("and recomputes every token from now on")
    assert scored(place, batch)["recomputed"].all()
    with pytest.raises(DisagreementError, match="without finite log-probabilities"):
        agreement_of(place).compare(1, 0, scored(place, nothing))


def test_first_minibatch_compares_responses_outside_recomputed_share() -> None:
    place, rule, _ = exact_workers()
    metrics = ppo_step(0, 0, place, rule).metrics.floats()
    assert metrics["agreement/mismatches"] == 0
    assert metrics["agreement/max_abs_logprob_diff"] == 0.0
    assert metrics["agreement/token_mult_prob_error"] == 1.0
    assert metrics["agreement/tokens"] + metrics["agreement/not_recomputed"] == 64 * 4
    assert 32 * 4 < metrics["agreement/tokens"] <= (32 + 8) * 4
    assert "policy/compared" not in metrics
    found = agreement_of(place).certificate
    assert (found.tokens, found.not_recomputed) == (
        metrics["agreement/tokens"],
        metrics["agreement/not_recomputed"],
    )


def test_breach_in_first_minibatch_raises_before_weights_and_agreement_state_change() -> None:
    place, rule, _ = exact_workers()
    agreement = agreement_of(place)
    assert isinstance(place.policy, TabularLearner)
    batch = sampled(place, rule)
    share = scored(place, batch)["recomputed"]
    off = moved(batch, ~share, lambda said: said - 0.1)
    before = agreement.dump_state()
    prepared, metrics = prepare_batch(0, 0, off, place, rule)
    assert metrics.floats()["agreement/mismatches"] == 0
    prepared = prepared.with_columns({"advantage": torch.ones_like(prepared["old_logprob"])})
    with pytest.raises(DisagreementError, match="nothing of this step was trained on") as caught:
        train_policy(0, 0, 0, prepared.select(range(32)), place, rule)
    assert caught.value.metrics.floats()["agreement/breach"] == 1
    assert agreement.dump_state() == before
    assert torch.equal(place.policy.logits, torch.zeros_like(place.policy.logits))


def test_compare_counts_tokens_beyond_compared_responses_as_not_recomputed() -> None:
    place, rule, _ = exact_workers()
    batch = sampled(place, rule)
    twice = Batch(
        torch.cat([batch.tokens] * 2),
        torch.cat([batch.lengths] * 2),
        {name: torch.cat([column] * 2) for name, column in batch.token.items()},
        {name: torch.cat([column] * 2) for name, column in batch.sample.items()},
        batch.sampling,
    )
    engine: SamplerSession = place.collector.engine
    with engine.at(0):
        metrics = agreement_of(place).compare(1, 0, twice).floats()
    assert metrics["agreement/tokens"] == metrics["agreement/not_recomputed"] == 256
