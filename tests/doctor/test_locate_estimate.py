"""The memory that `locate` says beforehand, and its refusal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from doctor_tables import BILLION

from lockstep.config.loading import load
from lockstep.doctor.locate_cost import LocateEstimate, estimate_locate
from lockstep.doctor.locate_model import estimate_largest
from lockstep.doctor.options import DoctorRecipe
from lockstep.errors import InputError


@pytest.mark.parametrize(
    ("file", "engines", "bytes_of_weight"),
    [
        ("float32", [(False, torch.float32), (True, torch.float32)], 4 + 4 + 4),
        ("bfloat16", [(False, torch.bfloat16), (True, torch.bfloat16)], 2 + 4 + 2),
    ],
)
def test_weights_are_those_of_two_engines_and_of_one_witness(
    tmp_path: Path, file: str, engines: list[tuple[bool, torch.dtype]], bytes_of_weight: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(BILLION | {"dtype": file}))
    found = estimate_locate(str(tmp_path), engines, 100)
    layer = 2048 * (2048 * 2 + 512 * 2) + 3 * 2048 * 8192 + 2 * 2048
    rest = 2 * 32000 * 2048 + 2048
    assert found.weights == bytes_of_weight * (16 * layer + rest) + 8 * (layer + rest)
    assert found.again == 2 * 4 * (16 * layer + rest)
    assert 1e9 < found.values < 4e9


def test_what_is_said_covers_an_engine_beside_itself(tmp_path: Path) -> None:
    """Two learners in fp32 are more than one beside `transformers` in bf16."""
    (tmp_path / "config.json").write_text(json.dumps(BILLION | {"dtype": "bfloat16"}))
    words = [f"model.path={tmp_path}", "backends=[hf,torch]", "learner.dtype=bf16", "learner.device=cpu"]
    found = estimate_largest(load("doctor", words).expect(DoctorRecipe))
    learner = (True, torch.bfloat16)
    assert found.weights == estimate_locate(str(tmp_path), [learner, learner], 100).weights


def test_what_does_not_fit_is_refused() -> None:
    estimate = LocateEstimate(weights=10**10, values=10**9, here=10**9, again=0)
    estimate.require(0)
    estimate.require(11 * 10**9)
    with pytest.raises(InputError, match=r"locate needs 11 GB, and 10 GB are free: shorten grid\.lengths"):
        estimate.require(10**10)
