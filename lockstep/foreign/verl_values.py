"""Values of verl's keys: what its trainers do with them, and what they become."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import (
    Lookup,
    adaptive_kl,
    column,
    data_ranks,
    kl_coefficient,
    lack,
    nothing,
    number,
    refuse,
    section,
    tokens_left,
)
from lockstep.foreign.interpolation import is_open
from lockstep.foreign.words import Answer, Config, Convert, Json, Kind, Several, Unset

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REF, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
OVERLONG = "reward_model.reward_kwargs.overlong_buffer_cfg"
OVERLONG_NEW = "reward.reward_kwargs.overlong_buffer_cfg"
CORRECTION = "algorithm.rollout_correction"
OLD_REWARD, REWARD = "custom_reward_function", "reward.custom_reward_function"
SCALED = "algorithm.norm_adv_by_std_in_grpo"

ESTIMATORS: dict[Json, Json | Unset] = {
    "grpo": "mean", "grpo_vectorized": "mean", "rloo": "leave_one_out", "rloo_vectorized": "leave_one_out",
    "reinforce_plus_plus": "none", "reinforce_plus_plus_baseline": "mean", "gae": nothing("algorithm: ppo"),
}  # fmt: skip


def is_sft(config: Config) -> bool:
    """True for a config of a trainer of demonstrations."""
    return "sft" in config.program or any(key.startswith(("model.", "optim.")) for key in config.given)


def algorithm(config: Config) -> str:
    """The algorithm that a config is for."""
    if is_sft(config):
        return "sft"
    return "ppo" if config.get("algorithm.adv_estimator") == "gae" else "grpo"


def is_main_ppo(config: Config) -> bool:
    """True where verl's own trainer is started, and not a recipe that has more options."""
    return config.program.endswith(("main_ppo", "main_ppo.py"))


def prompts_of_step(config: Config) -> int:
    """Prompts of a step: in verl's own trainer those that its loader is told to load."""
    loaded = config.whole("data.gen_batch_size", 0) if is_main_ppo(config) else 0
    return loaded or config.whole("data.train_batch_size", 1)


def train_batch(value: Json, config: Config) -> Answer:
    """Prompts of a step, or rows of SFT."""
    is_other = not is_sft(config) and prompts_of_step(config) != value
    return nothing("data.gen_batch_size is what the loader reads") if is_other else value


def loader_batch(value: Json, config: Config) -> Answer:
    """Prompts that are loaded at a time."""
    return value if is_main_ppo(config) and value else nothing("as many prompts as a step takes are sampled at a time")


def prompt_key(value: Json, config: Config) -> Answer:
    """The field of messages, or of the question of a demonstration."""
    field = column(value, config) if is_sft(config) else value
    return Several({"data.prompt": field}) if is_sft(config) and isinstance(field, str) else field


def always(config: Config) -> Mapping[str, Json]:
    """The right answer of its rows, the chat template around questions, engines on all GPUs, and more machines."""
    if config.algorithm == "sft":
        shared: dict[str, Json] = {"data.max_prompt_tokens": config.whole("data.max_length", 1024)}
        if (config.processes or 1) > 1:
            shared["learner.parallel.dp"] = config.processes
        return shared if config.says("data.multiturn.enable") else {**shared, "data.chat": True}
    engines, rest = divmod(all_gpus(config), max(1, config.whole(f"{ROLLOUT}.tensor_model_parallel_size", 1)))
    options: dict[str, Json] = {"data.answer": "{reward_model.ground_truth}"}
    if config.get(f"{ROLLOUT}.name") == "vllm" and engines > 1 and not rest:
        options["sampler.replicas"] = engines
    return options | ({"cluster.backend": "ray"} if config.whole("trainer.nnodes", 1) > 1 else {})


def all_gpus(config: Config) -> int:
    """GPUs of all machines."""
    return config.whole("trainer.n_gpus_per_node", 8) * config.whole("trainer.nnodes", 1)


def critic_warmup(value: Json, config: Config) -> Answer:
    """Steps before the policy learns: they count from 1, and the step of this number learns."""
    steps = int(number_of(value)) - 1
    if steps > 0 and not has_critic(config):
        return Unset(Kind.DIFFERS, f"{steps} steps without a gain: there a policy without a critic waits, too")
    return steps if steps > 0 else nothing("the policy learns from the first step on")


def updates_of_critic(name: str) -> Convert:
    """The conversion of how often the critic is updated, which here is as often as the policy."""

    def convert(value: Json, config: Config) -> Answer:
        if value == config.get(f"{ACTOR}.{name}") or is_open(value):
            return nothing("that of the policy, as here")
        return refuse(f"the critic is updated as often as the policy, by actor.{name}")

    return convert


