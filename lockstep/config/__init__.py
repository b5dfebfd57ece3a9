"""What a recipe may say: one frozen section per part of the house; unknown keys are errors (see `loading`).

No default stands twice, no validator changes a field, derived values are properties. Imports no torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lockstep.config.agreement import AgreementSection, DriftSection
from lockstep.config.environment import EnvironmentSection
from lockstep.config.judge import AskedSection, ComparisonSection, JudgeSection, MetaJudgeSection
from lockstep.config.kinds import (
    PolicyRecipe,
    SamplingRecipe,
    TrainingRecipe,
    acceptance_of,
    has_critic,
    is_one_step_ahead,
    policy_recipe,
    sampling_recipe,
)
from lockstep.config.machinery import (
    VLLM,
    Cluster,
    ClusterSection,
    Computation,
    Device,
    DType,
    LearnerSection,
    LoRA,
    OpenAI,
    Optimizer,
    Parallel,
    RaySection,
    RepeatedSampling,
    SamplerBackend,
    SamplerSection,
    Sampling,
    Schedule,
)
from lockstep.config.new_prompts import NewPromptsSection
from lockstep.config.pairs import PairSection, PairsRecipe
from lockstep.config.preference import PreferenceLoss, PreferenceSection
from lockstep.config.run import Bound, Common, Run
from lockstep.config.section import Probability, Section
from lockstep.config.sources import (
    Arithmetic,
    CodeSection,
    DataSection,
    InstructionSection,
    Letters,
    ModelFolder,
    ModelSection,
    PromptSection,
    QuestionSection,
    RewardSection,
    Scratch,
    Verifier,
)
from lockstep.config.trackers import MLflow, TensorBoard, Trackers, WandB


__all__ = [
    "VLLM",
    "AgreementSection",
    "Arithmetic",
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
    "EnvironmentSection",
    "InstructionSection",
    "JudgeSection",
    "LearnerSection",
    "Letters",
    "LoRA",
    "MLflow",
    "MetaJudgeSection",
    "ModelFolder",
    "ModelSection",
    "NewPromptsSection",
    "OpenAI",
    "Optimizer",
    "PairSection",
    "PairsRecipe",
    "Parallel",
    "PolicyRecipe",
    "PreferenceLoss",
    "PreferenceSection",
    "Probability",
    "PromptSection",
    "QuestionSection",
    "RaySection",
    "RepeatedSampling",
    "RewardSection",
    "Run",
    "SamplerBackend",
    "SamplerSection",
    "Sampling",
    "SamplingRecipe",
    "Schedule",
    "Scratch",
    "Section",
    "TensorBoard",
    "Trackers",
    "TrainingRecipe",
    "Verifier",
    "WandB",
    "acceptance_of",
    "has_critic",
    "is_one_step_ahead",
    "policy_recipe",
    "sampling_recipe",
]
