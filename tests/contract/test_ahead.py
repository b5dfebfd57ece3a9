"""One step ahead on fakes: who works when, with which weights, and what is left where something
breaks.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tabular import TabularLearner, TabularSampler
from tabular_ppo import recipe, workers
from torch import Tensor

from lockstep.algorithms.job import StepResult
from lockstep.algorithms.policy_gradient.ahead import OneStepAhead
from lockstep.algorithms.policy_gradient.step import build_settings
from lockstep.algorithms.ppo.step import PPOWorkers, policy_version, train_actor_and_critic
from lockstep.core.batch import Batch
from lockstep.core.metrics import Metrics
from lockstep.core.types import Request, SamplingParams
from lockstep.losses.base import Loss
from lockstep.monitor.agreement import Agreement, AgreementPromise, DisagreementError
from lockstep.report.progress import RunProgress, show_progress
from lockstep.rollouts.sampler_session import SamplerSession
from lockstep.run.loop import RunLength

PATIENCE_S = 20.0


@dataclass
class Bench:
    """A run without a loop: its workers, and what they leave behind.

    Attributes:
        sampler: Draws.
        place: All workers.
        shown: Times them.
        agreement: Compares both sides.
        abandoned: How often the sampler was ended at once.
        position: Of the next step.
    """

    sampler: TabularSampler
    place: PPOWorkers
    shown: RunProgress
    agreement: Agreement
    abandoned: list[None] = field(default_factory=list)
    position: int = 0

    def ahead(self, steps: int, sampling: dict[str, Any] | None = None, **ppo: Any) -> OneStepAhead:
        rule = build_settings(recipe(sampling, correction={"kind": "token_tis"}, **ppo), ())
        return OneStepAhead(
            replace(self.place, phase=self.shown.phase),
            rule,
            self.agreement,
            lambda step, drawn: train_actor_and_critic(step, drawn, self.place, rule),
            lambda step: policy_version(step, rule.recipe.ppo),
            RunLength(steps, None, 64),
            self.shown.background_phase,
            lambda: self.abandoned.append(None),
        )

    def run(self, ahead: OneStepAhead, steps: Iterable[int]) -> list[dict[str, float]]:
        return [self.step(ahead, step).metrics.floats() for step in steps]

    def step(self, ahead: OneStepAhead, step: int) -> StepResult:
        result = ahead(step, self.position)
        self.position = result.position
        return result

    def save(self, ahead: OneStepAhead, folder: Path) -> None:
        for name, lasting in self._lasting(ahead).items():
            lasting.save(folder / name)
            assert lasting.poll_save(wait=True)

    def load(self, ahead: OneStepAhead, folder: Path) -> None:
        for name, lasting in self._lasting(ahead).items():
            lasting.load(folder / name)

    def _lasting(self, ahead: OneStepAhead) -> dict[str, Any]:
        return {"policy": self.place.policy, "critic": self.place.critic, "ahead": ahead}


def bench(sampler: TabularSampler | None = None, policy: TabularLearner | None = None) -> Bench:
    used, learner = sampler or TabularSampler(), policy or TabularLearner(3.0)
    place = workers(used)
    collector = replace(place.collector, engine=SamplerSession(used, learner))
    agreement = Agreement(
        learner,
        collector.engine,
        AgreementPromise(1.001, True, "lockstep doctor quick"),
        None,
        print,
    )
    with show_progress("test", stream=io.StringIO()) as shown:
        place = replace(place, policy=learner, collector=collector, agreement=None)
        return Bench(used, place, shown, agreement)


def test_one_step_ahead_ppo_trains_on_rollouts_of_previous_weights() -> None:
    here = bench()
    rows = here.run(here.ahead(30), range(30))
    assert [row["agreement/weights_age"] for row in rows] == [0.0] + [1.0] * 29
    assert [row["weight_sync/version"] for row in rows] == [0.0, *map(float, range(29))]
    assert rows[0]["agreement/max_abs_logprob_diff"] == 0.0
    assert all(row["staleness/sampler_kl_k3"] > 0.0 for row in rows[1:])
    assert all(row["staleness/token_mult_prob_error"] > 1.01 for row in rows[1:6]), (
        "the policy moves fast"
    )
    assert all(row["agreement/max_abs_logprob_diff"] < 1e-5 for row in rows), (
        "which is no disagreement"
    )
    assert rows[0]["train/reward"] == pytest.approx(0.25, abs=0.08)
    assert rows[-1]["train/reward"] > 0.8


class Hotter(TabularSampler):
    """From some weights on decodes at another temperature than it reads and attests."""

    def __init__(self, since: int) -> None:
        super().__init__()
        self._since = since

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        exact = self.logits
        if (self.version or 0) >= self._since:
            self.logits = exact / 1.05
        batch = super().generate(requests, sampling)
        self.logits = exact
        return batch


class Biased(TabularSampler):
    """From some weights on computes with others than it attests, whether it draws or reads."""

    def load_weights(self, stream: Any, version: int) -> Any:
        attestation = super().load_weights(stream, version)
        if version >= 3:
            self.logits = self.logits + torch.linspace(0.0, 0.05, 4)
        return attestation


@pytest.mark.parametrize("sampler", [Hotter(since=3), Biased()])
def test_wrong_engine_raises_disagreement_before_its_rollouts_are_trained_on(
    sampler: TabularSampler, tmp_path: Path
) -> None:
    here = bench(sampler)
    ahead = here.ahead(30)
    rows = list[dict[str, float]]()
    told = r"mean e\^\|Δ\| is 1\.0\d+ over \d+ tokens of this step, and the bound is 1.001"
    with pytest.raises(DisagreementError, match=told):
        rows.extend(here.step(ahead, step).metrics.floats() for step in range(9))
    assert 3 <= len(rows) <= 4, "before what the weights 3 drew is trained on"
    assert all(row["agreement/breach"] == 0.0 for row in rows)
    before = dict(here.place.policy.weights())["logits"].clone()
    here.save(ahead, tmp_path)
    again = bench()
    resumed = again.ahead(30)
    again.load(resumed, tmp_path)
    again.position = here.position
    assert torch.equal(dict(again.place.policy.weights())["logits"], before)
    assert again.step(resumed, len(rows)).metrics.floats()["agreement/breach"] == 0.0


def test_wrong_sampler_weights_raise_disagreement_at_temperature_below_one() -> None:
    here = bench(Biased())
    ahead = here.ahead(30, sampling={"max_tokens": 4, "temperature": 0.7})
    with pytest.raises(DisagreementError):
        here.run(ahead, range(6))


class Concurrent(TabularSampler):
    """Finishes no responses but the first before the learner has learned, and looks at the weights
    once more then.
    """

    def __init__(self) -> None:
        super().__init__()
        self.learned, self.same = threading.Event(), list[bool]()
        self._stream: Iterable[tuple[str, Tensor]] = ()

    def load_weights(self, stream: Any, version: int) -> Any:
        self._stream = stream
        return super().load_weights(stream, version)

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        batch = super().generate(requests, sampling)
        if self.phases.count("generate") > 1:
            assert self.learned.wait(PATIENCE_S), "nobody learns meanwhile"
            self.same.append(torch.equal(dict(self._stream)["logits"], self.logits))
        return batch


class Telling(TabularLearner):
    """Says that it has learned."""

    def __init__(self, learned: threading.Event) -> None:
        super().__init__(3.0)
        self._learned = learned

    def optim_step(self, lr: float | None = None) -> Metrics:
        metrics = super().optim_step(lr)
        self._learned.set()
        return metrics


def test_sampler_weights_stay_fixed_while_learner_updates_concurrently() -> None:
    sampler = Concurrent()
    policy = Telling(sampler.learned)
    here, before = bench(sampler, policy), policy.logits.detach().clone()
    here.run(here.ahead(2), range(1))
    assert sampler.same == [True]
    assert not torch.equal(policy.logits, before)


def test_no_rollout_is_generated_beyond_the_last_step() -> None:
    here = bench()
    here.run(here.ahead(3), range(3))
    assert here.sampler.phases.count("generate") == 3
    assert here.position == 3 * 64


class Fragile(TabularSampler):
    """Fails once, at its so many-th call of a verb."""

    def __init__(self, verb: str, at: int) -> None:
        super().__init__()
        self._verb, self._left = verb, at

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        self._count("generate")
        return super().generate(requests, sampling)

    def load_weights(self, stream: Any, version: int) -> Any:
        self._count("load")
        return super().load_weights(stream, version)

    def _count(self, verb: str) -> None:
        self._left -= verb == self._verb
        if verb == self._verb and self._left == 0:
            raise ConnectionError("the sampler is gone")


@pytest.mark.parametrize(
    ("verb", "at", "done"), [("generate", 1, 0), ("generate", 3, 2), ("load", 2, 1)]
)
def test_sampler_error_is_raised_between_steps_and_saved_state_resumes_exactly(
    verb: str, at: int, done: int, tmp_path: Path
) -> None:
    whole, broken, second = bench(), bench(Fragile(verb, at)), bench()
    expected = whole.run(whole.ahead(4), range(4))
    ahead = broken.ahead(4)
    rows = broken.run(ahead, range(done))  # the step during which the sampler broke is done
    with pytest.raises(ConnectionError, match="gone"):
        broken.step(ahead, done)
    assert rows == expected[:done]
    broken.save(ahead, tmp_path)
    ahead = second.ahead(4)
    second.load(ahead, tmp_path)
    second.position = broken.position
    assert rows + second.run(ahead, range(done, 4)) == expected


class Crowded(TabularLearner):
    """Cannot learn."""

    def forward_backward(self, batch: Batch, loss: Loss) -> Metrics:
        raise MemoryError("no room")


def test_learner_error_abandons_the_running_sampler_once() -> None:
    here = bench(policy=Crowded(3.0))
    with pytest.raises(MemoryError):
        here.run(here.ahead(2), range(1))
    assert len(here.abandoned) == 1


def test_overlapped_generation_time_is_reported_separately() -> None:
    here = bench()
    here.run(here.ahead(2), range(2))
    timings = here.shown.take_timings()
    assert {"generate", "weight_sync", "wait for rollouts", "beside/generate"} <= timings.keys()
