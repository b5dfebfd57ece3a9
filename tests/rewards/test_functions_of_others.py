"""Reward functions of other libraries are refused before they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.core.errors import InputError
from lockstep.rewards.reward_function import answers

FUNCTIONS = """
def verl(data_source, solution_str, ground_truth, extra_info=None, **kwargs): return 0.0
def verl_in_another_order(solution_str, ground_truth, extra_info, data_source): return 0.0
async def trl(prompts, completions, completion_ids, answers): return 0.0
def trl_of_two(prompts, completions, *rest): return 0.0
def openrlhf(queries, prompts, labels, *rest): return 0.0
def ours(prompt, completion, ground_truth, row): return 1.0
"""


@pytest.fixture
def functions(tmp_path: Path) -> str:
    (tmp_path / "theirs.py").write_text(FUNCTIONS)
    return f"{tmp_path}/theirs.py:"


@pytest.mark.parametrize("name", ["verl", "verl_in_another_order", "trl", "trl_of_two", "openrlhf"])
def test_reward_function_with_signature_of_other_library_is_rejected(
    name: str, functions: str
) -> None:
    with pytest.raises(InputError, match="a signature of a different library"):
        answers(functions + name, "reward")


def test_reward_function_may_use_different_argument_names(functions: str) -> None:
    assert list(answers(functions + "ours", "reward")([["?", "yes", "", {}]])) == [{"reward": 1.0}]
