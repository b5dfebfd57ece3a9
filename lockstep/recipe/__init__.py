"""What a recipe may say: one frozen section per part of the house; unknown keys are errors (see `lockstep.config`).

No default stands twice, no validator changes a field, derived values are properties. Imports no torch.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from lockstep.recipe.agreement import AgreementSection, DriftSection
from lockstep.recipe.distill import Distill, DistillRecipe, Divergence
from lockstep.recipe.doctor import DoctorData, DoctorRecipe, DoctorRun, Grid, Limits, Method
from lockstep.recipe.dpo import DPO, DPORecipe
from lockstep.recipe.environment import EnvironmentSection
from lockstep.recipe.evaluation import EvalData, EvalRecipe, EvalRun, Greedy
from lockstep.recipe.generation import GenerateData, GenerateRecipe, GenerateRun
from lockstep.recipe.grpo import GRPO, Baseline, GRPORecipe, LossMean, ScaleRewards
from lockstep.recipe.judge import AskedSection, ComparisonSection, JudgeSection, MetaJudgeSection
from lockstep.recipe.judge_eval import JudgeEvalRecipe, JudgeEvalRun, RankedSection, TreeSection
from lockstep.recipe.kinds import (
    PolicyRecipe,
    SamplingRecipe,
    TrainingRecipe,
    acceptance_of,
    has_critic,
    is_one_step_ahead,
    policy_recipe,
    sampling_recipe,
)
from lockstep.recipe.machinery import (
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
from lockstep.recipe.new_prompts import NewPromptsSection
from lockstep.recipe.pairs import PairSection, PairsRecipe
from lockstep.recipe.policy_gradient import (
    KL,
    AdaptiveKL,
    Correction,
    DynamicSampling,
    Overlong,
    PolicyGradient,
    PolicyGradientRecipe,
    RewardScaling,
)
from lockstep.recipe.ppo import PPO, PPORecipe
from lockstep.recipe.preference import PreferenceLoss, PreferenceSection
from lockstep.recipe.reward_model import RewardModel, RewardModelRecipe
from lockstep.recipe.run import Bound, Common, Run
from lockstep.recipe.section import Probability, Section
from lockstep.recipe.self_rewarding import KnownSection, SelfRewarding, SelfRewardingRecipe
from lockstep.recipe.sft import SFT, SFTRecipe
from lockstep.recipe.sources import (
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
from lockstep.recipe.trackers import MLflow, TensorBoard, Trackers, WandB

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
