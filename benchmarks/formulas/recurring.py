"""Cases that several libraries have in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from benchmarks.formulas import references as paper
from benchmarks.formulas.cases import Case
from benchmarks.formulas.catalog import GSPO
from benchmarks.formulas.rollouts import Answer, Method, Rollouts

_BOUND = 10.0


def share_credit(run: Method, at: str) -> Case:
    """GSPO's loss with an advantage per token, where the gradient goes through one ratio per
    response.
    """
    because = (
        "the gradient goes through the response's ratio: its tokens share the mean of their "
        "advantages"
    )
    return Case("gspo_token", run, at, "", "substance", because, partial(GSPO, ratio="response"))


def bound_below(run: Method, at: str, options: str) -> Case:
    """CISPO with a lower bound of the ratio."""
    return Case(
        "cispo",
        run,
        at,
        options,
        "convention",
        "a lower bound too",
        partial(paper.cispo, low=paper.CLIP),
    )


def estimate_kl(run: Callable[[Rollouts, str], Answer], at: str) -> list[Case]:
    """k1, k2, and k3 with a bound."""
    bounded = partial(paper.kl_estimate, name="k3", bound=_BOUND)
    return [
        Case("k1", lambda given: run(given, "k1"), at),
        Case("k2", lambda given: run(given, "k2"), at),
        Case(
            "k3",
            lambda given: run(given, "k3"),
            at,
            "",
            "convention",
            "at most 10, no gradient above",
            bounded,
        ),
    ]


def differentiate_k1(run: Method, at: str, options: str) -> Case:
    """k1 in the loss."""
    because = "k1 differentiated: an expected gradient of 0"
    instead = partial(_ONE, slope="k1")
    return Case("kl_loss", run, at, options, "substance", because, instead)


def differentiate_k3(run: Method, at: str, options: str) -> Case:
    """k3 in the loss, as in GRPO's paper."""
    because = "k3 differentiated: the gradient of KL(π_ref ‖ π), 0 where k3 is above 10"
    instead = partial(_ONE, slope="k3", bound=_BOUND)
    return Case("kl_loss", run, at, options, "substance", because, instead)


def differentiate_k2(run: Method, at: str, options: str) -> Case:
    """k2 in the loss."""
    because = "without π/π_old: as if π had sampled"
    return Case("kl_loss", run, at, options, "convention", because, _ONE)


def penalize_by_k3(run: Method, at: str, options: str) -> Case:
    """k3 in the reward."""
    because = "k3, whose expected gradient in a reward is not that of the KL; at most 10"
    instead = partial(paper.rewards_with_kl, estimate="k3", bound=_BOUND)
    return Case("kl_reward", run, at, options, "substance", because, instead)


def whiten_by_bessel(formula: str, run: Method, at: str, instead: Method) -> Case:
    """A deviation with n − 1."""
    return Case(formula, run, at, "", "convention", "variance with n − 1", instead)


_ONE = partial(paper.kl_gradient, factor="one")
