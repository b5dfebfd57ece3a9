"""Keyword arguments of each algorithm, for type checkers and editors. Made by `make face`; do not edit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from lockstep.api.values import Reward, Rows


class ScratchKeys(TypedDict, total=False):
    """Options of the section `Scratch`."""

    config: Mapping[str, Any]
    tokenizer: Literal["words"]


class ModelSectionKeys(TypedDict, total=False):
    """Options of the section `ModelSection`."""

    path: str | None
    from_recipe: str | None
    scratch: ScratchKeys | None


class DataSectionKeys(TypedDict, total=False):
    """Options of the section `DataSection`."""

    prompt: str
    messages: str | None
    chat: bool
    system_prompt: str | None
    template_args: Mapping[str, bool | int | float | str | Sequence[str]]
    max_prompt_tokens: int
    overlong_prompts: Literal["error", "skip", "truncate"]
    bad_rows: Literal["error", "skip"]
    fields: Mapping[str, Literal["text", "number", "boolean", "list", "object", "any"]] | None
    answer: str
    max_validation_samples: int | None
    train: str | Sequence[str] | None
    validation: str | Sequence[str] | None
    weights: Sequence[float] | None
    task: Mapping[str, Any] | None
    completion: str | None
    shuffle: bool
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None


class ParallelKeys(TypedDict, total=False):
    """Options of the section `Parallel`."""

    dp: int
    tp: int
    cp: int
    pp: int
    dp_replicate: int


class LoRAKeys(TypedDict, total=False):
    """Options of the section `LoRA`."""

    rank: int
    alpha: int
    target_modules: Sequence[str] | None


class LearnerSectionKeys(TypedDict, total=False):
    """Options of the section `LearnerSection`."""

    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["fp32", "bf16", "fp16"]
    backend: str
    parallel: ParallelKeys
    micro_batch_tokens: int
    rows_per_pass: int | None
    activation_checkpointing: bool
    compile: bool
    cpu_offload: bool
    sync_every_pass: bool
    lora: LoRAKeys | None


class RaySectionKeys(TypedDict, total=False):
    """Options of the section `RaySection`."""

    address: str | None
    cpus_per_worker: float
    timeout_s: float


class ClusterKeys(TypedDict, total=False):
    """Options of the section `Cluster`."""

    backend: Literal["local", "ray"]
    placement: Literal["colocated", "separate"]
    ray: RaySectionKeys
    timeout_s: float
    max_restarts: int
    offload_idle: bool


class TensorBoardKeys(TypedDict, total=False):
    """Options of the section `TensorBoard`."""


class WandBKeys(TypedDict, total=False):
    """Options of the section `WandB`."""

    project: str
    name: str | None
    mode: Literal["offline", "online"]


class MLflowKeys(TypedDict, total=False):
    """Options of the section `MLflow`."""

    experiment: str
    name: str | None


class TrackersKeys(TypedDict, total=False):
    """Options of the section `Trackers`."""

    tensorboard: TensorBoardKeys | None
    wandb: WandBKeys | None
    mlflow: MLflowKeys | None
    function: str | Callable[..., Any] | None


class BestKeys(TypedDict, total=False):
    """Options of the section `Best`."""

    metric: str
    mode: Literal["max", "min"]
    count: int


class RunSectionKeys(TypedDict, total=False):
    """Options of the section `RunSection`."""

    max_steps: int
    max_epochs: int
    validate_every: int | float
    save_every: int
    keep: int
    best: BestKeys | None
    max_time_s: float | None
    num_logged_samples: int
    folder: str | None
    require_doctor: bool


class BoundKeys(TypedDict, total=False):
    """Options of the section `Bound`."""

    metric: str
    steps: Sequence[int]
    statistic: Literal["mean", "median", "max"]
    rows: int | None
    min: float | None
    max: float | None


class SFTSectionKeys(TypedDict, total=False):
    """Options of the section `SFTSection`."""

    global_batch_size: int
    max_tokens: int


class ScheduleKeys(TypedDict, total=False):
    """Options of the section `Schedule`."""

    warmup_steps: int
    decay: Literal["constant", "linear", "cosine"]
    decay_steps: int | None
    final_fraction: float


class OptimizerKeys(TypedDict, total=False):
    """Options of the section `Optimizer`."""

    name: Literal["AdamW", "Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "SGD"]
    lr: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    options: Mapping[str, bool | float]
    max_grad_norm: float | None
    schedule: ScheduleKeys


class InstructionSectionKeys(TypedDict, total=False):
    """Options of the section `InstructionSection`."""

    field: str
    all_or_nothing: bool


class CodeSectionKeys(TypedDict, total=False):
    """Options of the section `CodeSection`."""

    tests: str
    program: Literal["fenced", "text"]
    all_or_nothing: bool
    sandboxes: int
    cpu_s: int
    wall_s: float
    memory_mb: int
    file_mb: int
    processes: int
    isolation: Literal["namespaces", "filters", "limits"]


class RewardServerKeys(TypedDict, total=False):
    """Options of the section `RewardServer`."""

    url: str
    api_key_env: str
    batch_size: int
    max_concurrency: int
    max_retries: int


class VLLMKeys(TypedDict, total=False):
    """Options of the section `VLLM`."""

    max_model_len: int | None
    max_num_batched_tokens: int | None
    enforce_eager: bool
    quantization: str | None
    engine_args: Mapping[str, Any]


class OpenAIKeys(TypedDict, total=False):
    """Options of the section `OpenAI`."""

    base_url: str
    model: str
    api_key_env: str
    max_concurrency: int
    max_retries: int


class SamplerSectionKeys(TypedDict, total=False):
    """Options of the section `SamplerSection`."""

    backend: str
    max_batch_size: int
    kv_cache_gib: float | None
    replicas: int
    tensor_parallel: int
    max_restarts: int
    timeout_s: float
    transfer: Literal["auto", "shared_memory", "process_group", "cuda_ipc"]
    vllm: VLLMKeys
    openai: OpenAIKeys | None


class SamplingKeys(TypedDict, total=False):
    """Options of the section `Sampling`."""

    max_tokens: int
    stop: Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


class TreeSectionKeys(TypedDict, total=False):
    """Options of the section `TreeSection`."""

    root: str
    replies: str
    text: str
    rank: str
    role: str
    user: str
    assistant: str


class RankedSectionKeys(TypedDict, total=False):
    """Options of the section `RankedSection`."""

    ranked: str | Sequence[str]
    prompt: str
    messages: str | None
    responses: str | Sequence[str]
    ranks: str | None
    best: str | None
    tree: TreeSectionKeys | None
    bad_rows: Literal["error", "skip"]
    max_prompts: int | None


class RewardJudgeKeys(TypedDict, total=False):
    """Options of the section `RewardJudge`."""

    path: str | None
    sampler: SamplerSectionKeys | None
    chat: bool
    system_prompt: str | None
    template_args: Mapping[str, bool | int | float | str | Sequence[str]]
    sampling: SamplingKeys
    max_prompt_tokens: int
    overlong_judge_prompts: Literal["drop", "truncate_response"]
    unfinished_judgements: Literal["no_verdict", "read"]
    max_no_verdict_rate: float
    template: str | None
    num_evals_to_average: int
    judge_score_low: float
    judge_score_high: float
    decimals: bool
    score_pattern: str
    people: RankedSectionKeys | None


class RewardPartKeys(TypedDict, total=False):
    """Options of the section `RewardPart`."""

    type: Literal["math", "instructions", "code", "python", "server", "judge", "by_row", "sum"]
    marker: str | None
    instructions: InstructionSectionKeys | None
    code: CodeSectionKeys | None
    function: str | Callable[..., Any] | None
    batch: bool
    concurrency: int | None
    server: RewardServerKeys | None
    judge: RewardJudgeKeys | None
    timeout_s: float
    confined: bool
    verifier: str | None
    weight: float


class RewardSectionKeys(TypedDict, total=False):
    """Options of the section `RewardSection`."""

    type: Literal["math", "instructions", "code", "python", "server", "judge", "by_row", "sum"]
    marker: str | None
    instructions: InstructionSectionKeys | None
    code: CodeSectionKeys | None
    function: str | Callable[..., Any] | None
    batch: bool
    concurrency: int | None
    server: RewardServerKeys | None
    judge: RewardJudgeKeys | None
    timeout_s: float
    confined: bool
    verifier: str | None
    pass_score: float | None
    cut_off: float | Literal["as_is"] | None
    parts: Mapping[str, RewardPartKeys] | None


class ModelFolderKeys(TypedDict, total=False):
    """Options of the section `ModelFolder`."""

    path: str


class EnvironmentSectionKeys(TypedDict, total=False):
    """Options of the section `EnvironmentSection`."""

    class_name: str | type
    stop: Sequence[str]
    tool_format: Literal["hermes", "llama3_json"] | None
    seed: Literal["group", "episode"]
    max_turns: int
    max_tokens: int
    pass_score: float | None
    timeout_s: float
    max_concurrency: int
    max_no_verdict_rate: float


class RepeatedSamplingKeys(TypedDict, total=False):
    """Options of the section `RepeatedSampling`."""

    max_tokens: int
    stop: Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    num_samples: int
    k: Sequence[int] | None


class DriftSectionKeys(TypedDict, total=False):
    """Options of the section `DriftSection`."""

    false_alarm_rate: float
    baseline_steps: int
    factor: float


class AgreementSectionKeys(TypedDict, total=False):
    """Options of the section `AgreementSection`."""

    exact: bool | Literal["require"]
    on_breach: Literal["stop", "warn"]
    max_mult_prob_error: float | None
    drift: DriftSectionKeys | None


class AdaptiveKLKeys(TypedDict, total=False):
    """Options of the section `AdaptiveKL`."""

    target: float
    gain: float


class KLKeys(TypedDict, total=False):
    """Options of the section `KL`."""

    coef: float
    placement: Literal["reward", "loss"]
    adaptive: AdaptiveKLKeys | None


class RewardScalingKeys(TypedDict, total=False):
    """Options of the section `RewardScaling`."""

    source: Sequence[float]
    target: Sequence[float]


class OverlongKeys(TypedDict, total=False):
    """Options of the section `Overlong`."""

    buffer: int
    penalty: float


class DynamicSamplingKeys(TypedDict, total=False):
    """Options of the section `DynamicSampling`."""

    max_batches: int


class CorrectionSectionKeys(TypedDict, total=False):
    """Options of the section `CorrectionSection`."""

    kind: Literal["token_tis", "sequence_tis", "icepop"]
    high: float
    low: float | None


class PPOSectionKeys(TypedDict, total=False):
    """Options of the section `PPOSection`."""

    num_prompts_per_step: int
    num_generations: int
    global_batch_size: int
    ppo_epochs: int
    whiten_advantages: bool
    clip: float
    clip_high: float | None
    dual_clip: float | None
    entropy_coef: float
    kl: KLKeys | None
    reward_scaling: RewardScalingKeys | None
    overlong_penalty: OverlongKeys | None
    truncation_penalty: float
    overlong_filtering: bool
    dynamic_sampling: DynamicSamplingKeys | None
    correction: CorrectionSectionKeys | None
    one_step_ahead: bool
    max_sequence_mismatch: float | None
    critic_warmup_steps: int
    gamma: float
    gae_lambda: float
    gae_lambda_policy: float | None
    gae_lambda_value: float | None
    length_adaptive_alpha: float
    bootstrap_truncated: bool
    value_clip: float | None


class CriticSectionKeys(TypedDict, total=False):
    """Options of the section `CriticSection`."""

    name: Literal["AdamW", "Adam", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "RMSprop", "SGD"]
    lr: float
    betas: Sequence[float]
    eps: float
    weight_decay: float
    options: Mapping[str, bool | float]
    max_grad_norm: float | None
    schedule: ScheduleKeys
    parallel: ParallelKeys | None


class GRPOSectionKeys(TypedDict, total=False):
    """Options of the section `GRPOSection`."""

    num_prompts_per_step: int
    num_generations: int
    global_batch_size: int
    ppo_epochs: int
    whiten_advantages: bool
    clip: float
    clip_high: float | None
    dual_clip: float | None
    entropy_coef: float
    kl: KLKeys | None
    reward_scaling: RewardScalingKeys | None
    overlong_penalty: OverlongKeys | None
    truncation_penalty: float
    overlong_filtering: bool
    dynamic_sampling: DynamicSamplingKeys | None
    correction: CorrectionSectionKeys | None
    one_step_ahead: bool
    max_sequence_mismatch: float | None
    baseline: Literal["mean", "leave_one_out", "none"]
    scale_rewards: Literal["group", "others", "batch", "none"]
    loss_mean: Literal["tokens", "responses", "constant"]
    importance_sampling_level: Literal["token", "sequence"]
    loss: Literal["clip", "cispo"]


class PairSectionKeys(TypedDict, total=False):
    """Options of the section `PairSection`."""

    prompt: str
    messages: str | None
    chat: bool
    system_prompt: str | None
    template_args: Mapping[str, bool | int | float | str | Sequence[str]]
    max_prompt_tokens: int
    overlong_prompts: Literal["error", "skip", "truncate"]
    bad_rows: Literal["error", "skip"]
    fields: Mapping[str, Literal["text", "number", "boolean", "list", "object", "any"]] | None
    answer: str
    max_validation_samples: int | None
    train: str | Sequence[str] | None
    validation: str | Sequence[str] | None
    weights: Sequence[float] | None
    task: Mapping[str, Any] | None
    completion: str | None
    shuffle: bool
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    chosen: str
    rejected: str
    chosen_score: str | None
    rejected_score: str | None


class DPOSectionKeys(TypedDict, total=False):
    """Options of the section `DPOSection`."""

    preference_loss: Literal["dpo", "robust", "scale", "ipo", "rpo_sq", "rpo_bwd_kl", "rpo_fwd_kl"]
    label_smoothing: float
    preference_loss_weight: float
    sft_loss_weight: float
    preference_average_log_probs: bool
    sft_average_log_probs: bool | None
    gt_reward_scale: float
    global_batch_size: int
    max_tokens: int
    ref_policy_kl_penalty: float


class LabeledSectionKeys(TypedDict, total=False):
    """Options of the section `LabeledSection`."""

    prompt: str
    messages: str | None
    chat: bool
    system_prompt: str | None
    template_args: Mapping[str, bool | int | float | str | Sequence[str]]
    max_prompt_tokens: int
    overlong_prompts: Literal["error", "skip", "truncate"]
    bad_rows: Literal["error", "skip"]
    fields: Mapping[str, Literal["text", "number", "boolean", "list", "object", "any"]] | None
    answer: str
    max_validation_samples: int | None
    train: str | Sequence[str] | None
    validation: str | Sequence[str] | None
    weights: Sequence[float] | None
    task: Mapping[str, Any] | None
    completion: str | None
    shuffle: bool
    limit_train_batches: int | float | None
    limit_val_batches: int | float | None
    label: str


class KTOSectionKeys(TypedDict, total=False):
    """Options of the section `KTOSection`."""

    global_batch_size: int
    max_tokens: int
    ref_policy_kl_penalty: float
    desirable_weight: float
    undesirable_weight: float


class ORPOSectionKeys(TypedDict, total=False):
    """Options of the section `ORPOSection`."""

    global_batch_size: int
    max_tokens: int
    odds_ratio_weight: float


class SimPOSectionKeys(TypedDict, total=False):
    """Options of the section `SimPOSection`."""

    global_batch_size: int
    max_tokens: int
    beta: float
    margin: float
    sft_loss_weight: float


class OnlineDPOSectionKeys(TypedDict, total=False):
    """Options of the section `OnlineDPOSection`."""

    preference_loss: Literal["dpo", "robust", "scale", "ipo", "rpo_sq", "rpo_bwd_kl", "rpo_fwd_kl"]
    label_smoothing: float
    preference_loss_weight: float
    sft_loss_weight: float
    preference_average_log_probs: bool
    sft_average_log_probs: bool | None
    gt_reward_scale: float
    num_prompts_per_step: int
    num_generations: int
    ref_policy_kl_penalty: float


class RewardModelSectionKeys(TypedDict, total=False):
    """Options of the section `RewardModelSection`."""

    global_batch_size: int
    max_tokens: int
    margin: bool
    center_rewards_coefficient: float


class DistillSectionKeys(TypedDict, total=False):
    """Options of the section `DistillSection`."""

    on_policy: bool
    num_prompts_per_step: int
    num_generations: int
    global_batch_size: int
    max_tokens: int | None
    kl_type: Literal["forward", "reverse", "mixed", "jsd"]
    mixed_kl_weight: float | None
    top_k: int | None
    zero_outside_topk: bool
    teacher_field: str | None


class SelfRewardingSectionKeys(TypedDict, total=False):
    """Options of the section `SelfRewardingSection`."""

    preference_loss: Literal["dpo", "robust", "scale", "ipo", "rpo_sq", "rpo_bwd_kl", "rpo_fwd_kl"]
    label_smoothing: float
    preference_loss_weight: float
    sft_loss_weight: float
    preference_average_log_probs: bool
    sft_average_log_probs: bool | None
    gt_reward_scale: float
    max_iterations: int
    global_batch_size: int
    num_responses_to_gen: int
    length_control: float | Sequence[float]
    ref_policy_kl_penalty: float | Sequence[float]
    acting_policy: Literal["reference", "current"]
    prompt_source: Literal["same", "split", "new"]
    first_iteration: Mapping[str, Any] | None
    use_meta_judge: bool
    meta_judge_pcnt: float | Sequence[float]
    meta_max_relative_pcnt: float
    max_class_share: float
    max_leak_share: float
    leak_pattern: str | None


class JudgeSectionKeys(TypedDict, total=False):
    """Options of the section `JudgeSection`."""

    path: str | None
    sampler: SamplerSectionKeys | None
    chat: bool
    system_prompt: str | None
    template_args: Mapping[str, bool | int | float | str | Sequence[str]]
    sampling: SamplingKeys
    max_prompt_tokens: int
    overlong_judge_prompts: Literal["drop", "truncate_response"]
    unfinished_judgements: Literal["no_verdict", "read"]
    max_no_verdict_rate: float
    template: str | None
    num_evals_to_average: int
    judge_score_low: float
    judge_score_high: float
    decimals: bool
    score_pattern: str


class MetaJudgeSectionKeys(TypedDict, total=False):
    """Options of the section `MetaJudgeSection`."""

    template: str | None
    winner_pattern: str
    path: str | None
    sampler: SamplerSectionKeys | None
    chat: bool
    system_prompt: str | None
    template_args: Mapping[str, bool | int | float | str | Sequence[str]]
    sampling: SamplingKeys
    max_prompt_tokens: int
    overlong_judge_prompts: Literal["drop", "truncate_response"]
    unfinished_judgements: Literal["no_verdict", "read"]
    max_no_verdict_rate: float
    battles: Literal["order_consistency", "position"]
    max_judgement_tokens: int | None


class WritingSamplingKeys(TypedDict, total=False):
    """Options of the section `WritingSampling`."""

    max_tokens: int
    stop: Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


class NewPromptsSectionKeys(TypedDict, total=False):
    """Options of the section `NewPromptsSection`."""

    count: int | None
    template: str | None
    sampling: WritingSamplingKeys
    max_prompt_tokens: int
    max_attempts: int


class KnownSectionKeys(TypedDict, total=False):
    """Options of the section `KnownSection`."""

    judgements: str | None
    comparisons: str | None
    min_meta_accuracy: float


class DoctorDataKeys(TypedDict, total=False):
    """Options of the section `DoctorData`."""

    prompt: str
    messages: str | None
    chat: bool
    system_prompt: str | None
    template_args: Mapping[str, bool | int | float | str | Sequence[str]]
    max_prompt_tokens: int
    overlong_prompts: Literal["error", "skip", "truncate"]
    bad_rows: Literal["error", "skip"]
    fields: Mapping[str, Literal["text", "number", "boolean", "list", "object", "any"]] | None
    prompts: str | Sequence[str] | None


class MethodKeys(TypedDict, total=False):
    """Options of the section `Method`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float


