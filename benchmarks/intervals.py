"""Coverage of a 95 % interval of pass@k: `share`, beside a bootstrap over questions and ± 1.96 s/√Q.

    python -m benchmarks.intervals [--save]

Questions of every difficulty, p ~ Beta(a, b), get n responses each; the truth is the mean of 1 − (1 − p)^k over all
questions that there could be. Closer to 95 % is better, and below it is worse than above.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.harness import environment, measure, peak_rss_mb, save
from lockstep.objectives.estimates import pass_at_k, share

Interval = tuple[float, float]
RUNS, RESAMPLES = 1000, 400


@dataclass(frozen=True)
class Case:
    """Difficulty Beta(a, b), Q questions, n responses, pass@k."""

    a: float
    b: float
    questions: int
    n: int
    k: int

    @property
    def truth(self) -> float:
        """E[1 − (1 − p)^k] = 1 − B(a, b + k) / B(a, b)."""
        above, below = (self.b + self.k, self.a + self.b), (self.b, self.a + self.b + self.k)
        return 1 - math.exp(sum(map(math.lgamma, above)) - sum(map(math.lgamma, below)))

    def draws(self) -> Tensor:
        """Each question's pass@k, float64 [RUNS, Q]."""
        difficulty = torch.distributions.Beta(self.a, self.b).sample((RUNS, self.questions))
        right = torch.distributions.Binomial(self.n, difficulty).sample().long()
        return torch.tensor([pass_at_k(self.n, c, self.k) for c in range(self.n + 1)], dtype=torch.float64)[right]


CASES = (
    Case(0.5, 0.5, 50, 1, 1), Case(0.5, 0.5, 50, 16, 4), Case(0.5, 0.5, 200, 16, 1),
    Case(0.2, 3.0, 50, 4, 1), Case(0.2, 3.0, 200, 16, 4),
    Case(0.05, 5.0, 20, 4, 1), Case(0.05, 5.0, 50, 4, 1), Case(0.05, 5.0, 200, 16, 1),
    Case(3.0, 0.2, 50, 16, 1), Case(3.0, 0.2, 50, 16, 4), Case(3.0, 0.2, 200, 16, 4),
)  # fmt: skip


def ours(values: Tensor) -> Interval:
    found = share(values.tolist())
    return found.low, found.high


def standard_error(values: Tensor) -> Interval:
    mean, half = float(values.mean()), 1.96 * float(values.std()) / math.sqrt(len(values))
    return mean - half, mean + half


def bootstrap(values: Tensor) -> Interval:
    means = values[torch.randint(len(values), (RESAMPLES, len(values)))].mean(1)
    return float(means.quantile(0.025)), float(means.quantile(0.975))


METHODS: tuple[Callable[[Tensor], Interval], ...] = (ours, bootstrap, standard_error)


def coverage(case: Case) -> list[float]:
    """Share of the runs whose interval holds the truth, one per method, all on the same draws."""
    draws, truth = case.draws(), case.truth
    found = [[method(values) for values in draws] for method in METHODS]
    return [sum(low <= truth <= high for low, high in intervals) / RUNS for intervals in found]


def table(rows: Sequence[tuple[Case, list[float]]]) -> str:
    lines = [
        "| difficulty, Q, n | figure | truth | Lockstep | bootstrap | ± 1.96 s/√Q |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for case, covered in rows:
        what = f"| Beta({case.a:g}, {case.b:g}), {case.questions}, {case.n} | pass@{case.k} | {case.truth:.3f} |"
        lines.append(f"{what} {' | '.join(f'{share:.1%}' for share in covered)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/intervals.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    rows = [(case, coverage(case)) for case in CASES]
    sample = CASES[2].draws()[0]
    seconds = [measure(lambda method=method: method(sample), repeats=50).cpu_median_s for method in METHODS]
    print(table(rows))
    cost = f"an interval takes {seconds[0] * 1e6:.0f} µs CPU, by bootstrap {seconds[1] * 1e6:.0f} µs"
    print(f"\n{cost} ({seconds[1] / seconds[0]:.0f}×); peak memory {peak_rss_mb():.0f} MB; {environment()}")
    if options.save:
        details = {"coverage": [{**vars(case), "truth": case.truth, "covered": covered} for case, covered in rows]}
        print(save("intervals", environment(), [], {**details, "cpu_s": seconds, "runs": RUNS}))


if __name__ == "__main__":
    main()
