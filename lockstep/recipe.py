"""What a recipe may say: one frozen section per part of the house; unknown keys are errors (see `lockstep.config`).

No default stands twice, no validator changes a field, derived values are properties. Imports no torch.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

Probability = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A frozen group of options that forbids unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Scratch(Section):
    """A new model with random weights: a `transformers` configuration, and a tokenizer made from the training text."""

    config: dict[str, Any] = Field(description="fields of a transformers config, `model_type` among them")
    tokenizer: Literal["words"] = Field(
        default="words", description="one token per word, number, sign and newline of the data"
    )


class ModelSection(Section):
    """Where the first weights come from: exactly one of the three."""

    path: str | None = Field(default=None, description="a Hugging Face folder on this machine")
    from_recipe: str | None = Field(default=None, description="a recipe that is trained first, with the same seed")
    scratch: Scratch | None = Field(default=None, description="build a new model")

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if sum(source is not None for source in (self.path, self.from_recipe, self.scratch)) != 1:
            raise ValueError("say exactly one of path, from_recipe and scratch (model.path=FOLDER names your model)")
        return self


class Arithmetic(Section):
    """Word problems that are made, not read; see `lockstep.experience.arithmetic`."""

    train_questions: PositiveInt = Field(description="distinct training questions")
    validation_questions: PositiveInt = Field(description="held-out questions, none of them a training question")
    demonstrations: NonNegativeInt = Field(
        default=0, description="solved rows for SFT, drawn from the training questions; 0: none"
    )
    direct_from: Probability = Field(
        default=0.75, description="share of the demonstrations after which direct answers appear"
    )
    direct_share: Probability = Field(
        default=0.6, description="share of questions that are then answered without reasoning"
    )
    seed: int = Field(default=0, description="of the questions; the run's seed does not change them")


class DataSection(Section):
    """Rows of JSONL, and how they become prompts. `{field}` in a template stands for a field of the row."""

    train: str | None = Field(default=None, description="JSONL file to train on")
    validation: str | None = Field(default=None, description="JSONL file to validate on")
    arithmetic: Arithmetic | None = Field(default=None, description="make the data instead of reading it")
    prompt: str = Field(
        default="{question}", description="template of the prompt, or of the user's message where `chat` is on"
    )
    completion: str = Field(default="{answer}", description="template of the completion that SFT learns")
    answer: str = Field(default="{answer}", description="template of the right answer that a reward sees")
    chat: bool = Field(default=False, description="put the prompt through the tokenizer's chat template")
    system_prompt: str | None = Field(default=None, description="system message, with `chat`")
    max_prompt_tokens: PositiveInt = Field(description="a longer prompt is over-long")
    overlong_prompts: Literal["error", "skip"] = Field(
        default="error", description="what to do with them; skipped ones are counted"
    )
    bad_lines: Literal["error", "skip"] = Field(
        default="error", description="what to do with a line that is no row; likewise"
    )
    max_validation_samples: PositiveInt | None = Field(default=None, description="validate on the first so many rows")
    shuffle: bool = Field(default=True, description="a new order each epoch, keyed by the seed")

    @model_validator(mode="after")
    def _one_source(self) -> DataSection:
        if (self.train is None) == (self.arithmetic is None):
            raise ValueError("say exactly one of train (a JSONL file) and arithmetic")
        if self.arithmetic is not None and self.validation is not None:
            raise ValueError("validation does not go with arithmetic, which makes its own")
        if self.system_prompt is not None and not self.chat:
            raise ValueError("system_prompt needs chat: true")
        return self


class RewardSection(Section):
    """What a response is worth."""

    type: Literal["math", "python"] = Field(
        description="`math`: right or wrong by math-verify; `python`: your function"
    )
    marker: str | None = Field(
        default=None, description="math: the answer is what follows the last of these; null: the whole text"
    )
    function: str | None = Field(
        default=None, description="python: `file.py:name` or `package.module:name`, see docs/guides/rewards.md"
    )

    @model_validator(mode="after")
    def _function_given(self) -> RewardSection:
        if (self.type == "python") != (self.function is not None):
            raise ValueError("function goes with type: python, and only with it")
        if self.type == "python" and self.marker is not None:
            raise ValueError("marker goes with type: math; a function of yours finds the answer itself")
        return self


class Schedule(Section):
    """Learning rate over optimizer steps: linear warm-up, then constant, linear or cosine."""

    warmup_steps: NonNegativeInt = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    decay_steps: PositiveInt | None = Field(
        default=None, description="optimizer steps until the end of the decay, warm-up included"
    )
    final_fraction: Probability = Field(default=0.0, description="the decay ends at lr times this")

    @model_validator(mode="after")
    def _decay_has_an_end(self) -> Schedule:
        if (self.decay == "constant") != (self.decay_steps is None):
            raise ValueError("decay_steps goes with decay: linear and decay: cosine, and only with them")
        if self.decay == "constant" and self.final_fraction:
            raise ValueError("final_fraction goes with decay: linear and decay: cosine, and only with them")
        return self


class Optimizer(Section):
    """AdamW (Loshchilov & Hutter 2019) with fp32 weights and moments."""

    lr: PositiveFloat
    betas: tuple[Probability, Probability] = (0.9, 0.999)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.0
    max_grad_norm: PositiveFloat | None = Field(default=1.0, description="clip the gradient's norm; null: do not")
    schedule: Schedule = Schedule()


class Parallel(Section):
    """How many processes share the work."""

    dp: PositiveInt = Field(default=1, description="data-parallel ranks, each with the whole model")


class LearnerSection(Section):
    """The training backend, for policy, critic and reference alike."""

    backend: Literal["torch"] = "torch"
    parallel: Parallel = Parallel()
    device: Literal["auto", "cpu", "cuda"] = Field(default="auto", description="auto: cuda where there is one")
    dtype: Literal["fp32", "bf16"] = Field(
        default="fp32", description="of the computation; weights and moments are always fp32"
    )
    micro_batch_tokens: PositiveInt = Field(
        default=8192, description="tokens packed into one forward and backward pass"
    )


class Sampling(Section):
    """The distribution that responses are drawn from."""

    max_tokens: PositiveInt
    temperature: NonNegativeFloat = Field(default=1.0, description="0: greedy")
    top_k: NonNegativeInt = Field(default=0, description="0: all")
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0

    @model_validator(mode="after")
    def _greedy_takes_the_likeliest(self) -> Sampling:
        if self.temperature == 0 and (self.top_k or self.top_p < 1):
            raise ValueError("temperature 0 takes the likeliest token, so top_k and top_p must be left at 0 and 1")
        return self


class SamplerSection(Section):
    """The engine that generates."""

    backend: Literal["torch"] = "torch"
    max_batch_size: PositiveInt = Field(default=256, description="sequences that are generated side by side")


class Cluster(Section):
    """Where processes live."""

    backend: Literal["local"] = Field(
        default="local", description="child processes of this machine; none where every size is 1"
    )
    timeout_s: PositiveFloat = Field(default=1800.0, description="a worker that takes longer over one call is given up")


class Run(Section):
    """How long, how often, where to."""

    max_steps: int = Field(default=-1, ge=-1, description="stop after so many steps; -1: after max_epochs")
    max_epochs: PositiveInt = Field(default=1, description="passes over the training data, where max_steps is -1")
    validate_every: NonNegativeInt = Field(default=0, description="steps between validations; 0: only first and last")
    save_every: PositiveInt = Field(default=10, description="steps between checkpoints; the last step is always saved")
    keep: PositiveInt = Field(default=2, description="newest checkpoints that are kept")
    num_logged_samples: NonNegativeInt = Field(default=8, description="responses a step writes to samples.jsonl")
    folder: str | None = Field(
        default=None, description="run folder; null: runs/<recipe>-<hash of the resolved recipe>"
    )


class KL(Section):
    """Divergence from the reference, the initial policy (Schulman 2020, 'Approximating KL divergence')."""

    coef: NonNegativeFloat = Field(default=0.0, description="0: the reference is never computed")
    estimator: Literal["k1", "k2", "k3"] = "k3"
    placement: Literal["reward", "loss"] = Field(
        default="loss", description="subtract from each token's reward, or add to the loss"
    )
    clamp_logratio: PositiveFloat | None = Field(default=20.0, description="bound on |log π/π_ref| before the estimate")
    clamp: PositiveFloat | None = Field(default=10.0, description="bound on the estimate's magnitude")


class RewardScaling(Section):
    """Linear map of rewards: source range, clamped, to target range."""

    source: tuple[float, float] = (0.0, 1.0)
    target: tuple[float, float] = (-1.0, 1.0)

    @model_validator(mode="after")
    def _source_is_a_range(self) -> RewardScaling:
        if self.source[1] <= self.source[0]:
            raise ValueError(f"source must rise, but is {list(self.source)}")
        return self


class Overlong(Section):
    """Soft overlong punishment (DAPO, Yu et al. 2025, eq. 13), linear over the last `buffer` tokens of `max_tokens`."""

    buffer: PositiveInt
    penalty: PositiveFloat = 1.0


class DynamicSampling(Section):
    """Draw until the step has enough prompts whose rewards differ (DAPO, Yu et al. 2025, §3.2)."""

    max_batches: PositiveInt = Field(
        default=10, description="give up, with an error, after so many batches of prompts in one step"
    )


class Correction(Section):
    """Importance weights from sampler to learner, for engines whose log-probabilities differ from the learner's."""

    kind: Literal["token_tis", "sequence_tis", "icepop"]
    high: PositiveFloat = Field(default=2.0, description="truncate (TIS) or mask (IcePop) ratios above this")
    low: NonNegativeFloat | None = Field(default=None, description="IcePop: mask ratios below this")

    @model_validator(mode="after")
    def _icepop_has_two_ends(self) -> Correction:
        if (self.kind == "icepop") != (self.low is not None):
            raise ValueError("low goes with kind: icepop, and only with it")
        if self.low is not None and self.low >= self.high:
            raise ValueError(f"ratios from low to high are kept, but low is {self.low} and high {self.high}")
        return self