class DoctorGridKeys(TypedDict, total=False):
    """Options of the section `DoctorGrid`."""

    lengths: Sequence[int]
    data: Sequence[Literal["real", "counting"]]
    methods: Sequence[MethodKeys]
    batch_sizes: Sequence[int]
    sequences: int
    all_draw_to: int
    decoded_tokens: int
    max_steps: int
    max_tokens: int
    pass_tokens: int
    repeats: int
    budget_s: float | None


class DoctorLimitsKeys(TypedDict, total=False):
    """Options of the section `DoctorLimits`."""

    max_mult_prob_error: float
    floor_factor: float
    outlier_nats: float
    max_outlier_rate: float
    confidence: float
    max_bias_z: float
    min_sequence_ess: float


class ComputationKeys(TypedDict, total=False):
    """Options of the section `Computation`."""

    device: Literal["auto", "cpu", "cuda"]
    dtype: Literal["fp32", "bf16", "fp16"]


class ClusterSectionKeys(TypedDict, total=False):
    """Options of the section `ClusterSection`."""

    backend: Literal["local", "ray"]
    placement: Literal["colocated", "separate"]
    ray: RaySectionKeys


class DoctorRunKeys(TypedDict, total=False):
    """Options of the section `DoctorRun`."""

    folder: str | None


