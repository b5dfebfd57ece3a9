"""The memory that `locate` says beforehand, and its refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from doctor_tables import BILLION

from lockstep.doctor.locate_estimate import LocateEstimate, estimate_locate
from lockstep.errors import InputError


@pytest.mark.parametrize(
    ("file", "engines", "is_switched", "bytes_of_weight"),
    [
        ("float32", [(False, torch.float32), (True, torch.float32)], False, 4 + 4 + 4),
        ("bfloat16", [(False, torch.bfloat16), (True, torch.bfloat16)], True, 2 + 4 + 2 + 4 + 4),
    ],
)
def test_weights_are_those_of_two_engines_and_of_one_witness(
    tmp_path: Path, file: str, engines: list[tuple[bool, torch.dtype]], is_switched: bool, bytes_of_weight: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BILLION | {"dtype": file}))
    found = estimate_locate(str(tmp_path), engines, 100, is_switched)
    layer = 2048 * (2048 * 2 + 512 * 2) + 3 * 2048 * 8192 + 2 * 2048
    table = 32000 * 2048
    assert found.weights == bytes_of_weight * (16 * layer + 2 * table + 2048) + 8 * max(layer, table)
    assert 0.5e9 < found.values < 3e9


def test_what_does_not_fit_is_refused() -> None:
    estimate = LocateEstimate(weights=10**10, values=10**9, here=10**9)
    estimate.require(0)
    estimate.require(11 * 10**9)
    with pytest.raises(InputError, match=r"locate needs 11 GB, and 10 GB are free: shorten grid\.lengths"):
        estimate.require(10**10)
