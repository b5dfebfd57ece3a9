from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lockstep_logprobs.packed import Packing

BOUNDS = torch.tensor([0, 8, 8, 12, 20], dtype=torch.int32)

METHODS: dict[str, Callable[[Packing], Tensor]] = {
    "positions": lambda packing: packing.positions(1),
    "gathered": Packing.gather_index,
    "following": Packing.following,
    "rows": lambda packing: packing.rows(6),
}
SHAPES = {"positions": (10,), "gathered": (20,), "following": (20,), "rows": (4, 6)}


@pytest.mark.parametrize("name", METHODS)
def test_shapes_follow_from_shapes(name: str) -> None:
    """Tensors without values can be computed with, so no operation needs a value, or a size, on the host."""
    with FakeTensorMode() as fake:
        found = METHODS[name](Packing(fake.from_tensor(BOUNDS), 20, 2))
    assert tuple(found.shape) == SHAPES[name]


@pytest.mark.parametrize("name", METHODS)
def test_the_number_of_operations_is_that_of_one_sequence(name: str) -> None:
    def operations(bounds: Tensor) -> int:
        with torch.profiler.profile(acc_events=True) as profile:
            METHODS[name](Packing(bounds, int(bounds[-1]), 2))
        events = profile.events()
        assert events is not None
        return len(events)

    assert operations(torch.arange(0, 4001, 4)) == operations(torch.tensor([0, 4000]))


@pytest.mark.parametrize("name", METHODS)
def test_bounds_may_be_of_either_integer_type(name: str) -> None:
    narrow, wide = (METHODS[name](Packing(bounds, 20, 2)) for bounds in (BOUNDS, BOUNDS.long()))
    assert narrow.dtype == wide.dtype
    assert torch.equal(narrow, wide)


def test_what_lies_behind_the_last_sequence_keeps_its_place() -> None:
    packing = Packing(BOUNDS, 24, 2)
    assert packing.following()[20:].tolist() == [21, 22, 23, 20]
    assert sorted(packing.gather_index().tolist()) == list(range(24))


def test_rows_point_behind_the_end_where_a_sequence_has_no_successor() -> None:
    rows = Packing(BOUNDS, 20, 2).rows(5)
    assert rows.tolist() == [[0, 1, 2, 3, 4], [20] * 5, [8, 9, 10, 20, 20], [12, 13, 14, 15, 16]]


def test_a_row_that_cannot_be_cut_is_named() -> None:
    with pytest.raises(ValueError, match=r"row of 18 tokens .* pad each to a multiple of 4"):
        Packing(BOUNDS, 18, 2)


@pytest.mark.parametrize("bounds", [[0, 10, 20], [0, 12, 8, 20], [4, 12, 20], [0, 12, 24]], ids=str)
def test_bounds_that_do_not_fit_are_refused(bounds: list[int]) -> None:
    """A GPU says so itself, later; on the CPU it is an error at once."""
    with pytest.raises(RuntimeError, match=r"do not cut a packed row of 20 tokens .* 4 apart or a multiple of that"):
        Packing(torch.tensor(bounds), 20, 2)


def test_bounds_are_a_list_of_integers() -> None:
    with pytest.raises(ValueError, match=r"integers \[B\+1\], not torch.float32 \[3\]"):
        Packing(torch.tensor([0.0, 4.0, 8.0]), 8)
