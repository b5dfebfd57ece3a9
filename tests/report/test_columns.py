"""Columns for a page: what goes in comes out, and what is shortened keeps four digits."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.report.columns import pack, shorten

FLOATS = st.lists(st.floats(width=32), max_size=20)


def unpacked(data: bytes) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    """As `page/data.js` does it, by the book."""
    end = 4 + int.from_bytes(data[:4], "little")
    header = json.loads(data[4:end])
    count = header["count"]
    planes = np.frombuffer(data[end:], np.uint8).reshape(len(header["columns"]), 4, count)
    columns = {
        name: np.ascontiguousarray(plane.T).reshape(-1).view("<f4")
        for name, plane in zip(header["columns"], planes, strict=True)
    }
    return header, columns


@given(FLOATS)
def test_columns_come_back_as_the_same_bits(values: list[float]) -> None:
    header, columns = unpacked(pack({"text": "\ud800</script>"}, {"a": values, "b": np.arange(len(values))}))
    assert header["text"] == "\ud800</script>"
    np.testing.assert_array_equal(columns["a"], np.array(values, np.float32))
    assert columns["b"].tolist() == list(range(len(values)))


@given(st.floats(min_value=2.0**-126, max_value=2.0**126, width=32), st.sampled_from([-1.0, 1.0]))
def test_shortened_numbers_are_right_to_four_digits(size: float, sign: float) -> None:
    (short,) = shorten([sign * size])
    assert short == pytest.approx(sign * size, rel=1.3e-4)
    assert short.view(np.uint32) & 0x7FF == 0