class SFTOptions(TypedDict, total=False):
    """Options of `SFTRecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: DataSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    sft: SFTSectionKeys
    optimizer: OptimizerKeys


class PPOOptions(TypedDict, total=False):
    """Options of `PPORecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: DataSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    reward: Reward | RewardSectionKeys | None
    reward_model: ModelFolderKeys | None
    validation_reward: Reward | RewardSectionKeys | None
    environment: str | type | EnvironmentSectionKeys | None
    sampling: SamplingKeys
    validation_sampling: RepeatedSamplingKeys
    sampler: SamplerSectionKeys
    agreement: AgreementSectionKeys
    policy: OptimizerKeys
    ppo: PPOSectionKeys
    critic: CriticSectionKeys
    critic_model: ModelFolderKeys | None


class GRPOOptions(TypedDict, total=False):
    """Options of `GRPORecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: DataSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    reward: Reward | RewardSectionKeys | None
    reward_model: ModelFolderKeys | None
    validation_reward: Reward | RewardSectionKeys | None
    environment: str | type | EnvironmentSectionKeys | None
    sampling: SamplingKeys
    validation_sampling: RepeatedSamplingKeys
    sampler: SamplerSectionKeys
    agreement: AgreementSectionKeys
    policy: OptimizerKeys
    grpo: GRPOSectionKeys