class PPO(Section):
    """Proximal policy optimisation with a critic (Schulman et al. 2017); see docs/algorithms/ppo.md."""

    num_prompts_per_step: PositiveInt
    num_generations: PositiveInt = Field(default=1, description="responses per prompt")
    global_batch_size: PositiveInt = Field(description="responses per optimizer step")
    ppo_epochs: PositiveInt = 1
    critic_warmup_steps: NonNegativeInt = Field(default=0, description="steps in which only the critic learns")
    gamma: Probability = 1.0
    gae_lambda: Probability = 0.95
    gae_lambda_policy: Probability | None = Field(default=None, description="for advantages, where it differs (VAPO)")
    gae_lambda_value: Probability | None = Field(
        default=None, description="for the critic's returns, where it differs (VAPO)"
    )
    length_adaptive_alpha: NonNegativeFloat = Field(
        default=0.0, description="advantages with λ = 1 − 1/(α·length) (VAPO); 0: off"
    )
    bootstrap_truncated: bool = Field(
        default=False, description="a truncated response goes on being worth V of its last state"
    )
    whiten_advantages: bool = True
    clip: PositiveFloat = Field(default=0.2, description="ratio is clipped to [1 − clip, 1 + clip_high]")
    clip_high: PositiveFloat | None = Field(default=None, description="null: as clip")
    dual_clip: Annotated[float, Field(gt=1.0)] | None = Field(
        default=None, description="bound on the ratio where the advantage is negative"
    )
    value_clip: PositiveFloat | None = Field(default=0.2, description="null: plain squared error")
    kl: KL = KL()
    reward_scaling: RewardScaling | None = None
    overlong_penalty: Overlong | None = None
    truncation_penalty: NonNegativeFloat = Field(
        default=0.0, description="subtracted from the reward of a truncated response"
    )
    overlong_filtering: bool = Field(default=False, description="truncated responses leave the loss")
    dynamic_sampling: DynamicSampling | None = None
    correction: Correction | None = None
    max_sequence_mismatch: Annotated[float, Field(ge=1.0)] | None = Field(
        default=None, description="drop responses whose mean exp|Δ| exceeds this"
    )

    @model_validator(mode="after")
    def _one_lambda_for_advantages(self) -> PPO:
        if self.length_adaptive_alpha and self.gae_lambda_policy is not None:
            raise ValueError("length_adaptive_alpha sets λ by length, so gae_lambda_policy must be null")
        return self

    @model_validator(mode="after")
    def _rewards_can_differ(self) -> PPO:
        if self.dynamic_sampling is not None and self.num_generations < 2:
            raise ValueError(
                "dynamic_sampling compares the responses to a prompt, so num_generations must be 2 or more"
            )
        return self


