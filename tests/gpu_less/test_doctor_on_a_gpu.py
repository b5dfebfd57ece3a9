"""The doctor's table on a GPU that is not there: what trains computes there, and says the same as
on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from doctor_tables import asked, found
from pretend_gpu import OnGPU, pretend_gpu

from lockstep.cluster.workers import HERE
from lockstep_doctor.backends.build import backend_of
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.backends.learner import LearnerBackend
from lockstep_doctor.table.options import DoctorRecipe

FEW = ["grid.lengths=[12]", "grid.repeats=1"]
ONE_ROW = [*FEW, "grid.sequences=8", "grid.methods=[{temperature: 0.7, top_p: 0.9}]"]
"""Too little for a verdict."""


def opened(recipe: DoctorRecipe, name: str) -> HFBackend | LearnerBackend:
    backend = backend_of(recipe, name, print, HERE)
    assert isinstance(backend, (HFBackend, LearnerBackend))
    return backend


@pytest.mark.full
@pytest.mark.parametrize("device", ["auto", pytest.param("cuda", marks=pytest.mark.proof)])
def test_doctor_backends_compute_on_learner_device(
    models: Callable[..., Path], device: str
) -> None:
    recipe = asked(models("llama"), *FEW, f"learner.device={device}")
    with pretend_gpu() as record:
        hf, torch_ = (opened(recipe, name) for name in ("hf", "torch"))
        what = found(recipe, hf, torch_)
        for backend in (hf, torch_):
            assert backend.list_settings()["device"] == "cuda"
            assert backend.network is not None
            assert all(isinstance(p, OnGPU) for p in backend.network.parameters())
        assert record.count("slow copy") > 0
    assert what.verdict == "PASS"
    for drawn in what.rows[0].drawn:
        assert not any(isinstance(column, OnGPU) for column in drawn.tensors.values())


def test_doctor_noise_floor_is_measured_on_learner_device(
    models: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the witness alone: both backends stay on the CPU."""
    recipe = asked(models("llama"), *ONE_ROW, "learner.device=auto")
    at_home = recipe.model_copy(
        update={"learner": recipe.learner.model_copy(update={"device": "cpu"})}
    )
    with pretend_gpu() as record:
        hf, torch_ = (opened(at_home, name) for name in ("hf", "torch"))
        found(recipe, hf, torch_)
        assert any(
            event.line.startswith("lockstep_doctor/backends/hf.py") for event in record.events
        )


def test_doctor_scores_on_gpu_equal_cpu_scores(models: Callable[..., Path]) -> None:
    recipe = asked(models("llama"), *FEW, "learner.device=cpu")
    batch = found(recipe, opened(recipe, "hf"), opened(recipe, "torch")).rows[0].drawn[0].batch
    there = asked(models("llama"), *FEW, "learner.device=cuda")
    for name in ("hf", "torch"):
        expected = opened(recipe, name).score(batch)
        with pretend_gpu():
            assert torch.equal(opened(there, name).score(batch), expected)
