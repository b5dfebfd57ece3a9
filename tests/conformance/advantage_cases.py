"""Cases that any generalised advantage estimation for language models should pass, and what it
should say on each.

This file needs PyTorch alone. A step of the decision process is a token that the policy chose (an
*action*); whatever stands between two actions, a tool's output or a user's turn, is part of the way
from one state to the next.

A layout is written one letter per token, sequences apart by spaces:
    p  prompt    a  action    t  tool output or user turn    .  padding
Every place that is not an action holds junk, which must have no effect.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

JUNK = 999.0


@dataclass(frozen=True)
class Case:
    """Sequences laid end to end, with what the estimator is given of them.

    Attributes:
        name: Names the case in the test's output.
        layout: One letter per token, see above.
        final_values: V of the state after each sequence, 0 for one that has ended; None: all have
            ended.
        junk: What stands where there is no action.
    """

    name: str
    layout: str
    final_values: tuple[float, ...] | None = None
    junk: float = JUNK

    @property
    def lengths(self) -> list[int]:
        return [len(sequence) for sequence in self.layout.split()]

    @property
    def mask(self) -> list[bool]:
        return [letter == "a" for letter in self.layout if letter != " "]

    @property
    def rewards(self) -> list[float]:
        """A small cost per action and, like an outcome reward, something large now and then."""
        return self._column(
            "reward", lambda draw: 1.0 if draw.random() < 0.2 else draw.randint(-8, 0) / 64
        )

    @property
    def values(self) -> list[float]:
        return self._column("value", lambda draw: draw.randint(-128, 128) / 64)

    def _column(self, role: str, number: Callable[[random.Random], float]) -> list[float]:
        """Numbers that binary floating point holds exactly, so that every precision starts from the
        same ones.
        """
        draw = random.Random(f"{self.name}/{role}")
        return [number(draw) if action else self.junk for action in self.mask]


_LONG_TURNS = "p" * 700 + "a" * 1500 + "t" * 333 + "a" * 64 + "t" + "a" * 1700

CASES = (
    Case("no mask", "aaaaaaaa"),
    Case("prompt, then response", "pppaaaaa"),
    Case("right padding with junk", "ppaaaa.... pppaaaaaaa ppa......."),
    Case("tool tokens in mid-response", "ppaaattttaaataa ppaatttttttttaa"),
    Case("every other token is a tool's", "patatatatata"),
    Case("trailing observation", "ppaaaatttt ppaaattaatt"),
    Case("padding and tool tokens", "ppaattaa.... ppaaatta....."),
    Case("truncated, taken for ended", "ppaaaaaa ppaaa", final_values=(0.0, 0.0)),
    Case("truncated, with bootstrap", "ppaaaaaa ppaaa", final_values=(0.75, -1.5)),
    Case("one truncated, one ended", "ppaaattaa ppaaattaa", final_values=(0.75, 0.0)),
    Case("truncated within a tool's output", "ppaaaatttt ppaaaa....", final_values=(1.25, 0.5)),
    Case(
        "several sequences packed in a row",
        "paaa ppaaaaa aaa paataa pa",
        final_values=(0.0, 1.5, 0.0, -0.5, 0.25),
    ),
    Case("one-token responses", "pa ppa a ppppa.."),
    Case("all-masked rows", "pppp ppaaa .... ppaa tttt", final_values=(1.0, 0.0, 1.0, 0.5, 1.0)),
    Case("nothing to train on", "pppp tt"),
    Case("long turns", f"{_LONG_TURNS} pa {_LONG_TURNS}...", final_values=(0.0, 1.0, 0.5)),
    Case("junk that is not a number", "ppaattaa.... aaa ppaaatt", junk=float("nan")),
    Case("junk that is infinite", "ppaattaa.... aaa ppaaatt", junk=float("inf")),
)


def expected(case: Case, gamma: float, lam: float) -> list[float]:
    """The definition in Python's double precision: keep the actions, go through them backwards; 0
    elsewhere.
    """
    rewards, values, mask, advantages, start = (
        case.rewards,
        case.values,
        case.mask,
        [0.0] * len(case.mask),
        0,
    )
    for length, final_value in zip(
        case.lengths, case.final_values or [0.0] * len(case.lengths), strict=True
    ):
        next_value, next_advantage = final_value, 0.0
        for t in [t for t in range(start, start + length) if mask[t]][::-1]:
            delta = rewards[t] + gamma * next_value - values[t]
            advantages[t] = next_advantage = delta + gamma * lam * next_advantage
            next_value = values[t]
        start += length
    return advantages


def tensors(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """Rewards [N], values [N], mask [N], lengths [B] and final values [B] or None, as the estimator
    takes them.
    """
    rewards, values, mask, lengths = (
        torch.tensor(x) for x in (case.rewards, case.values, case.mask, case.lengths)
    )
    return (
        rewards,
        values,
        mask,
        lengths,
        None if case.final_values is None else torch.tensor(case.final_values),
    )