def loss_scale(value: Json, config: Config) -> Answer:
    """The constant by which the sums of responses are divided."""
    if config.get(f"{ACTOR}.loss_agg_mode") != "seq-mean-token-sum-norm" or not value:
        return nothing("read by loss_agg_mode=seq-mean-token-sum-norm alone" if value else "none")
    if value == config.get("data.max_response_length"):
        return nothing("sampling.max_tokens, as here")
    return refuse("loss_mean: constant divides by sampling.max_tokens")


def epochs(value: Json, config: Config) -> Answer:
    """Epochs, of which and of the steps the earlier ends their run."""
    if not config.number("trainer.total_training_steps"):
        return value
    if "trainer.total_epochs" not in config.given:
        return nothing("total_training_steps ends the run")
    return refuse(
        "the earlier ends their run, and run.max_steps alone ends this one; if the epochs do, say "
        f"run.max_epochs={value}"
    )


def is_megatron(config: Config) -> bool:
    """True if Megatron trains."""
    return config.get(f"{ACTOR}.strategy") == "megatron" or "megatron" in str(config.get("--config-name"))


def has_critic(config: Config) -> bool:
    """True if a critic is trained."""
    return algorithm(config) == "ppo"


def estimator(value: Json, config: Config) -> Answer:
    """An estimator of advantages: its baseline, and how it scales and whitens."""
    baseline = Lookup(ESTIMATORS)(value, config)
    if not isinstance(baseline, str):
        return baseline
    shared: dict[str, Json] = {"baseline": baseline, "scale_rewards": scale(config.get(SCALED), config)}
    return section("grpo", **shared, whiten_advantages=str(value).startswith("reinforce"))


def mini_batch(value: Json, config: Config) -> Answer:
    """Prompts become responses."""
    return int(number_of(value)) * config.whole(f"{ROLLOUT}.n", 1)


def number_of(value: Json) -> float:
    """A number, 0 where it is none."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0


def updates(config: Config) -> int:
    """Optimizer steps of one of their steps, which their scheduler counts."""
    if is_sft(config):
        return 1
    batch, mini = prompts_of_step(config), config.whole(f"{ACTOR}.ppo_mini_batch_size", 1)
    return max(1, batch // max(1, mini)) * config.whole(f"{ACTOR}.ppo_epochs", 1)


def steps(config: Config) -> float:
    """Optimizer steps of the run, where the config says how many steps it has; else 0."""
    return config.number("trainer.total_training_steps") * updates(config)


def warmup(value: Json, config: Config) -> Answer:
    """Their steps of a warm-up become optimizer steps."""
    their_steps = number_of(value)
    return int(their_steps) * updates(config) if their_steps > 0 else nothing("no warmup of its own")


def decay(value: Json, config: Config, owner: str = "policy") -> Answer:
    """A schedule; a decay needs the run's length."""
    if value == "constant":
        return "constant"
    length = int(steps(config))
    if value != "cosine" or length <= 0:
        return refuse("a decay needs decay_steps, and the config does not say trainer.total_training_steps")
    return section(f"{owner}.schedule", decay="cosine", decay_steps=length)


def critic_decay(value: Json, config: Config) -> Answer:
    """The critic's schedule."""
    return decay(value, config, "critic")


def warms_up_by_share(config: Config, owner: str = ACTOR) -> bool:
    """True if a share of the steps is what a warm-up is read from: a number of steps goes before it."""
    return config.number(f"{owner}.optim.lr_warmup_steps") <= 0


def dp(value: Json, config: Config) -> Answer:
    """Ranks that share the data: all GPUs, less what the other axes take."""
    gpus = all_gpus(config)
    others = config.whole(f"{ACTOR}.ulysses_sequence_parallel_size", 1)
    for axis in ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"):
        others *= config.whole(f"{ACTOR}.megatron.{axis}", 1) if is_megatron(config) else 1
    return data_ranks(gpus, others)


def kl_reward(value: Json, config: Config) -> Answer:
    """The coefficient of a KL in the reward."""
    return refuse(say.ONE_KL) if config.says(f"{ACTOR}.use_kl_loss") else kl_coefficient(value, config)


_ESTIMATORS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}
_OTHER_GRADIENT = "{} in the {} has another gradient there than KL(π ‖ π_ref), which is trained by here"


def loss_estimator(value: Json, config: Config) -> Answer:
    """An estimator of the KL in the loss; those with a plus have the gradient of k2."""
    name = _ESTIMATORS.get(str(value), str(value))
    if name == "k2" or name.endswith("+"):
        return nothing("its gradient is that of k2; here weighed by π/π_old, too")
    return lack(say.GRADIENTS.get(("loss", name), _OTHER_GRADIENT.format(value, "loss")))


