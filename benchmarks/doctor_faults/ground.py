"""The models of all lists, and the ground that has them."""

from __future__ import annotations

from pathlib import Path

from benchmarks.doctor_faults.fifth_ground import FIFTH_MODELS, write_fifth
from benchmarks.doctor_faults.first_ground import FIRST_MODELS
from benchmarks.doctor_faults.fourth_ground import FOURTH_MODELS, write_fourth
from benchmarks.doctor_faults.model_ground import WRITERS, Ground
from benchmarks.doctor_faults.second_ground import SECOND_MODELS, write_second
from benchmarks.doctor_faults.sixth_ground import SIXTH_MODELS, write_sixth
from benchmarks.doctor_faults.third_ground import THIRD_MODELS, write_third

MODELS = (*FIRST_MODELS, *SECOND_MODELS, *THIRD_MODELS, *FOURTH_MODELS, *FIFTH_MODELS, *SIXTH_MODELS)
"""Their names, each once."""
ALL_WRITERS = (
    dict(WRITERS)
    | dict.fromkeys(SECOND_MODELS, write_second)
    | dict.fromkeys(THIRD_MODELS, write_third)
    | dict.fromkeys(FOURTH_MODELS, write_fourth)
    | dict.fromkeys(FIFTH_MODELS, write_fifth)
    | dict.fromkeys(SIXTH_MODELS, write_sixth)
)


def make_ground(root: Path, model: str | None = None, seed: int = 0) -> Ground:
    """A ground with the models of all lists; see `Ground`."""
    return Ground(root, model, seed, ALL_WRITERS)
