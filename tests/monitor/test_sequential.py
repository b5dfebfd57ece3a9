"""The test of a drift: exactly fair under the null, rarely wrong on healthy streams, quick where
there is a drift.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, replace

import numpy as np
import pytest

from lockstep.monitor.sequential import DriftState, DriftTest

LARGEST = math.exp(3.0) - 1.0
TEST = DriftTest(false_alarm_rate=0.01, baseline_steps=20, factor=1.5, floor=1e-3)
NEVER = replace(TEST, false_alarm_rate=1e-300)
Healthy = Callable[[np.random.Generator, int, int], np.ndarray]


def after(test: DriftTest, values: Iterable[float], state: DriftState | None = None) -> DriftState:
    state = state or DriftState()
    for value in values:
        state = test.advance_state(state, float(value))
    return state


def alarm(test: DriftTest, values: Iterable[float], state: DriftState | None = None) -> int | None:
    """Steps until the alarm."""
    state = state or DriftState()
    for step, value in enumerate(values, start=1):
        state = test.advance_state(state, float(value))
        if state.alarm:
            return step
    return None


def begun(bound: float, guess: float, variance: float = 0.0, capital: float = 0.0) -> DriftState:
    """A test whose baseline is over."""
    return DriftState(
        seen=20, mean=bound, bound=bound, guess=guess, variance=variance, capital=capital
    )


def sequences(rng: np.random.Generator, steps: int, count: int) -> np.ndarray:
    return 0.012 * rng.lognormal(-0.35, 0.83, (steps, count))  # variation coefficient 1


def with_lost_tokens(rng: np.random.Generator, steps: int, count: int) -> np.ndarray:
    """One token of a response of 12 is off by more than the cap, every 500 responses."""
    return sequences(rng, steps, count) + (rng.random((steps, count)) < 0.002) * LARGEST / 12


def pareto(rng: np.random.Generator, steps: int, count: int) -> np.ndarray:
    """No variance, were it not for the cap."""
    return np.minimum(0.004 * (1 + rng.pareto(1.5, (steps, count))), LARGEST)


def wandering(rng: np.random.Generator, steps: int, count: int) -> np.ndarray:
    """Steps depend on each other: their level wanders by 15 %."""
    level = np.zeros(steps)
    for step in range(1, steps):
        level[step] = 0.9 * level[step - 1] + 0.065 * rng.normal()
    return sequences(rng, steps, count) * np.exp(level)[:, None]


HEALTHY: list[Healthy] = [sequences, with_lost_tokens, pareto, wandering]


def test_drift_evidence_is_a_martingale_if_mean_equals_bound() -> None:
    """All 2¹² paths of a stream that is 0 or 4μ, in the midst of bets: the expected evidence is
    that of the start.
    """
    start, chance = begun(0.5, guess=0.8, variance=0.1, capital=0.0), 0.25
    total, bets = 0.0, 0
    for path in itertools.product((False, True), repeat=12):
        state = start
        for high in path:
            bets += state.guess > 0.5
            state = NEVER.advance_state(state, 2.0 if high else 0.0)
        total += math.prod(chance if high else 1 - chance for high in path) * state.e_value
    assert bets > 10_000
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("most", [1.5, 4.0, 20.0])
def test_drift_alarms_at_the_bound_stay_within_false_alarm_rate(most: float) -> None:
    """The hardest null: the mean is the bound itself, for all 500 steps. 1,000 runs, within three
    standard errors.
    """
    rng, test, runs = np.random.default_rng(1), replace(TEST, false_alarm_rate=0.05), 1000
    alarms = sum(
        alarm(test, (rng.random(500) < 1 / most) * most, begun(1.0, guess=1.0)) is not None
        for _ in range(runs)
    )
    assert alarms <= runs * 0.05 + 3 * math.sqrt(runs * 0.05)
    assert alarms > 0


@pytest.mark.parametrize("healthy", HEALTHY)
def test_healthy_streams_with_heavy_tails_rarely_raise_drift_alarm(healthy: Healthy) -> None:
    """The baseline is learned, too. 300 runs of 500 steps of 16 sequences; at a rate of 1 %, 9
    would be no surprise.
    """
    rng = np.random.default_rng(2)
    assert sum(alarm(TEST, healthy(rng, 500, 16).mean(1)) is not None for _ in range(300)) <= 9


@pytest.mark.parametrize(("times", "steps"), [(3, 20), (5, 10), (10, 7), (100, 5)])
@pytest.mark.parametrize("start", [30, 400])
def test_drift_is_detected_within_step_limit_early_or_late_in_run(
    times: float, steps: int, start: int
) -> None:
    rng, delays = np.random.default_rng(3), []
    for _ in range(40):
        stream = sequences(rng, start + 100, 16).mean(1)
        stream[start:] *= times
        delays.append((alarm(TEST, stream) or math.inf) - start)
    assert min(delays) > 0
    assert sorted(delays)[35] <= steps


def test_drift_alarm_depends_on_factor_baseline_steps_and_false_alarm_rate() -> None:
    rng = np.random.default_rng(4)
    stream = sequences(rng, 300, 16).mean(1)
    stream[100:] *= 3
    usual = alarm(TEST, stream)
    assert usual is not None
    assert alarm(replace(TEST, factor=4.0), stream) is None
    assert alarm(replace(TEST, baseline_steps=150), stream) is None, "the drift itself was learned"
    earlier = alarm(replace(TEST, false_alarm_rate=0.5), stream)
    assert earlier is not None
    assert earlier < usual


def test_drift_test_restored_from_saved_state_ends_in_identical_state() -> None:
    rng = np.random.default_rng(5)
    stream = sequences(rng, 200, 16).mean(1)
    stream[150:] *= 3
    whole = after(TEST, stream)
    for cut in (7, 20, 60, 155):
        saved = json.loads(json.dumps(asdict(after(TEST, stream[:cut]))))
        assert after(TEST, stream[cut:], DriftState(**saved)) == whole
    assert whole.alarm