def reward_estimator(value: Json, config: Config) -> Answer:
    """An estimator of the KL in the reward."""
    name = _ESTIMATORS.get(str(value), str(value))
    if name == "k1":
        return nothing("k1, as here")
    return lack(say.GRADIENTS.get(("reward", name), _OTHER_GRADIENT.format(value, "reward")))


def use_kl_loss(value: Json, config: Config) -> Answer:
    """The placement of the KL, where it is in the loss."""
    if value is True and config.number(f"{ACTOR}.kl_loss_coef"):
        unsaid = f"{ACTOR}.kl_loss_type" not in config.given
        return Several({"ppo.kl.placement": "loss"}, say.GRADIENTS["loss", "k3"] if unsaid else "")
    return nothing("no KL in the loss")


def use_kl_in_reward(value: Json, config: Config) -> Answer:
    """The placement of the KL, where it is in the reward."""
    if value is not True or not config.number("algorithm.kl_ctrl.kl_coef"):
        return nothing("no KL in the reward")
    return refuse(say.ONE_KL) if config.says(f"{ACTOR}.use_kl_loss") else "reward"


def target_kl(value: Json, config: Config) -> Answer:
    """The target of an adaptive coefficient, with the gain that their horizon is at the size of a step."""
    if config.get("algorithm.kl_ctrl.type") != "adaptive":
        return nothing("the coefficient is fixed")
    responses = prompts_of_step(config) * config.whole(f"{ROLLOUT}.n", 1)
    return adaptive_kl(value, responses, config.number("algorithm.kl_ctrl.horizon", 10_000))


def loss_mean(value: Json, config: Config) -> Answer:
    """The unit that a loss is a mean over."""
    if config.algorithm != "ppo":
        return Lookup(MEANS)(value, config)
    return nothing("tokens, as here") if value == "token-mean" else lack("the loss of ppo is a mean over all tokens")


def discount(value: Json, config: Config) -> Answer:
    """The discount per token."""
    if config.algorithm == "ppo" or value == 1:
        return value if config.algorithm == "ppo" else nothing("1, as here without a word")
    if config.get("algorithm.adv_estimator") != "reinforce_plus_plus":
        return nothing("read by gae and reinforce_plus_plus alone")
    return lack("rewards are discounted per token there; a recipe of grpo has no discount")


def scale(value: Json, config: Config) -> str:
    """The divisor of GRPO's advantages, which its vectorized form divides in any case."""
    name = config.get("algorithm.adv_estimator")
    return "group" if name == "grpo_vectorized" or (name == "grpo" and value is True) else "none"


def validation(value: Json, config: Config) -> Answer:
    """An option of sampling that is read above temperature 0."""
    if not config.number(f"{ROLLOUT}.val_kwargs.temperature"):
        return nothing("temperature 0 takes the likeliest token")
    return tokens_left(value, config)


def validation_n(value: Json, config: Config) -> Answer:
    """Responses to each prompt of validation."""
    if not config.number(f"{ROLLOUT}.val_kwargs.temperature") and number_of(value) > 1:
        return refuse("temperature 0 gives the same response every time")
    return value


def chat_turns(value: Json, config: Config) -> Answer:
    """Several turns, which need an environment."""
    return (
        refuse("episodes need an environment: environment.class_name; docs/guides/environments.md")
        if value
        else (nothing("none"))
    )


def overlong(value: Json, config: Config) -> Answer:
    """A number of the penalty on long responses."""
    if not (config.says(f"{OVERLONG}.enable") or config.says(f"{OVERLONG_NEW}.enable")):
        return nothing("overlong_buffer_cfg.enable is false")
    return value


def groups(value: Json, config: Config) -> Answer:
    """Batches that dynamic sampling may draw."""
    if value is not True:
        return nothing("off, as here without a word")
    batches = config.whole("algorithm.filter_groups.max_num_gen_batches", 0)
    return batches if batches > 0 else 1_000_000


def is_range(threshold: Json) -> bool:
    """True for a threshold of two bounds."""
    return isinstance(threshold, str) and "_" in threshold


def correction(value: Json, config: Config) -> Answer:
    """The kind of correction for what the engine samples."""
    if value in (None, "null", "none"):
        return nothing("no correction")
    if is_range(config.get(f"{CORRECTION}.rollout_is_threshold")):
        return nothing("the threshold says icepop")
    return Lookup({"token": "token_tis", "sequence": "sequence_tis"})(value, config)


def correction_bound(value: Json, config: Config) -> Answer:
    """The bound of a correction, or both bounds of a mask."""
    if config.get(f"{CORRECTION}.rollout_is") is None:
        return nothing("rollout_is is null")
    if not is_range(value):
        return number(value, config)
    if config.get(f"{CORRECTION}.rollout_is") != "token":
        return refuse("icepop masks tokens, not sequences")
    low, high = (number(bound, config) for bound in str(value).split("_", 1))
    if not isinstance(low, float) or not isinstance(high, float):
        return refuse(f"{value} is no number_number")
    return section("ppo.correction", kind="icepop", low=low, high=high)


