"""The calculator: what it makes of what a policy writes."""

from __future__ import annotations

import pytest

from lockstep.environments.calculator import Calculator


@pytest.mark.parametrize(
    ("response", "observation"),
    [
        ("7+5=", "12\n"),
        ("She has 12-3=", "9\n"),
        ("7+5=12\n3*4=", "12\n"),
        ("(1+2)*-4 =", "-12\n"),
        ("1/8=", "0.125\n"),
        ("10/5=", "2\n"),
        ("1/0=", "\n"),
        ("7+=", "\n"),
        ("=", "\n"),
        ("7**99999999=", "\n"),
        ("9" * 400 + "*1.5=", "\n"),
        ("(" * 5000 + "=", "\n"),
        ("-" * 200_000 + "1=", "\n"),
    ],
)
def test_calculator_answers_turn_ending_in_equals_sign(response: str, observation: str) -> None:
    assert Calculator().step(response) == (observation, None, False)


def test_calculator_ends_episode_without_trailing_equals_sign() -> None:
    assert Calculator().step("#### 9") == ("", None, True)
    assert Calculator().step("7+5=12") == ("", None, True)