class Common(Section):
    """What every recipe has."""

    seed: int = 0
    model: ModelSection
    data: DataSection
    learner: LearnerSection = LearnerSection()
    cluster: Cluster = Cluster()
    run: Run


class SFT(Section):
    """Supervised fine-tuning on completions, the stop token included."""

    global_batch_size: PositiveInt = Field(description="rows per optimizer step")
    max_tokens: PositiveInt = Field(description="longest prompt and completion together")


class SFTRecipe(Common):
    """`algorithm: sft`"""

    algorithm: Literal["sft"]
    sft: SFT
    optimizer: Optimizer

    @model_validator(mode="after")
    def _does_not_validate(self) -> SFTRecipe:
        if self.data.validation is not None or self.data.max_validation_samples is not None or self.run.validate_every:
            raise ValueError("sft has no validation yet; leave data.validation and run.validate_every out")
        return self


class Bound(Section):
    """A metric that `lockstep check` expects at a step: within [min, max]."""

    metric: str
    step: NonNegativeInt
    min: float | None = None
    max: float | None = None


class PPORecipe(Common):
    """`algorithm: ppo`"""

    algorithm: Literal["ppo"]
    ppo: PPO
    reward: RewardSection
    sampling: Sampling
    validation_sampling: Sampling
    sampler: SamplerSection = SamplerSection()
    policy: Optimizer
    critic: Optimizer
    acceptance: tuple[Bound, ...] = Field(default=(), description="bounds that `lockstep check RUN` reads")

    @model_validator(mode="after")
    def _batches_divide(self) -> PPORecipe:
        samples, batch = self.ppo.num_prompts_per_step * self.ppo.num_generations, self.ppo.global_batch_size
        if samples % batch:
            raise ValueError(
                f"ppo.num_prompts_per_step × num_generations = {samples} responses do not divide into "
                f"ppo.global_batch_size = {batch}"
            )
        return self


Recipe = Annotated[SFTRecipe | PPORecipe, Field(discriminator="algorithm")]
