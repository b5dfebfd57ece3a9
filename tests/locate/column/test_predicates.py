"""Rules over tokens: the one that was put in comes out, the smallest of those that say the same; chance gives none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep_doctor.column import TokenColumns
from lockstep_doctor.column.columns import list_features
from lockstep_doctor.column.predicates import Atom, Feature, find_predicate

Bools = NDArray[np.bool_]


def make_columns(seed: int = 0, rows: int = 24) -> TokenColumns:
    """Rows of all lengths: 8 tokens of prompt, two turns with a tool's 5 between them."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(20, 60, (rows,), generator=generator).tolist()
    parts = [torch.tensor([False] * 8 + [True] * n + [False] * 5 + [True] * 12) for n in first]
    mask = torch.cat(parts)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), torch.tensor([one.numel() for one in parts]).cumsum(0)])
    train = -5 * torch.rand(mask.numel(), dtype=torch.float64, generator=generator)
    ids = torch.randint(0, 30, (mask.numel(),), generator=generator)
    versions = torch.randint(3, 6, (rows,), generator=generator).double()
    return TokenColumns(train, train.clone(), mask, offsets, ids, {"weight version": versions})


COLUMNS = make_columns()
FEATURES = list_features(COLUMNS)
BY_NAME = {feature.name: feature for feature in FEATURES}


def test_features_are_what_they_are_called() -> None:
    mask = torch.tensor([False, True, True, False, True, False, True])
    columns = TokenColumns(
        -torch.arange(7.0), -torch.arange(7.0), mask, torch.tensor([0, 5, 7]), torch.arange(10, 17),
        {"weight version": torch.tensor([4.0, 5.0])},
    )  # fmt: skip
    values = {feature.name: feature.values.tolist() for feature in list_features(columns)}
    assert values["row"] == [0, 0, 0, 1]
    assert values["position"] == [1, 2, 4, 1]
    assert values["place in the response"] == [1, 2, 3, 1]
    assert values["places before the last token"] == [2, 1, 0, 0]
    assert values["turn"] == [1, 1, 2, 1]
    assert values["place in the turn"] == [1, 2, 1, 1]
    assert values["length of the response"] == [3, 3, 3, 1]
    assert values["id"] == [11, 12, 14, 16]
    assert values["id before"] == [10, 11, 13, 15]
    assert values["weight version"] == [4, 4, 4, 5]
    assert "length of the prompt" not in values  # the same everywhere
    told = replace(columns, facts={"length of the prompt": torch.tensor([4.0, 2.0])})
    assert {one.name: one.values.tolist() for one in list_features(told)}["length of the prompt"] == [4, 4, 4, 2]


@pytest.mark.parametrize(
    ("atoms", "said"),
    [
        ([Atom("row", 3, (1.0,))], "row mod 3 = 1"),
        ([Atom("place in the response", low=30)], "place in the response ≥ 30"),
        ([Atom("places before the last token", values=(0.0,))], "places before the last token = 0"),
        ([Atom("position", 16, (5.0,))], "position mod 16 = 5"),
        ([Atom("id", values=(7.0,))], "id = 7"),
        ([Atom("turn", values=(2.0,))], "turn = 2"),
        ([Atom("weight version", values=(4.0,))], "weight version = 4"),
        ([Atom("row", 2, (1.0,)), Atom("place in the response", low=20, high=35)], "and"),
    ],
)
def test_the_rule_that_was_put_in_comes_out(atoms: list[Atom], said: str) -> None:
    truth = np.logical_and.reduce([atom.holds(BY_NAME) for atom in atoms])
    found = find_predicate(truth, FEATURES)
    assert found is not None
    assert said in str(found)
    assert (found.holds(BY_NAME) == truth).all()
    assert (found.precision, found.recall, found.tokens) == (1.0, 1.0, int(truth.sum()))


@given(st.integers(0, 10_000), st.sampled_from(["row", "position", "id", "place in the turn"]), st.floats(0.1, 0.5))
@settings(max_examples=25, deadline=None)
def test_a_stretch_of_values_is_found_among_noise(seed: int, name: str, share: float) -> None:
    rng = np.random.default_rng(seed)
    values = BY_NAME[name].values
    low, high = np.quantile(values, rng.uniform(0, 1 - share)), np.quantile(values, 1.0)
    truth = (values >= low) & (values <= low + share * (high - low))
    if truth.sum() < 30:
        return
    hit: Bools = np.where(truth, rng.random(truth.size) < 0.9, rng.random(truth.size) < 0.003)
    found = find_predicate(hit, FEATURES)
    assert found is not None
    held = found.holds(BY_NAME)
    assert (held & truth).sum() >= 0.95 * max(held.sum(), truth.sum())


@given(st.integers(0, 10_000), st.floats(0.001, 0.3))
@settings(max_examples=25, deadline=None)
def test_chance_gives_no_rule(seed: int, rate: float) -> None:
    rng = np.random.default_rng(seed)
    assert find_predicate(rng.random(FEATURES[0].values.size) < rate, FEATURES) is None


@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_the_order_of_features_does_not_matter_to_the_tokens(seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth = Atom("row", 3, (float(rng.integers(3)),)).holds(BY_NAME)
    order = [FEATURES[place] for place in rng.permutation(len(FEATURES))]
    found, again = find_predicate(truth, FEATURES), find_predicate(truth, order)
    assert found is not None
    assert again is not None
    assert (found.holds(BY_NAME) == again.holds(BY_NAME)).all()


def test_no_hit_and_nothing_but_hits() -> None:
    none = np.zeros(FEATURES[0].values.size, bool)
    assert find_predicate(none, FEATURES) is None
    found = find_predicate(~none, FEATURES)
    assert found is not None
    assert str(found) == "every token"


def test_a_consequence_of_the_damage_is_dearer_than_what_it_follows_from() -> None:
    value = np.where(BY_NAME["row"].values % 2 == 1, -9.0, -1.0)
    features = [BY_NAME["row"], Feature("value", value, cost=6.0)]
    found = find_predicate(value < -5, features)
    assert str(found) == "row mod 2 = 1"
