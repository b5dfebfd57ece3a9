"""A sequential test for drift, valid after every step: has the mean of a stream risen above its
first values?

Let z_t ≥ 0 be what step t measures and F_t all that is known after it. The first steps, the
baseline, are only averaged, and fix a bound μ. From then on the null hypothesis is

    E[z_t | F_{t−1}] ≤ μ   at every step t = 1, 2, …

and nothing else: no distribution, no constant variance, no independence. Only the mean over a step
enters, so that responses to one prompt may depend on each other; steps may through anything in
F_{t−1}, such as weights, prompts and earlier alarms.

Betting (Waudby-Smith & Ramdas 2023, 'Estimating means of bounded random variables by betting'). A
gambler who bets λ_t ∈ [0, 1/μ), chosen before z_t is seen, multiplies capital by L_t = 1 + λ_t·(z_t
− μ). L_t > 0 as z_t ≥ 0, and E[L_t | F_{t−1}] ≤ 1 under the null, so that products of L_t are
nonnegative supermartingales: e-processes.

Unknown time of change (Shin, Ramdas & Rinaldo 2023, 'E-detectors'). A single gambler would have
lost much before a late change. So a new one begins at each step j, with the share w_j = 1/(j·(j +
1)) of a capital of 1; shares that are not yet handed out are kept:

    S_t = (S_{t−1} + w_t)·L_t,   e_t = S_t + 1/(t + 1),   S_0 = 0

With Σ_j w_j = 1, e_t is itself a nonnegative supermartingale that starts from 1, unlike the
Shiryaev–Roberts sum, in which every gambler brings a capital of 1, and which only bounds how
*often* alarms come.

Guarantee (Ville's inequality). Under the null, P(e_t ≥ 1/α for any t, ever | baseline) ≤ α. It is
exact for the μ that was fixed. μ is `factor` times an upper estimate of the baseline's mean, m̂ +
3·s/√n over its n steps: that this is no less than what a healthy stream keeps to is an estimate,
not a theorem, for no finite sample bounds the mean of what may, rarely, be very large. A stream
that is healthy in the sense of E[z_t | F_{t−1}] ≤ E[baseline] has `factor` and three standard
errors of room.

Any λ_t is valid; it decides only how soon a drift is found. Here it is what makes capital grow
fastest if z is either 0 or M, with a mean m and a variance v that are exponentially weighted over
the last few steps:

    λ = (m − μ) / (μ·(v/m + m − μ)), where m > μ, and at most 0.9/μ

For small m − μ that is the (m − μ)/v of their aGRAPA, for v = 0 the largest bet. As long as the
stream looks healthy, m ≤ μ, nothing is bet and nothing lost. All numbers are Python's floats, so
that they come back from JSON as they were.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_STANDARD_ERRORS = 3.0
_MEMORY = 0.4  # weight of the newest step in the guess
_BOLDEST = 0.9  # of the largest bet, 1/μ, at which one zero would lose everything


@dataclass(frozen=True)
class DriftTest:
    """The rules of the test.

    Attributes:
        false_alarm_rate: α, over the whole stream.
        baseline_steps: n, steps that are averaged, and not tested.
        factor: Multiple of the baseline's mean that is still healthy.
        floor: Least value that counts as the baseline's mean: any mean up to `factor` times this is
            healthy.
    """

    false_alarm_rate: float
    baseline_steps: int
    factor: float
    floor: float

    def after(self, state: DriftState, z: float) -> DriftState:
        """The state after one more step, whose mean was `z`.

        After an alarm there are no more bets.
        """
        if state.bound is None:
            return self._with_baseline(state, z)
        if state.alarm:
            return state
        return self._with_bet(state, state.bound, z)

    def _with_baseline(self, state: DriftState, z: float) -> DriftState:
        seen = state.seen + 1
        mean = state.mean + (z - state.mean) / seen
        squares = state.squares + (z - state.mean) * (z - mean)  # Welford's update
        if seen < self.baseline_steps:
            return replace(state, seen=seen, mean=mean, squares=squares)
        variance = squares / max(seen - 1, 1)
        upper = mean + _STANDARD_ERRORS * math.sqrt(variance / seen)
        bound = self.factor * max(upper, self.floor)
        return replace(
            state, seen=seen, mean=mean, squares=squares, bound=bound, guess=mean, variance=variance
        )

    def _with_bet(self, state: DriftState, bound: float, z: float) -> DriftState:
        bets = state.bets + 1
        error = z - state.guess
        capital = (state.capital + 1.0 / (bets * (bets + 1))) * (
            1.0 + _bet(state, bound) * (z - bound)
        )
        e_value = capital + 1.0 / (bets + 1)
        return replace(
            state,
            seen=state.seen + 1,
            bets=bets,
            capital=capital,
            guess=state.guess + _MEMORY * error,
            variance=(1.0 - _MEMORY) * (state.variance + _MEMORY * error**2),
            e_value=e_value,
            alarm=e_value >= 1.0 / self.false_alarm_rate,
        )


@dataclass(frozen=True)
class DriftState:
    """State of the test.

    Attributes:
        seen: Steps so far.
        mean: Mean of the baseline.
        squares: Σ(z − mean)² over the baseline.
        bound: μ; None until the baseline is complete.
        bets: Steps tested after the baseline.
        capital: S, of all gamblers who have begun.
        guess: m, the exponentially weighted mean of the last few steps.
        variance: v, the same for their variance.
        e_value: e, the evidence against the null.
        alarm: Whether e has reached 1/α.
    """

    seen: int = 0
    mean: float = 0.0
    squares: float = 0.0
    bound: float | None = None
    bets: int = 0
    capital: float = 0.0
    guess: float = 0.0
    variance: float = 0.0
    e_value: float = 1.0
    alarm: bool = False


def _bet(state: DriftState, bound: float) -> float:
    """λ of the next step."""
    excess = state.guess - bound
    if excess <= 0.0:
        return 0.0
    return min(excess / (state.variance / state.guess + excess), _BOLDEST) / bound
