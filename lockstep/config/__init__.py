"""Options of recipes: one frozen section per part of the library; unknown keys are errors.

See `loading`. Each default is set in one place, no validator changes a field, and derived values
are properties. Imports no torch.
"""

from __future__ import annotations

from lockstep.config.hub_name import RowsPath
from lockstep.config.machinery import (
    VLLM,
    Cluster,
    ClusterSection,
    Computation,
    Device,
    DType,
    EngineSection,
    LearnerSection,
    LoRA,
    OpenAI,
    RaySection,
    SamplerSection,
)
from lockstep.config.optimizer import Optimizer, Schedule
from lockstep.config.parallel import Parallel
from lockstep.config.recipe import Recipe
from lockstep.config.run import Bound, Common, RunSection
from lockstep.config.sampling import RepeatedSampling, Sampling
from lockstep.config.section import LocalPath, Probability, Section
from lockstep.config.sources import (
    DataSection,
    ModelFolder,
    ModelSection,
    PromptSection,
    QuestionSection,
    Scratch,
)
from lockstep.config.task import Task, TaskFiles
from lockstep.config.trackers import TensorBoard, Trackers, WandB

__all__ = [
    "VLLM",
    "Bound",
    "Cluster",
    "ClusterSection",
    "Common",
    "Computation",
    "DType",
    "DataSection",
    "Device",
    "EngineSection",
    "LearnerSection",
    "LoRA",
    "LocalPath",
    "ModelFolder",
    "ModelSection",
    "OpenAI",
    "Optimizer",
    "Parallel",
    "Probability",
    "PromptSection",
    "QuestionSection",
    "RaySection",
    "Recipe",
    "RepeatedSampling",
    "RowsPath",
    "RunSection",
    "SamplerSection",
    "Sampling",
    "Schedule",
    "Scratch",
    "Section",
    "Task",
    "TaskFiles",
    "TensorBoard",
    "Trackers",
    "WandB",
]