def logger(value: Json, config: Config) -> Answer:
    """The trackers."""
    names = value if isinstance(value, list) else [value]
    unknown = [str(name) for name in names if name not in ("console", "wandb", "tensorboard", "mlflow")]
    if unknown:
        return refuse(f"there is no tracker {', '.join(unknown)}")
    return section("trackers", **{str(name): {} for name in names if name not in ("console", None)})


def tracker(value: Json, config: Config) -> Answer:
    """A name that one tracker has a use for."""
    loggers = config.get("trainer.logger")
    if "wandb" not in (loggers if isinstance(loggers, list) else [loggers]):
        return nothing("no tracker has a use for it")
    return str(value)


def reward_function(value: Json, config: Config) -> Answer:
    """A file with a reward function, or a module of it."""
    if not value:
        return nothing("none")
    name = config.get(f"{REWARD}.name") or config.get(f"{OLD_REWARD}.name") or "compute_score"
    place = str(value).removeprefix("file://")
    module = place.removeprefix("pkg://").replace("/", ".")
    return section("reward", type="python", function=f"{module if place.startswith('pkg://') else place}:{name}")


def has_function(config: Config) -> bool:
    """True if a config names a file with a reward function."""
    return bool(config.get(f"{REWARD}.path") or config.get(f"{OLD_REWARD}.path"))


def lora(value: Json, config: Config) -> Answer:
    """A number of LoRA."""
    return value if config.number(f"{MODEL}.lora_rank") or config.number("model.lora_rank") else nothing("no LoRA")


def lora_modules(value: Json, config: Config) -> Answer:
    """The maps that get LoRA."""
    if value == "all-linear":
        return nothing("all linear maps, as here without a word")
    listed: Json = value if isinstance(value, list) else [value]
    return lora(listed, config)


TRUNCATION: dict[Json, Json | Unset] = {
    "error": "error", "left": "truncate", None: "error",
    "right": refuse("a prompt that is cut keeps its end (truncate), so that the question stays"),
    "middle": refuse("a prompt that is cut keeps its end (truncate), so that the question stays"),
}  # fmt: skip
STRATEGY: dict[Json, Json | Unset] = {"fsdp": "torch", "fsdp2": "torch", "megatron": "megatron"}
MEANS: dict[Json, Json | Unset] = {
    "token-mean": "tokens", "seq-mean-token-mean": "responses", "seq-mean-token-sum-norm": "constant",
    "seq-mean-token-sum": refuse("a mean over responses of sums over tokens is loss_mean=constant but for its scale: "
                                 "the gradient there is sampling.max_tokens times as large"),
}  # fmt: skip


def loss_mode(value: Json, config: Config) -> Answer:
    """The policy's loss."""
    if value == "vanilla":
        return nothing("the clipped objective of tokens")
    parts = {
        "gspo": section("grpo", importance_sampling_level="sequence", loss_mean="responses"),
        "cispo": Several({"grpo.loss": "cispo"}, _explain_lower_bound(config)),
    }
    return parts[value] if isinstance(value, str) and value in parts else refuse(f"there is no loss {value}")


def has_dual_clip(config: Config) -> bool:
    """True if the policy's loss is the one that has a dual clip."""
    return config.get(f"{ACTOR}.policy_loss.loss_mode") in (None, "vanilla")


def _explain_lower_bound(config: Config) -> str:
    """A sentence on the lower bound of CISPO's ratio; empty where the ratio is 1, or no ratio is below the bound."""
    low = config.number(f"{ACTOR}.clip_ratio_low", config.number(f"{ACTOR}.clip_ratio", 0.2))
    if updates(config) == 1 or low >= 1:
        return ""
    return f"their ratio is bounded below, too, at {1 - low:g}; here above alone, as there with clip_ratio_low=1"


def overlong_prompts(value: Json, config: Config) -> Answer:
    """The fate of prompts that are too long."""
    return "skip" if value is True else nothing("data.truncation decides")


def truncation(value: Json, config: Config) -> Answer:
    """The fate of prompts that are too long and kept."""
    if config.says("data.filter_overlong_prompts"):
        return nothing("data.filter_overlong_prompts drops them before")
    return Lookup(TRUNCATION)(value, config)


def rows(value: Json, config: Config) -> Answer:
    """A limit on rows."""
    if number_of(value) <= 0:
        return nothing("all rows")
    return refuse("a limit in rows; data.limit_train_batches counts batches")


def adapter(value: Json, config: Config) -> Answer:
    """An adapter to begin with."""
    return refuse("training of adapters that are there already; merge them first") if value else nothing("none")
