"""Rate at which a true replicate of the published PPO curve passes its recipe's bounds, and a run that is worse.

    python -m benchmarks.replicates [--runs 1000]

Runs are simulated; the bounds are those of the shipped recipe, read and checked by the code of `lockstep check`.

What is known of the published runs (Qwen2.5-1.5B-Instruct on GSM8K, 1,024 responses a step):

* train/reward begins near .37 and is above .75 at step 40 in every night's test. Five figures of step 100 are told:
  .873, .876, .882, .88, .90. Their mean is .882, and their spread .0107.
* Accuracy after 100 steps is .78 to .80, of one sampled response to each of 256 questions: standard error .0255.
* Without the right shift of values the reward of step 100 is about .79.

What is assumed, because nothing is published:

* The expected reward rises as c − (c − .37)·e^(−t/28); with 28 it is .77 at step 40, which a single step of standard
  error .013 needs in order to be above .75 nearly always. Accuracy rises in proportion.
* A step's reward is binomial: 1,024 responses of that expectation, independent of other steps.
* Levels of runs differ by a normal number, one for a whole run, reward and accuracy alike. Its deviation is .0064: that
  of the mean of the five, .0048, and the part of their spread that one step's sampling does not explain, .0043.
* All 1,319 questions may be harder or easier than the 256: a normal number of deviation .0255 for each run, since it is
  the published figure that is uncertain. A validation is binomial besides, which is a little too much noise, for the
  questions are the same each time.
* Sampler and learner disagree by a mean e^|Δ| of 1 + .02·e^(.3·normal) in each step. Nothing is published of this but
  that it is below 1.05.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep.config import Bound
from lockstep.config.loading import load
from lockstep.report.acceptance import check

RECIPE = "ppo_qwen2.5_1.5b_gsm8k_1n8g_dtensor"
STEPS = 109
RESPONSES = 1024
QUESTIONS = 1319

_FIRST_REWARD, _RISE_STEPS = 0.37, 28.0
_REWARD, _REWARD_UNSHIFTED, _ACCURACY = 0.882, 0.79, 0.79
_SD_RUNS, _SD_QUESTIONS = 0.0064, 0.0255

SINGLE_STEPS = (
    Bound(metric="train/reward", steps=(40, 40), min=0.75),
    Bound(metric="validation/accuracy", steps=(40, 40), min=0.65),
    Bound(metric="train/reward", steps=(100, 100), min=0.88, max=0.90),
    Bound(metric="validation/accuracy", steps=(100, 100), min=0.78, max=0.80),
)
"""The published figures as bounds on single steps, on both sides: what the recipe once had."""


@dataclass(frozen=True)
class World:
    """The assumed distribution of runs.

    Attributes:
        reward: Expected reward of step 100, on average over runs.
        accuracy: The same of accuracy, on the published questions.
        sd_runs: Deviation of a whole run's level.
        sd_questions: Deviation of the asked questions' difficulty from the published ones'.
        questions: Number of questions of a validation.
        disagreement: Usual mean e^|Δ| less 1.
    """

    reward: float = _REWARD
    accuracy: float = _ACCURACY
    sd_runs: float = _SD_RUNS
    sd_questions: float = _SD_QUESTIONS
    questions: int = QUESTIONS
    disagreement: float = 0.02

    def lower(self, by: float) -> World:
        """The same with less reward and accuracy, from the first step on."""
        return replace(self, reward=self.reward - by, accuracy=self.accuracy - by)


WORLDS = {
    "true replicate": World(),
    "lower by .01": World().lower(0.01),
    "lower by .02": World().lower(0.02),
    "lower by .03": World().lower(0.03),
    "lower by .05": World().lower(0.05),
    "right shift off": World().lower(_REWARD - _REWARD_UNSHIFTED),
    "disagreement three times as large": World(disagreement=0.06),
    "replicate of the lowest published run (.873)": World().lower(0.009),
    "true replicate, runs differ twice as much": World(sd_runs=2 * _SD_RUNS),
    "lower by .03, runs differ twice as much": replace(World().lower(0.03), sd_runs=2 * _SD_RUNS),
}
PUBLISHED_QUESTIONS = World(sd_questions=0.0, questions=256)


def bounds() -> tuple[Bound, ...]:
    """The bounds of the shipped recipe."""
    return load(RECIPE).training.acceptance


def simulate(world: World, run: int) -> list[dict[str, float]]:
    """The metrics of one run; its number is the seed."""
    random = np.random.default_rng(run)
    level, hardness = world.sd_runs * random.normal(), world.sd_questions * random.normal()
    rows: list[dict[str, float]] = []
    for step in range(STEPS + 1):
        row: dict[str, float] = {"step": step}
        if step:
            expected = _share(_curve(world.reward, step) + level)
            row["train/reward"] = random.binomial(RESPONSES, expected) / RESPONSES
            row["agreement/token_mult_prob_error"] = 1 + world.disagreement * math.exp(0.3 * random.normal())
        if step % 5 == 0 or step == STEPS:
            expected = _share(_curve(world.accuracy, step) + level + hardness)
            row["validation/accuracy"] = random.binomial(world.questions, expected) / world.questions
        rows.append(row)
    return rows


def count_passing(asked: Sequence[Bound], world: World, runs: int) -> tuple[int, Counter[str]]:
    """Counts runs that keep all bounds; and breaches of each, by its metric and steps."""
    passing, broken = 0, Counter[str]()
    for run in range(runs):
        failed = [verdict.bound for verdict in check(asked, simulate(world, run)) if not verdict.passed]
        passing += not failed
        broken.update(f"{bound.metric} {bound.steps[0]}–{bound.steps[1]}" for bound in failed)
    return passing, broken


def _curve(end: float, step: int) -> float:
    """Expected value after `step` steps of a metric that is `end` after 100."""
    first = _FIRST_REWARD * end / _REWARD
    ceiling = first + (end - first) / (1 - math.exp(-100 / _RISE_STEPS))
    return ceiling - (ceiling - first) * math.exp(-step / _RISE_STEPS)


def _share(value: float) -> float:
    return min(1.0, max(0.0, value))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=1000, help="simulated runs per line")
    runs = parser.parse_args().runs
    print(f"| {runs} simulated runs each | pass | broken bounds |\n|---|---:|---|")
    cases = [(name, bounds(), world) for name, world in WORLDS.items()]
    cases.append(("true replicate, published figures as bounds on single steps", SINGLE_STEPS, PUBLISHED_QUESTIONS))
    for name, asked, world in cases:
        passing, broken = count_passing(asked, world, runs)
        shown = ", ".join(f"{bound} {count / runs:.1%}" for bound, count in broken.most_common())
        print(f"| {name} | {passing / runs:.1%} | {shown or 'none'} |")


if __name__ == "__main__":
    main()
