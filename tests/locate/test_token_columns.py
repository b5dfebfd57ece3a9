"""Two columns with a damage: what is said of it, and that rounding alone is no finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lockstep_doctor.columns import TokenColumns, examine_columns

ROWS, LENGTH = 20, 90


def make_pair(seed: int, rounding: float = 1e-3) -> TokenColumns:
    """Log-probabilities of tokens sampled from random logits of every entropy, on both sides with a
    rounding.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = ROWS * LENGTH
    sharp = torch.empty(tokens, 1, dtype=torch.float64).uniform_(0.3, 6, generator=generator)
    logits = sharp * torch.randn(tokens, 60, dtype=torch.float64, generator=generator)
    ids = torch.multinomial(logits.softmax(1), 1, generator=generator)

    def side() -> Tensor:
        noise = rounding * torch.randn(tokens, 60, dtype=torch.float64, generator=generator)
        return (logits + noise).log_softmax(1).gather(1, ids)[:, 0].float().double()

    mask = torch.ones(tokens, dtype=torch.bool)
    return TokenColumns(side(), side(), mask, torch.arange(ROWS + 1) * LENGTH, ids[:, 0])


@given(st.integers(0, 10_000), st.floats(-6.5, -1.5))
@settings(max_examples=15, deadline=None)
def test_rounding_noise_gives_no_finding(seed: int, rounding: float) -> None:
    assert examine_columns(make_pair(seed, 10**rounding)) == []


def test_tiny_constant_offset_gives_no_finding_but_large_one_does() -> None:
    clean = make_pair(0, 1e-7)
    assert examine_columns(replace(clean, infer=clean.infer - 1e-5)) == []
    assert [one.kind for one in examine_columns(replace(clean, infer=clean.infer - 1e-2))] == [
        "offset"
    ]


def _values(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """A change of the values in rows 5, 12 and 19."""
    return lambda infer, row: torch.where(row % 7 == 5, change(infer), infer)


@pytest.mark.parametrize(
    ("damage", "kind", "said"),
    [
        (_values(torch.zeros_like), "exactly 0", "exactly 0"),
        (_values(lambda x: torch.full_like(x, -1.25)), "constant", "exactly -1.25"),
        (_values(lambda x: torch.full_like(x, -math.inf)), "not finite", "infinite or NaN"),
        (_values(lambda x: x - 0.5), "offset", "-0.5"),
        (_values(lambda x: 0.8 * x), "scaled", "0.8 times"),
        (_values(lambda x: x.roll(-2)), "positions moved", "+2 positions"),
        (_values(lambda x: x.roll(-LENGTH)), "rows moved", "row"),
    ],
)
def test_damaged_rows_are_reported_with_kind_and_location(
    damage: Callable[[Tensor, Tensor], Tensor], kind: str, said: str
) -> None:
    clean = make_pair(0)
    found = examine_columns(replace(clean, infer=damage(clean.infer, clean.row_index)))
    assert found[0].kind == kind
    assert said in found[0].what
    assert found[0].where.startswith("rows 5 to 19, each 7th of 20")


@pytest.mark.parametrize(
    ("digits", "said"),
    [
        (lambda x: x.bfloat16().double(), "bf16"),
        (lambda x: x.half().double(), "fp16"),
        (lambda x: x.mul(1000).round() / 1000, "3 decimals"),
    ],
)
def test_low_precision_column_is_reported_with_its_number_format(
    digits: Callable[[Tensor], Tensor], said: str
) -> None:
    clean = make_pair(0)
    (found,) = examine_columns(replace(clean, infer=digits(clean.infer)))
    assert (found.kind, found.side) == ("grid", "infer")
    assert said in found.what


def test_clamped_column_is_reported_as_floor() -> None:
    clean = make_pair(1)
    (found,) = examine_columns(replace(clean, infer=clean.infer.clamp(min=-4.0)))
    assert (found.kind, found.side, found.what) == ("floor", "infer", "cut off at -4, its floor")


def test_two_kinds_of_damage_give_two_findings() -> None:
    clean = make_pair(2)
    infer = torch.where(clean.token_position == LENGTH - 1, 0.0, clean.infer)
    infer = torch.where(clean.row_index == 3, infer - 1, infer)
    found = examine_columns(replace(clean, infer=infer))
    assert [one.kind for one in found] == ["exactly 0", "offset"]
    assert found[0].where.endswith("position 89 of 90")
    assert found[1].where.startswith("row 3 of 20")


def test_unexplained_noise_is_reported_with_its_positions() -> None:
    clean = make_pair(3)
    noise = torch.randn(
        clean.infer.numel(), dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    (found,) = examine_columns(
        replace(
            clean, infer=torch.where(clean.token_position >= 60, clean.infer + noise, clean.infer)
        )
    )
    assert found.kind == "off"
    assert "positions 60 to 89 of 90" in found.where
