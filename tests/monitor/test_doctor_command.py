"""The doctor's command that a run names draws from the run's own distribution."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.config import LearnerSection, SamplerSection, Sampling
from lockstep.monitor.doctor_command import doctor_options
from lockstep_doctor.commands.recipe import doctor_recipe
from lockstep_doctor.table.options import DoctorRecipe


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.1},
        {
            "repetition_penalty": 1.2,
            "presence_penalty": 0.3,
            "frequency_penalty": -0.1,
            "stop": ("\n",),
        },
        {"temperature": 0.0, "repetition_penalty": 1.2},
    ],
)
def test_doctor_command_uses_sampling_options_of_run(
    models: Callable[..., Path], options: dict[str, float]
) -> None:
    sampling = Sampling(max_tokens=8, **options)  # pyright: ignore[reportArgumentType]
    command = shlex.split(doctor_options(LearnerSection(), SamplerSection(), sampling))
    recipe = doctor_recipe(str(models("llama")), command).recipe
    assert isinstance(recipe, DoctorRecipe)
    (method,) = recipe.grid.methods
    assert method.of_length(8) == replace(sampling.params(), stop=()), (
        "a stop string changes no probability"
    )
