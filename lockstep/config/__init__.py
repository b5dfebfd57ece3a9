"""The options of a recipe: one frozen section per part of the house; unknown keys are errors (see `loading`).

No default stands twice, no validator changes a field, derived values are properties. Imports no torch.
"""

from __future__ import annotations

from lockstep.config.agreement import AgreementSection, DriftSection
from lockstep.config.environment import EnvironmentSection
from lockstep.config.judge import AskedSection, ComparisonSection, JudgeSection, MetaJudgeSection
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
    Optimizer,
    RaySection,
    SamplerSection,
    Schedule,
)
from lockstep.config.new_prompts import NewPromptsSection
from lockstep.config.pairs import PairSection
from lockstep.config.parallel import Parallel
from lockstep.config.preference import PreferenceLoss, PreferenceSection
from lockstep.config.ranked import RankedSection, TreeSection
from lockstep.config.recipe import Recipe
from lockstep.config.run import Bound, Common, RunSection
from lockstep.config.sampling import RepeatedSampling, Sampling
from lockstep.config.section import LocalPath, Probability, Section
from lockstep.config.sources import (
    CodeSection,
    DataSection,
    InstructionSection,
    ModelFolder,
    ModelSection,
    PromptSection,
    QuestionSection,
    RewardSection,
    Scratch,
    Verifier,
)
from lockstep.config.task import Task, TaskFiles
from lockstep.config.trackers import MLflow, TensorBoard, Trackers, WandB

__all__ = [
    "VLLM",
    "AgreementSection",
    "AskedSection",
    "Bound",
    "Cluster",
    "ClusterSection",
    "CodeSection",
    "Common",
    "ComparisonSection",
    "Computation",
    "DType",
    "DataSection",
    "Device",
    "DriftSection",
    "EngineSection",
    "EnvironmentSection",
    "InstructionSection",
    "JudgeSection",
    "LearnerSection",
    "LoRA",
    "LocalPath",
    "MLflow",
    "MetaJudgeSection",
    "ModelFolder",
    "ModelSection",
    "NewPromptsSection",
    "OpenAI",
    "Optimizer",
    "PairSection",
    "Parallel",
    "PreferenceLoss",
    "PreferenceSection",
    "Probability",
    "PromptSection",
    "QuestionSection",
    "RankedSection",
    "RaySection",
    "Recipe",
    "RepeatedSampling",
    "RewardSection",
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
    "TreeSection",
    "Verifier",
    "WandB",
]
