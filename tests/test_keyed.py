from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core import keyed

COUNTERS = torch.arange(64)


def splitmix64(state: int) -> int:
    """The generator's output function on plain integers (Steele et al. 2014, fig. 15)."""
    z = state & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return z ^ (z >> 31)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(0, 10_000))
def test_keyed_uniforms_match_splitmix64(key: int, counter: int) -> None:
    drawn = float(keyed.draw_uniforms(torch.tensor([key]), torch.tensor([counter])))
    expected = splitmix64(key + (counter + 1) * 0x9E3779B97F4A7C15)
    assert drawn == ((expected >> 12) + 0.5) * 2.0**-52
    assert 0.0 < drawn < 1.0


def test_key_of_fixed_parts_has_known_value() -> None:
    """A run that is continued on another machine, or by another Python, draws the same numbers."""
    assert keyed.hash_key("rollout", 0, "data.jsonl:1", 3) == 7704721978599990550


def test_key_changes_with_value_type_order_and_number_of_parts() -> None:
    variants = [("a", 1), ("a", 2), ("b", 1), (1, "a"), ("a", "1"), ("a", 1, 0), ("a",), ("a1",)]
    assert len({keyed.hash_key(*parts) for parts in variants}) == len(variants)


def test_keyed_uniforms_do_not_depend_on_batch() -> None:
    keys = torch.tensor([keyed.hash_key("sample", i) for i in range(50)])
    together = keyed.draw_uniforms(keys, COUNTERS)
    assert torch.equal(keyed.draw_uniforms(keys[17:18], COUNTERS)[0], together[17])
    assert torch.equal(
        keyed.draw_uniforms(keys.flip(0), COUNTERS[5:6])[:, 0], together.flip(0)[:, 5]
    )


@pytest.mark.parametrize("along", ["keys", "counters", "raw keys"])
def test_keyed_uniforms_are_uniformly_distributed(along: str) -> None:
    keys = {
        "keys": torch.tensor([keyed.hash_key("sample", i) for i in range(4000)]),
        "counters": torch.tensor([keyed.hash_key("one")]),
        "raw keys": torch.arange(4000),
    }[along]
    drawn = keyed.draw_uniforms(keys, torch.arange(40_000 // len(keys))).flatten()
    counts = torch.histc(drawn.float(), bins=100, min=0.0, max=1.0)
    statistic = float(((counts - 400.0) ** 2 / 400.0).sum())
    assert 99 - 4 * 198**0.5 < statistic < 99 + 4 * 198**0.5
    assert abs(float(drawn.mean()) - 0.5) < 4 * (1 / 12 / 40_000) ** 0.5


@given(st.integers(0, 200), st.integers(0, 1000))
def test_keyed_permutation_has_each_index_once_and_is_reproducible(length: int, seed: int) -> None:
    order = keyed.draw_permutation(length, "epoch", seed)
    assert sorted(order.tolist()) == list(range(length))
    assert torch.equal(order, keyed.draw_permutation(length, "epoch", seed))
