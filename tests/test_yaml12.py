"""The YAML that recipes are written in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.system import yaml12


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-5", 1e-5), ("1E3", 1000.0), ("-.5", -0.5), ("2.", 2.0), (".inf", float("inf")), ("-.inf", -float("inf")),
        ("12", 12), ("-3", -3), ("0", 0), ("true", True), ("False", False), ("null", None), ("~", None), ("1_0", "1_0"),
        ("no", "no"), ("on", "on"), ("12:30", "12:30"), ("010", "010"), ("2026-01-02", "2026-01-02"),
        ("'1e-5'", "1e-5"), ('"true"', "true"), (".", "."), ("e5", "e5"), ("[1, a]", [1, "a"]), ("{a: }", {"a": None}),
    ],
)  # fmt: skip
def test_yaml_scalars_are_parsed_to_expected_values_and_types(text: str, value: object) -> None:
    assert yaml12.parse_yaml(text) == value
    assert type(yaml12.parse_yaml(text)) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {c: 1, c: 2}\n", "line 2: the key c is duplicated"),
        ("1: a\n", "line 1: a key must be text, but is 1"),
        ("a: !!binary abc\n", "line 1: the tag"),
        ("a: 1\n---\nb: 2\n", "invalid YAML"),
        ("a: b: c\n", "line 1: invalid YAML"),
    ],
)
def test_invalid_yaml_is_rejected_with_line_and_reason(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        yaml12.parse_yaml(text)


texts = st.text(st.characters(exclude_categories=["Cs", "Cc"])) | st.sampled_from(
    ["1e5", "no", "007", "null", "1:2", "~", "a\nb\n"]
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts
trees = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=20
)


@given(trees)
def test_dumped_yaml_parses_to_equal_value(tree: Any) -> None:
    assert yaml12.parse_yaml(yaml12.dump_yaml(tree)) == tree