class DPOOptions(TypedDict, total=False):
    """Options of `DPORecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: PairSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    optimizer: OptimizerKeys
    dpo: DPOSectionKeys


class KTOOptions(TypedDict, total=False):
    """Options of `KTORecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: LabeledSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    kto: KTOSectionKeys
    optimizer: OptimizerKeys


class ORPOOptions(TypedDict, total=False):
    """Options of `ORPORecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: PairSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    optimizer: OptimizerKeys
    orpo: ORPOSectionKeys


class SimPOOptions(TypedDict, total=False):
    """Options of `SimPORecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: PairSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    optimizer: OptimizerKeys
    simpo: SimPOSectionKeys


class OnlineDPOOptions(TypedDict, total=False):
    """Options of `OnlineDPORecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: DataSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    reward: Reward | RewardSectionKeys | None
    reward_model: ModelFolderKeys | None
    validation_reward: Reward | RewardSectionKeys | None
    sampling: SamplingKeys
    validation_sampling: RepeatedSamplingKeys
    sampler: SamplerSectionKeys
    agreement: AgreementSectionKeys
    online_dpo: OnlineDPOSectionKeys
    optimizer: OptimizerKeys


class RewardModelOptions(TypedDict, total=False):
    """Options of `RewardModelRecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: PairSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    optimizer: OptimizerKeys
    reward_model: RewardModelSectionKeys


