"""The public API for authors of algorithms, except the recipe sections.

Each name is imported on first use, so that recipes are read without torch. See
docs/guides/own_algorithm.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.system.lazy_names import export_lazily

if TYPE_CHECKING:
    from lockstep.algorithms.base import Algorithm
    from lockstep.algorithms.job import Checkpointable, Job, RunLength, StepResult, Validation
    from lockstep.algorithms.opening import (
        build_agreement,
        build_engine,
        describe,
        measure_answers,
        measure_run_length,
        open_held_out,
        open_training,
        validate_figures,
    )
    from lockstep.algorithms.roles import Inference, Load, ModelRole
    from lockstep.algorithms.rows import open_demonstrations, open_pairs, open_prompts
    from lockstep.algorithms.setup import Setup
    from lockstep.core.batch import Batch
    from lockstep.core.metrics import Mean, Metrics, Sum
    from lockstep.learners.base import Learner, train
    from lockstep.losses.base import Denominator, Outputs
    from lockstep.monitor.agreement import Agreement
    from lockstep.rollouts.rollout import RolloutCollector, Rollouts
    from lockstep.rollouts.samples import sample_rows

__all__ = [
    "Agreement",
    "Algorithm",
    "Batch",
    "Checkpointable",
    "Denominator",
    "Inference",
    "Job",
    "Learner",
    "Load",
    "Mean",
    "Metrics",
    "ModelRole",
    "Outputs",
    "RolloutCollector",
    "Rollouts",
    "RunLength",
    "Setup",
    "StepResult",
    "Sum",
    "Validation",
    "build_agreement",
    "build_engine",
    "describe",
    "measure_answers",
    "measure_run_length",
    "open_demonstrations",
    "open_held_out",
    "open_pairs",
    "open_prompts",
    "open_training",
    "sample_rows",
    "train",
    "validate_figures",
]

__getattr__ = export_lazily(__name__, __file__)
