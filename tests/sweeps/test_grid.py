"""The words of a sweep: ranges, lists, what stays one value, and the names of combinations."""

from __future__ import annotations

import pytest

from lockstep.core.errors import InputError
from lockstep.sweeps.grid import combine_values, split_words


def test_sweep_ranges_and_lists_form_grid_and_other_words_stay_fixed() -> None:
    fixed, grid = split_words(
        [
            *(
                "seed=0..2",
                "ppo.clip=0.1,0.2",
                "a.steps=[1, 2]",
                "b='x,y'",
                "c=[1],[2, 3]",
                "d={a: 1, b: 2}",
            ),
            *("e=1.5", "f=a.py:f,a.py:g", "g=1,,2"),
        ]
    )
    assert fixed == ["a.steps=[1, 2]", "b='x,y'", "d={a: 1, b: 2}", "e=1.5", "g=1,,2"]
    assert grid == {
        "seed": [0, 1, 2],
        "ppo.clip": [0.1, 0.2],
        "c": [[1], [2, 3]],
        "f": ["a.py:f", "a.py:g"],
    }


def test_sweep_combinations_have_unique_names_that_stay_when_values_are_added() -> None:
    found = combine_values(split_words(["seed=-1..0", "data.prompt='{a}/','{a}!'"])[1])
    assert [run.values for run in found] == [
        {"seed": seed, "data.prompt": prompt} for seed in (-1, 0) for prompt in ("{a}/", "{a}!")
    ]
    names = {run.name for run in found}
    assert len(names) == 4
    more = combine_values(split_words(["seed=-2..0", "data.prompt='{b}','{a}!','{a}/'"])[1])
    assert names < {run.name for run in more}  # names stay as values join
    assert combine_values(split_words(["seed=-1..0"])[1])[0].name == "seed=-1"
    assert found[0].overrides == ["seed=-1", "data.prompt={a}/"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["seed=3..3"], "an option with several values"),
        (["seed=1"], "an option with several values"),
        (["seed=1,2", "seed=3,4"], "seed is given twice"),
    ],
)
def test_sweep_without_several_values_or_with_repeated_option_is_rejected(
    words: list[str], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        combine_values(split_words(words)[1])
