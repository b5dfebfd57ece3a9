"""The words of a sweep: ranges, lists, what stays one value, and the names of combinations."""

from __future__ import annotations

import pytest

from lockstep.core.errors import InputError
from lockstep.sweeps.grid import combine, split_words


def test_ranges_and_lists_are_axes_and_all_else_is_as_it_was() -> None:
    fixed, axes = split_words(
        [
            *("seed=0..2", "ppo.clip=0.1,0.2", "a.steps=[1, 2]", "b='x,y'", "c=[1],[2, 3]", "d={a: 1, b: 2}"),
            *("e=1.5", "f=a.py:f,a.py:g", "g=1,,2"),
        ]
    )
    assert fixed == ["a.steps=[1, 2]", "b='x,y'", "d={a: 1, b: 2}", "e=1.5", "g=1,,2"]
    assert [(axis.key, axis.values) for axis in axes] == [
        ("seed", [0, 1, 2]),
        ("ppo.clip", [0.1, 0.2]),
        ("c", [[1], [2, 3]]),
        ("f", ["a.py:f", "a.py:g"]),
    ]


def test_every_combination_once_with_a_name_of_its_own() -> None:
    found = combine(split_words(["seed=-1..0", "data.prompt='{a}/','{a}!'"])[1])
    assert [run.values for run in found] == [
        {"seed": seed, "data.prompt": prompt} for seed in (-1, 0) for prompt in ("{a}/", "{a}!")
    ]
    names = [run.name for run in found]
    assert [name.rpartition("-")[0] for name in names] == [f"seed={n}_data.prompt=a" for n in (-1, -1, 0, 0)]
    assert len(set(names)) == 4
    more = combine(split_words(["seed=-2..0", "data.prompt='{b}','{a}!','{a}/'"])[1])
    assert {*names} < {run.name for run in more}  # names stay as values join
    assert combine(split_words(["seed=-1..0"])[1])[0].name == "seed=-1"
    assert found[0].overrides == ("seed=-1", "data.prompt={a}/")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["seed=3..3"], "the range ends where it begins"),
        (["seed=0..99999"], "more than 10,000 values"),
        (["seed=1,,2"], "an option with several values"),
        (["seed=1,1"], "1 is there twice"),
        (["policy.lr=1e-3,0.002,0.001"], "0.001 is there twice"),
        (["seed=1"], "an option with several values"),
        (["seed=1,2", "seed=3,4"], "seed has values twice"),
        (["seed=0..999", "policy.lr=1,2,3,4,5,6,7,8,9,10,11"], "11,000 runs"),
    ],
)
def test_what_is_no_sweep_is_refused(words: list[str], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        combine(split_words(words)[1])
