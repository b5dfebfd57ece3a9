"""The options of a recipe: one frozen section per part of the house; unknown keys are errors (see `loading`).

No default stands twice, no validator changes a field, derived values are properties. Imports no torch.
"""

from __future__ import annotations

from lockstep.config.agreement import AgreementSection, DriftSection
from lockstep.config.environment import EnvironmentSection
from lockstep.config.hub_name import RowsPath
from lockstep.config.judge import AskedSection, ComparisonSection, JudgeSection, MetaJudgeSection
from lockstep.config.labeled import LabeledSection
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
from lockstep.config.new_prompts import NewPromptsSection
from lockstep.config.optimizer import Optimizer, Schedule
from lockstep.config.pairs import PairSection
from lockstep.config.parallel import Parallel
from lockstep.config.preference import PreferenceLoss, PreferenceSection
from lockstep.config.ranked import RankedSection
from lockstep.config.recipe import Recipe
from lockstep.config.reward import (
    CodeSection,
    InstructionSection,
    RewardJudge,
    RewardPart,
    RewardSection,
    RewardServer,
    SingleReward,
    Verifier,
)
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
    "LabeledSection",
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
    "RewardJudge",
    "RewardPart",
    "RewardSection",
    "RewardServer",
    "RowsPath",
    "RunSection",
    "SamplerSection",
    "Sampling",
    "Schedule",
    "Scratch",
    "Section",
    "SingleReward",
    "Task",
    "TaskFiles",
    "TensorBoard",
    "Trackers",
    "Verifier",
    "WandB",
]
