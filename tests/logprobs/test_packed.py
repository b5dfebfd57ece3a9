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
def test_packing_index_shapes_do_not_depend_on_tensor_values(name: str) -> None:
    """Tensors without values can be computed with, so no operation needs a value, or a size, on the
    host.
    """
    with FakeTensorMode() as fake:
        found = METHODS[name](Packing(fake.from_tensor(BOUNDS), 20, 2))
    assert tuple(found.shape) == SHAPES[name]


@pytest.mark.parametrize("name", METHODS)
def test_packing_operation_count_does_not_depend_on_sequence_count(name: str) -> None:
    def operations(bounds: Tensor) -> int:
        with torch.profiler.profile(acc_events=True) as profile:
            METHODS[name](Packing(bounds, int(bounds[-1]), 2))
        events = profile.events()
        assert events is not None
        return len(events)

    assert operations(torch.arange(0, 4001, 4)) == operations(torch.tensor([0, 4000]))
