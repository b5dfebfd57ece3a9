"""Small decisions whose best value is known: a bandit, a decision process, and a lock with a trap.

A prompt names one of a few states and lists the actions; the answer is `length` actions. Only the
reward tells how they pay; it is divided by the maximum, so the best policy has the value 1 in every
kind:

* `bandit`: one action, with payoffs of its own in each state. In training every second state pays a
  hundredth.
* `process`: each action moves to a place, and pays by the places before and after it, from tables
  of each state. A rich place pays on leaving and not on entering, so the greedy move is seldom the
  best. An answer that is too short earns the payoff of its moves.
* `lock`: all actions right pay 1; an answer that begins with the trap pays `trap`, and is found
  much sooner.
"""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice, pairwise, takewhile
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from lockstep.tasks.base import Task, TaskFiles, write_rows

ACTIONS = "abcdefghijklmnop"
Kind = Literal["bandit", "process", "lock"]
_POOR = 0.01
"""Scale of the training reward of every second state of a bandit."""


class Choices(Task):
    """The task of small decisions."""

    kind: Kind = Field(
        description="one action; several that lead from state to state; or a lock with a trap"
    )
    states: PositiveInt = Field(default=8, description="states that a prompt may name")
    actions: int = Field(
        default=8, ge=2, le=len(ACTIONS), description="actions to choose from; a process's places"
    )
    length: PositiveInt = Field(default=1, description="actions of an answer; a bandit's is one")
    trap: PositiveFloat = Field(default=0.3, le=1.0, description="reward of the trap, in a lock")
    seed: int = Field(default=0, description="of the payoffs; the run's seed does not change them")

    @property
    def best_reward(self) -> float:
        return 1.0

    def write(self, folder: Path) -> TaskFiles:
        files = TaskFiles.name_in(folder)
        rows = [self._row(state) for state in range(self.states)]
        write_rows(files.train, islice(cycle(rows), 1024))
        write_rows(files.validation, islice(cycle(rows), 256))
        return files

    def _row(self, state: int) -> dict[str, Any]:
        length = 1 if self.kind == "bandit" else self.length
        own = {
            "kind": self.kind,
            "state": state,
            "states": self.states,
            "actions": self.actions,
            "length": length,
        }
        question = f"state {state} : {' '.join(ACTIONS[: self.actions])}"
        return {"question": question, "answer": "", **own, "trap": self.trap, "seed": self.seed}


@dataclass(frozen=True)
class World:
    """The payoffs of a row, which its fields decide."""

    kind: Kind
    state: int
    states: int
    actions: int
    length: int
    trap: float
    seed: int

    def pay(self, chosen: Sequence[int]) -> float:
        """The payoff of an answer of `length` actions."""
        match self.kind:
            case "bandit":
                return _numbers(self.seed, "bandit", self.state, self.actions)[chosen[0]]
            case "process":
                places = (None, *chosen)
                return sum(
                    self._pay_move(before, after)
                    for before, after in pairwise(places)
                    if after is not None
                )
            case "lock":
                key, trap = self._lock
                return 1.0 if list(chosen) == key else self.trap * (chosen[0] == trap)

    @property
    def best(self) -> float:
        """The greatest payoff: in a process by dynamic programming, V(s) = max_a r(s, a) + V(a)."""
        match self.kind:
            case "bandit":
                return max(self.pay([action]) for action in range(self.actions))
            case "process":
                return self._plan_walk()
            case "lock":
                return 1.0

    @property
    def _lock(self) -> tuple[list[int], int]:
        """The right actions, and the trap, which is never the first of them."""
        numbers = random.Random(f"{self.seed} lock {self.state}")
        key = [numbers.randrange(self.actions) for _ in range(self.length)]
        return key, (key[0] + 1 + numbers.randrange(self.actions - 1)) % self.actions

    def _pay_move(self, before: int | None, after: int) -> float:
        """The payoff of a move in a process; `before` is None at the first move."""
        chance = _numbers(self.seed, f"process {before}", self.state, self.actions)[after]
        return self._rank_place(before) * chance * (1 - self._rank_place(after))

    def _rank_place(self, place: int | None) -> float:
        """The riches of a place, from 0 to 1: equally spaced, in a random order."""
        if place is None:
            return 0.5
        numbers = _numbers(self.seed, "wealth", self.state, self.actions)
        return sorted(numbers).index(numbers[place]) / (self.actions - 1)

    def _plan_walk(self) -> float:
        """The greatest payoff of a walk, from its last move to its first."""
        places = range(self.actions)
        values = dict.fromkeys((None, *places), 0.0)
        for _ in range(self.length):
            values = {
                before: max(self._pay_move(before, after) + values[after] for after in places)
                for before in values
            }
        return values[None]


def value(prompt: str, response: str, answer: str, row: Mapping[str, Any]) -> float:
    """The payoff of an answer as a share of the maximum; 0 for fewer than `length` actions, except
    in a process.
    """
    world = _world(tuple((name, row[name]) for name in World.__dataclass_fields__))
    numbers = {action: number for number, action in enumerate(ACTIONS[: world.actions])}
    words = re.findall(r"\S+", response)[: world.length]
    chosen = [numbers[one] for one in takewhile(numbers.__contains__, words)]
    if len(chosen) < world.length and world.kind != "process":
        return 0.0
    return world.pay(chosen) / _best(world)


def poorer_value(prompt: str, response: str, answer: str, row: Mapping[str, Any]) -> float:
    """The same, except that every second state pays a hundredth: the training reward of a
    bandit.
    """
    return value(prompt, response, answer, row) * (_POOR if row["state"] % 2 else 1.0)


@cache
def _world(fields: tuple[tuple[str, Any], ...]) -> World:
    return World(**dict(fields))


@cache
def _best(world: World) -> float:
    return world.best


@cache
def _numbers(seed: int, role: str, state: int, count: int) -> list[float]:
    """Uniform numbers in [0, 1) by a key."""
    numbers = random.Random(f"{seed} {role} {state}")
    return [numbers.random() for _ in range(count)]
