"""What a recipe may say: one frozen section per part of the house; unknown keys are errors (see `loading`).

No default stands twice, no validator changes a field, derived values are properties. Imports no torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lockstep.config.agreement import AgreementSection, DriftSection
from lockstep.config.distill import Distill, DistillRecipe, Divergence
from lockstep.config.doctor import DoctorData, DoctorRecipe, DoctorRun, Grid, Limits, Method
from lockstep.config.dpo import DPO, DPORecipe
from lockstep.config.environment import EnvironmentSection
from lockstep.config.evaluation import EvalData, EvalRecipe, EvalRun, Greedy
from lockstep.config.generation import GenerateData, GenerateRecipe, GenerateRun
from lockstep.config.grpo import GRPO, Baseline, GRPORecipe, LossMean, ScaleRewards
from lockstep.config.judge import AskedSection, ComparisonSection, JudgeSection, MetaJudgeSection
from lockstep.config.judge_eval import JudgeEvalRecipe, JudgeEvalRun, RankedSection, TreeSection
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
from lockstep.config.policy_gradient import (
    KL,
    AdaptiveKL,
    Correction,
    DynamicSampling,
    Overlong,
    PolicyGradient,
    PolicyGradientRecipe,
    RewardScaling,
)
from lockstep.config.ppo import PPO, PPORecipe
from lockstep.config.preference import PreferenceLoss, PreferenceSection
from lockstep.config.reward_model import RewardModel, RewardModelRecipe
from lockstep.config.run import Bound, Common, Run
from lockstep.config.section import Probability, Section
from lockstep.config.self_rewarding import KnownSection, SelfRewarding, SelfRewardingRecipe
from lockstep.config.sft import SFT, SFTRecipe
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

Recipe = Annotated[
    SFTRecipe
    | PPORecipe
    | GRPORecipe
    | DPORecipe
    | RewardModelRecipe
    | DistillRecipe
    | SelfRewardingRecipe
    | EvalRecipe
    | GenerateRecipe
    | DoctorRecipe
    | JudgeEvalRecipe,
    Field(discriminator="algorithm"),
]

__all__ = [
    "DPO",
    "GRPO",
    "KL",
    "PPO",
    "SFT",
    "VLLM",
    "AdaptiveKL",
    "AgreementSection",
    "Arithmetic",
    "AskedSection",
    "Baseline",
    "Bound",
    "Cluster",
    "ClusterSection",
    "CodeSection",
    "Common",
    "ComparisonSection",
    "Computation",
    "Correction",
    "DPORecipe",
    "DType",
    "DataSection",
    "Device",
    "Distill",
    "DistillRecipe",
    "Divergence",
    "DoctorData",
    "DoctorRecipe",
    "DoctorRun",
    "DriftSection",
    "DynamicSampling",
    "EnvironmentSection",
    "EvalData",
    "EvalRecipe",
    "EvalRun",
    "GRPORecipe",
    "GenerateData",
    "GenerateRecipe",
    "GenerateRun",
    "Greedy",
    "Grid",
    "InstructionSection",
    "JudgeEvalRecipe",
    "JudgeEvalRun",
    "JudgeSection",
    "KnownSection",
    "LearnerSection",
    "Letters",
    "Limits",
    "LoRA",
    "LossMean",
    "MLflow",
    "MetaJudgeSection",
    "Method",
    "ModelFolder",
    "ModelSection",
    "NewPromptsSection",
    "OpenAI",
    "Optimizer",
    "Overlong",
    "PPORecipe",
    "PairSection",
    "PairsRecipe",
    "Parallel",
    "PolicyGradient",
    "PolicyGradientRecipe",
    "PolicyRecipe",
    "PreferenceLoss",
    "PreferenceSection",
    "Probability",
    "PromptSection",
    "QuestionSection",
    "RankedSection",
    "RaySection",
    "Recipe",
    "RepeatedSampling",
    "RewardModel",
    "RewardModelRecipe",
    "RewardScaling",
    "RewardSection",
    "Run",
    "SFTRecipe",
    "SamplerBackend",
    "SamplerSection",
    "Sampling",
    "SamplingRecipe",
    "ScaleRewards",
    "Schedule",
    "Scratch",
    "Section",
    "SelfRewarding",
    "SelfRewardingRecipe",
    "TensorBoard",
    "Trackers",
    "TrainingRecipe",
    "TreeSection",
    "Verifier",
    "WandB",
    "acceptance_of",
    "has_critic",
    "is_one_step_ahead",
    "policy_recipe",
    "sampling_recipe",
]
