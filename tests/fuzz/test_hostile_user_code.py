"""Hostile rewards and environments: the row and the function are named, no matter what it does."""

from __future__ import annotations

from pathlib import Path

import pytest
from user_code_cases import IMPORTS, REWARDS, STEPS

from lockstep.core.errors import LockstepError
from lockstep.core.types import Prompt
from lockstep.environments import environment
from lockstep.helpers.in_process import build_child
from lockstep.helpers.process import ChildDied
from lockstep.rewards.python_reward import PythonReward
from lockstep.system.printable import make_printable

FUNCTION = "def f(prompt, response, answer, row):\n    {}\n"
WORLD = """class World:
    def reset(self, row, seed):
        pass

    def step(self, response):
        {}
"""
MOVE = {
    "episode": 0,
    "row": {},
    "seed": 0,
    "responses": ["so"],
    "observations": [],
    "timeout_s": 20.0,
}


def reward_once(code: bytes) -> str:
    """What comes of one response: a number as text, or the sentence."""
    Path("hostile.py").write_bytes(code)
    prompt = Prompt("rows.jsonl:1", "p", (1,), {})
    try:
        [value] = PythonReward("hostile.py:f", 20.0)([prompt], ["r"], ["a"])
    except LockstepError as error:
        return make_printable(str(error))
    return str(value)


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_is_a_number_or_its_row_is_named(name: str, in_tmp: Path) -> None:
    body, says = REWARDS[name]
    said = reward_once(FUNCTION.format(body).encode())
    if says:
        assert says in said
        assert said.startswith("rows.jsonl:1: reward.function hostile.py:f ")
        assert "\n" not in said
        assert len(said) < 1_000
    else:
        float(said)


@pytest.mark.parametrize("name", IMPORTS)
def test_a_module_that_cannot_be_imported_is_named(name: str, in_tmp: Path) -> None:
    code, says = IMPORTS[name]
    said = reward_once(
        f"{code}\n{FUNCTION.format('return 1.0')}".encode("utf-8", "surrogateescape")
    )
    assert says in said
    assert said.startswith("reward.function hostile.py:f: ")


@pytest.mark.parametrize("name", STEPS)
def test_hostile_environment_step_gives_short_error_or_whole_observation(
    name: str, in_tmp: Path
) -> None:
    body, says = STEPS[name]
    Path("hostile.py").write_text(WORLD.format(body))
    child = build_child(environment.__name__, "hostile.py:World")
    try:
        with child.ask_streaming([MOVE]) as reply:
            while (message := reply(20.0)) == environment.CALLED:
                pass
    except ChildDied as error:
        message = {"wrong": f"crashed its process ({error})"}
    if says:
        assert len(message["wrong"]) < 1_000
        assert says in make_printable(message["wrong"])
    else:
        assert message["observation"] == "x " * 2_500_000