class DistillOptions(TypedDict, total=False):
    """Options of `DistillRecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: DataSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    distill: DistillSectionKeys
    teachers: Mapping[str, ModelFolderKeys]
    sampling: SamplingKeys | None
    sampler: SamplerSectionKeys
    agreement: AgreementSectionKeys
    optimizer: OptimizerKeys
    validation_reward: Reward | RewardSectionKeys | None
    validation_sampling: RepeatedSamplingKeys | None


class SelfRewardingOptions(TypedDict, total=False):
    """Options of `SelfRewardingRecipe`."""

    train: Rows
    validation: Rows | None
    seed: int
    model: str | Path | ModelSectionKeys
    data: DataSectionKeys
    learner: LearnerSectionKeys
    cluster: ClusterKeys
    trackers: Callable[[str, int, Any], object] | TrackersKeys
    run: RunSectionKeys
    acceptance: Sequence[BoundKeys]
    self_rewarding: SelfRewardingSectionKeys
    judge: JudgeSectionKeys | None
    reward_model: ModelFolderKeys | None
    meta_judge: MetaJudgeSectionKeys | None
    verifier: Reward | RewardSectionKeys | None
    new_prompts: NewPromptsSectionKeys | None
    sampling: SamplingKeys
    sampler: SamplerSectionKeys
    agreement: AgreementSectionKeys
    optimizer: OptimizerKeys
    validation_reward: Reward | RewardSectionKeys | None
    validation_sampling: RepeatedSamplingKeys | None
    known: KnownSectionKeys


class DoctorOptions(TypedDict, total=False):
    """Options of `DoctorRecipe`."""

    seed: int
    data: DoctorDataKeys
    backends: Sequence[str]
    grid: DoctorGridKeys
    limits: DoctorLimitsKeys
    learner: ComputationKeys
    cluster: ClusterSectionKeys
    sampler: SamplerSectionKeys
    run: DoctorRunKeys
