from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lockstep.weight_sync.fingerprints import fingerprint_tensor

WEIGHT = torch.randn(6, 6, generator=torch.Generator().manual_seed(0))


def nudged(weight: Tensor) -> Tensor:
    changed = weight.clone()
    changed[3, 3] = torch.nextafter(changed[3, 3], torch.tensor(10.0))
    return changed


def swapped(weight: Tensor) -> Tensor:
    order = torch.arange(6)
    order[[1, 4]] = order[[4, 1]]
    return weight[order]


FAULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "not sent": torch.zeros_like,
    "stale": lambda weight: weight - 1e-5 * weight.sign(),
    "one bit": nudged,
    "transposed": lambda weight: weight.T,
    "two rows swapped": swapped,
    "rows rolled": lambda weight: weight.roll(1, 0),
    "negated": lambda weight: -weight,
    "through bf16": lambda weight: weight.bfloat16().float(),
    "left in bf16": lambda weight: weight.bfloat16(),
    "another shape": lambda weight: weight.reshape(3, 12),
    "flat": lambda weight: weight.reshape(-1),
    "cut": lambda weight: weight[:5],
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fingerprint_changes_for_every_kind_of_weight_sync_fault(fault: str) -> None:
    assert fingerprint_tensor(FAULTS[fault](WEIGHT)) != fingerprint_tensor(WEIGHT)


def test_fingerprint_depends_on_values_not_on_memory_layout() -> None:
    assert fingerprint_tensor(WEIGHT.clone()) == fingerprint_tensor(WEIGHT)
    assert fingerprint_tensor(WEIGHT.T.contiguous().T) == fingerprint_tensor(WEIGHT)
    assert fingerprint_tensor(WEIGHT.requires_grad_()) == fingerprint_tensor(WEIGHT)


def test_fingerprints_of_zeros_differ_by_shape_and_dtype() -> None:
    shapes = [(4, 1), (2, 2), (1, 4), (4,), (5,), (0,), ()]
    kinds = (torch.float32, torch.int32, torch.float16, torch.bfloat16)
    assert (
        len(
            {
                fingerprint_tensor(torch.zeros(shape, dtype=kind))
                for shape in shapes
                for kind in kinds
            }
        )
        == 28
    )


@given(st.lists(st.floats(width=32), min_size=2, max_size=20), st.data())
def test_fingerprint_changes_exactly_when_one_number_changes(
    numbers: list[float], data: st.DataObject
) -> None:
    tensor = torch.tensor(numbers)
    changed = tensor.clone()
    place = data.draw(st.integers(0, len(numbers) - 1))
    changed[place] = data.draw(st.floats(width=32))
    same = torch.equal(tensor.view(torch.int32), changed.view(torch.int32))
    assert (fingerprint_tensor(tensor) == fingerprint_tensor(changed)) == same


def test_fingerprint_of_large_tensor_detects_changes_and_moved_blocks() -> None:
    large = torch.arange(5 * (1 << 15) + 3, dtype=torch.float32)  # five rows of words, and a rest
    row = 1 << 15
    faults = [large.roll(row), torch.cat([large[row : 2 * row], large[:row], large[2 * row :]])]
    for place in (0, row - 1, row, 4 * row + 7, 5 * row, len(large) - 1):
        faults.append(large.clone())
        faults[-1][place] += 0.5
    assert len({fingerprint_tensor(tensor) for tensor in (large, *faults)}) == len(faults) + 1


HADAMARD = torch.tensor([[1.0, 1.0, 1.0, 1.0], [1.0, -1.0, 1.0, -1.0]])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16, torch.float64])
def test_fingerprint_detects_swapped_rows_that_differ_only_in_sign(kind: torch.dtype) -> None:
    """A sum modulo 2⁶⁴ of 64-bit words times odd numbers does not see it: only the words' highest
    bits differ.
    """
    assert fingerprint_tensor(HADAMARD.to(kind)) != fingerprint_tensor(HADAMARD.flip(0).to(kind))
