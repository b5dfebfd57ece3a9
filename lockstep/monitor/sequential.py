"""An anytime-valid sequential test of whether a stream's mean exceeds its first values.

Let z_t ≥ 0 be the measurement of step t and F_t all information after it. The first steps, the
baseline, are only averaged, and fix a bound μ. From then on the null hypothesis is

    E[z_t | F_{t−1}] ≤ μ   at every step t = 1, 2, …

with no assumption about distribution, variance or independence. Only the mean over a step is used,
so responses to one prompt can depend on each other; steps can depend on anything in F_{t−1}, such
as weights, prompts and earlier alarms.

Betting (Waudby-Smith & Ramdas 2023, 'Estimating means of bounded random variables by betting'). A
gambler who bets λ_t ∈ [0, 1/μ), chosen before z_t is seen, multiplies capital by L_t = 1 + λ_t·(z_t
− μ). L_t > 0 as z_t ≥ 0, and E[L_t | F_{t−1}] ≤ 1 under the null, so that products of L_t are
nonnegative supermartingales: e-processes.

Unknown time of change (Shin, Ramdas & Rinaldo 2023, 'E-detectors'). A single gambler would lose
much before a late change. So a new one starts at each step j, with the share w_j = 1/(j·(j + 1)) of
a capital of 1; shares that are not yet assigned are kept:

    S_t = (S_{t−1} + w_t)·L_t,   e_t = S_t + 1/(t + 1),   S_0 = 0

With Σ_j w_j = 1, e_t is itself a nonnegative supermartingale that starts at 1, unlike the
Shiryaev–Roberts sum, in which every gambler has a capital of 1 and which bounds only the *rate* of
alarms.

Guarantee (Ville's inequality). Under the null, P(e_t ≥ 1/α for any t, ever | baseline) ≤ α. It is
exact for the fixed μ. μ is `factor` times an upper estimate of the baseline's mean, m̂ + 3·s/√n
over its n steps. That a healthy stream stays below it is an estimate, not a theorem, because no
finite sample bounds the mean of a variable that can, rarely, be very large. A stream that is
healthy in the sense of E[z_t | F_{t−1}] ≤ E[baseline] has `factor` and three standard errors of
room.

Any λ_t is valid; it only affects the delay until a drift is detected. This λ_t maximizes capital
growth if z is either 0 or M, with a mean m and a variance v that are exponentially weighted over
the last few steps:

    λ = (m − μ) / (μ·(v/m + m − μ)), where m > μ, and at most 0.9/μ

For small m − μ this is the (m − μ)/v of their aGRAPA; for v = 0 it is the largest bet. While the
stream looks healthy, m ≤ μ, nothing is bet and nothing is lost. All numbers are Python floats, so
that they survive a JSON round trip unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

_STANDARD_ERRORS = 3.0
_MEMORY = 0.4  # weight of the latest step in the guess
_BOLDEST = 0.9  # share of the largest bet 1/μ, at which a single zero would lose everything


@dataclass(frozen=True)
class DriftTest:
    """The rules of the test.

    Attributes:
        false_alarm_rate: α, over the whole stream.
        baseline_steps: n, the number of steps that are averaged and not tested.
        factor: Multiple of the baseline's mean that is still healthy.
        floor: Minimum value of the baseline's mean: any mean up to `factor` times this is healthy.
    """

    false_alarm_rate: float
    baseline_steps: int
    factor: float
    floor: float

    def advance_state(self, state: DriftState, z: float) -> DriftState:
        """Returns the state after one more step with the mean `z`.

        Betting stops after an alarm.
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
        excess = state.guess - bound
        bet = 0.0
        if excess > 0.0:
            bet = min(excess / (state.variance / state.guess + excess), _BOLDEST) / bound
        capital = (state.capital + 1.0 / (bets * (bets + 1))) * (1.0 + bet * (z - bound))
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
        seen: Number of steps so far.
        mean: Mean of the baseline.
        squares: Σ(z − mean)² over the baseline.
        bound: μ; None until the baseline is complete.
        bets: Number of steps tested after the baseline.
        capital: S, the capital of all gamblers who have started.
        guess: m, the exponentially weighted mean of the last few steps.
        variance: v, the exponentially weighted variance.
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
