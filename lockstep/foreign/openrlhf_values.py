"""Values of OpenRLHF's flags that need more than a word: losses, advantages, rewards, lengths and schedules."""

from __future__ import annotations

import math
from collections.abc import Mapping

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import Lookup, adaptive_kl, column, lack, nothing, positive, refuse, section, whole
from lockstep.foreign.words import Answer, Config, Convert, Json, Kind, Several, Unset

RL = ("ppo", "grpo")
PAIRS = ("dpo", "reward_model")
GROUPS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators that compare the responses to a prompt; their program takes no discount then."""
WHITENED = ("gae", "reinforce", "reinforce_baseline")
ESTIMATORS: dict[Json, Json | Unset] = {
    "gae": nothing("algorithm: ppo"), "group_norm": "mean", "dr_grpo": "mean", "rloo": "leave_one_out",
    "reinforce": "none", "reinforce_baseline": "mean",
}  # fmt: skip
WRAPPER = "my_rewards.py:from_openrlhf"
FLOORED = "cosine_with_min_lr"


def read_estimator(config: Config) -> Json:
    """Their name of the advantages."""
    return config.get("algo.advantage.estimator")


def has_kl(config: Config, in_loss: bool) -> bool:
    """True if there is a KL, and it is in the loss, or in the reward."""
    return config.number("algo.kl.init_coef") > 0 and config.says("algo.kl.use_loss") is in_loss


def find_critic(config: Config) -> str | None:
    """The model that their critic starts from where no flag says it, unless that is the policy's: the reward model."""
    model = config.get("reward.model_name_or_path")
    if config.get("reward.remote_url") or config.get("train.agent_func_path") or not isinstance(model, str):
        return None
    return model.split(",")[0]


def has_function(config: Config) -> bool:
    """True if a Python function of theirs scores responses."""
    first = str(config.get("reward.remote_url") or "").split(",")[0]
    return first.endswith(".py") and not config.get("train.agent_func_path")


def estimator(value: Json, config: Config) -> Answer:
    """A baseline; group_norm alone divides by the deviation, with no_std_norm or without."""
    baseline = Lookup(ESTIMATORS)(value, config)
    scale = "group" if value == "group_norm" else "none"
    return section("grpo", baseline=baseline, scale_rewards=scale) if isinstance(baseline, str) else baseline


def no_std(value: Json, config: Config) -> Answer:
    """Advantages that are centered over a step and not divided."""
    if value is not True:
        return nothing("whitened, as here")
    if read_estimator(config) == "reinforce_baseline":
        return Several(
            {"grpo.whiten_advantages": False},
            "advantages of a step are centered and not divided there; without whiten_advantages they are neither here",
        )
    return lack("advantages of a step are centered and not divided there; whiten_advantages does both here, or neither")


_NET_OF_KL = "there a token pays β times the KL of itself and what follows beside the group's advantage; here {} of "
_NET_OF_KL += "rewards less β times the KL of the whole response"


def placement(value: Json, config: Config) -> Answer:
    """The place of the KL: in the loss, or in the reward, which is not what their groups are compared by."""
    if not config.number("algo.kl.init_coef"):
        return nothing("there is no KL")
    if value is True:
        unsaid = "algo.kl.estimator" not in config.given
        return Several({"ppo.kl.placement": "loss"}, say.GRADIENTS["loss", "k1"] if unsaid else "")
    compared = {"group_norm": "the group's mean and deviation are"}.get(str(read_estimator(config)), "the baseline is")
    is_odd = config.algorithm == "grpo" and read_estimator(config) in GROUPS
    return Several({"ppo.kl.placement": "reward"}, _NET_OF_KL.format(compared) if is_odd else "")


def kl_estimator(value: Json, config: Config) -> Answer:
    """An estimator of the KL, which the placement decides here."""
    in_loss = config.says("algo.kl.use_loss")
    odd = say.GRADIENTS.get(("loss" if in_loss else "reward", str(value)))
    if odd is not None:
        return lack(odd)
    return nothing("k2 in the loss; here weighed by π/π_old, too" if in_loss else "k1 in the reward, as here")


def discount(value: Json, config: Config) -> Answer:
    """A discount per token, which recipes with a critic have."""
    if config.algorithm == "ppo":
        return value
    return (
        nothing("1, as here without a word")
        if value == 1
        else lack("rewards are discounted per token there; a recipe of grpo has no discount")
    )


def kl_target(value: Json, config: Config) -> Answer:
    """A target of the KL per token, with the gain that their horizon is at the size of a step."""
    if not value or not config.number("algo.kl.init_coef"):
        return nothing("the coefficient is fixed" if not value else "there is no KL")
    responses = config.whole("rollout.batch_size", 1024) * config.whole("rollout.n_samples_per_prompt", 1)
    return adaptive_kl(value, responses, config.number("algo.kl.horizon", 10_000))


def policy_loss(value: Json, config: Config) -> Answer:
    """The ratio of a token or of a response, whose loss is a mean over responses."""
    if value != "gspo":
        return nothing("the ratio of tokens")
    if config.algorithm == "ppo":
        return lack("their ratio is one of a whole response; here algorithm: grpo has it, by importance_sampling_level")
    odd = ""
    if has_kl(config, in_loss=False):
        odd = "tokens of a response share the mean of their advantages there, which the KL in the reward makes differ"
    elif has_kl(config, in_loss=True) or config.number("actor.entropy_coef"):
        odd = "KL and entropy remain means over all tokens there; here loss_mean: responses is of them, too"
    return Several({"grpo.importance_sampling_level": "sequence", "grpo.loss_mean": "responses"}, odd)


_KINDS = {"tis": "token_tis", "icepop": "icepop"}
_NO_MASK: Json | Unset = refuse(
    "responses are left out by the mean of their log-ratios there, and their weights have no bound; "
    "here are token_tis, sequence_tis and icepop"
)


def correction(value: Json, config: Config) -> Answer:
    """A kind of importance weights."""
    if not config.says("algo.advantage.is_correction_enable"):
        return nothing("algo.advantage.is_correction_enable is off")
    return Lookup({**_KINDS, "seq-mask-tis": _NO_MASK})(value, config)


def enable_correction(value: Json, config: Config) -> Answer:
    """Importance weights, which gspo has none of."""
    if value is True and config.get("actor.policy_loss_type") == "gspo":
        return lack("with gspo there are no weights there, and its ratio is to the sampler's log-probabilities")
    return correction(config.get("algo.advantage.is_correction_type"), config)


def bounds(value: Json, config: Config) -> Answer:
    """Two bounds of weights, of which TIS has the upper one here."""
    if not isinstance(correction(config.get("algo.advantage.is_correction_type"), config), str):
        return nothing("no such correction")
    if not isinstance(value, list) or len(value) != 2:
        return refuse("two bounds, from below and above")
    low, high = value
    if config.get("algo.advantage.is_correction_type") == "icepop":
        return section("ppo.correction", low=low, high=high)
    odd = f"weights below {low} are raised to it there; token_tis has no lower bound" if low else ""
    return Several({"ppo.correction.high": high}, odd)


def filter_range(value: Json, config: Config) -> Answer:
    """A range of mean scores; 0 to 1 leaves the same groups out as here where scores are 0 or 1."""
    if value in ([0, 1], [0.0, 1.0]):
        return nothing("of scores 0 and 1, groups that are all alike")
    return lack("prompts are left out there by the mean of their scores; here those whose rewards do not differ")


def freezing(value: Json, config: Config) -> Answer:
    """Steps without the actor: theirs are one more than they say."""
    if not isinstance(value, int) or value < 0:
        return nothing("none")
    if config.algorithm == "grpo":
        return lack(f"the actor is not trained in the first {value + 1} steps there, with a critic or without")
    return value + 1


def value_clip(value: Json, config: Config) -> Answer:
    """A bound above 0."""
    return value if value else lack("0 holds values where they were unless that lowers their error; here it is above 0")


def reward_range(value: Json, config: Config) -> Answer:
    """A range of rewards, or, of groups, of their advantages."""
    if not isinstance(value, list) or len(value) != 2:
        return refuse("two bounds, from below and above")
    is_given, name = "reward.clip_range" in config.given, read_estimator(config)
    if name not in GROUPS:
        is_late = is_given and config.get("reward.overlong_buffer_len") is not None
        odd = "they are bounded after the overlong penalty there, and before it here" if is_late else ""
        return Several({"ppo.reward_scaling.source": value, "ppo.reward_scaling.target": value}, odd)
    count = config.whole("rollout.n_samples_per_prompt", 1)
    if name == "group_norm" and min(-float(str(value[0])), float(str(value[1]))) >= (count - 1) / math.sqrt(count):
        return nothing(f"no advantage of {count} responses is beyond it")
    return (
        lack("it bounds advantages within groups there; they have no bound here")
        if is_given
        else nothing("rewards of 0 and 1 stay below")
    )


def normalize(value: Json, config: Config) -> Answer:
    """Rewards and values in the units of a reward model's config.json, which a function does not have."""
    model = find_critic(config) or config.get("critic.model_name_or_path")
    if value is not True or not model:
        return nothing("no reward model has a mean and a deviation")
    scaled = "rewards and values are" if config.algorithm == "ppo" else "rewards are"
    return lack(f"{scaled} less the mean, and divided by the std, in the reward model's config.json; here as given")


def stop_properly(value: Json, config: Config) -> Answer:
    """The reward of truncated responses."""
    if value is None or value == 1:
        return nothing("off, as it is here without a word")
    what = f"is {value}" if isinstance(value, int | float) and value < 0 else f"is multiplied by {value}"
    return lack(f"the reward of a truncated response {what} there; ppo.truncation_penalty is subtracted")


def remote(value: Json, config: Config) -> Answer:
    """A function of theirs, behind a wrapper; servers have another protocol."""
    first = str(value or "").split(",")[0]
    if not first:
        return nothing("none")
    if first.endswith(".py"):
        odd = f"copy the wrapper of reward_func in {first} from docs/guides/rewards.md, Functions of OpenRLHF"
        return Several({"reward.type": "python", "reward.function": WRAPPER}, odd)
    return refuse("a server with a protocol of theirs: reward.server has its own (docs/guides/rewards.md)")


def agent(value: Json, config: Config) -> Answer:
    """An agent of theirs, which is an environment here."""
    if not value:
        return nothing("none")
    longest = config.whole("rollout.max_new_tokens", config.whole("data.max_len", 2048) // 2)
    return Several(
        {"environment.class_name": "my_environment.py:Agent", "environment.max_tokens": longest},
        f"write the agent of {value} as an environment, which answers and rewards: docs/guides/environments.md",
    )


def longest(value: Json, config: Config) -> Answer:
    """A bound on prompt and response together, which is one on each here."""
    if not isinstance(value, int) or config.algorithm not in RL:
        return value
    answer = config.whole("rollout.max_new_tokens", 0)
    if not answer:
        half = value // 2
        return Several(
            {"data.max_prompt_tokens": half, "sampling.max_tokens": half},
            "a response may fill what its prompt leaves of it there; here each has a bound: divide it between them",
        )
    if answer >= value:
        return refuse(f"it has no room for a prompt and rollout.max_new_tokens={answer}")
    bounded: dict[str, Json] = {"data.max_prompt_tokens": value - answer, "data.overlong_prompts": "truncate"}
    return Several({**bounded, "sampling.max_tokens": answer})


def overlong(value: Json, config: Config) -> Answer:
    """Tokens before the longest response, which is data.max_len where nothing else says it."""
    buffer = whole(value, config)
    if config.get("rollout.max_new_tokens") or not isinstance(buffer, int):
        return buffer
    odd = "the penalty begins at data.max_len less it there, and at sampling.max_tokens less it here"
    return Several({"ppo.overlong_penalty.buffer": buffer}, odd)


def rows(value: Json, config: Config) -> Answer:
    """The first so many rows, where they are whole batches."""
    batch = config.whole("rollout.batch_size" if config.algorithm in RL else "train.batch_size", 0)
    count = whole(value, config)
    named = config.get("data.prompt_dataset" if config.algorithm in RL else "data.dataset")
    if not isinstance(count, int) or batch <= 0 or count <= 0 or count % batch or "," in str(named):
        return refuse(
            f"the data is the first so many rows there; data.limit_train_batches counts batches of {batch} rows over "
            "all files: cut them, unless they have no more"
        )
    return section("data", limit_train_batches=count // batch)


def prompts_at_once(value: Json, config: Config) -> Answer:
    """Prompts that are answered at once."""
    if not value or value == config.get("rollout.batch_size"):
        return nothing("all prompts of a step")
    if config.number("rollout.vllm_generate_batch_size") < config.number("rollout.batch_size"):
        return lack("a step learns from so many prompts there, and from rollout.batch_size here")
    return lack("responses that a step does not need are of weights before it there; here each step samples its own")


def _field(config: Config) -> Json:
    """The field of the prompt."""
    return config.get("data.prompt_key" if config.algorithm in PAIRS else "data.input_key")


def template(value: Json, config: Config) -> Answer:
    """Their `{}` is the field of the prompt."""
    if not isinstance(value, str) or "{}" not in value:
        return nothing("none")
    if config.says("data.apply_chat_template"):
        return nothing("the chat template goes before")
    field = _field(config)
    return value.replace("{}", f"{{{field}}}") if field else nothing("there is no prompt_key")


def prompt(value: Json, config: Config) -> Answer:
    """The field of the prompt: of messages, alone, or part of a template."""
    used = config.get("data.input_template")
    if config.says("data.apply_chat_template"):
        return section("data", messages=str(value)) if value else nothing("none")
    return nothing("part of data.prompt") if isinstance(used, str) and "{}" in used else column(value, config)


def chat(value: Json, config: Config) -> Answer:
    """The chat template: of messages it is always used; without prompts of their own, pairs are conversations."""
    if value is not True or _field(config) is not None:
        return nothing("messages always go through the chat template" if value is True else "none")
    if config.algorithm in PAIRS:
        return section("data", messages=str(config.get("data.chosen_key")))
    return True


def find_always(config: Config) -> Mapping[str, Json]:
    """Options that their program has without a flag, but for the schedule's end, which needs the number of rows."""
    found: dict[str, Json] = {}
    if config.algorithm == "grpo" and read_estimator(config) in WHITENED:
        found["grpo.whiten_advantages"] = True
    if config.algorithm in RL and has_function(config) and not config.get("data.label_key"):
        found["data.answer"] = ""
    if config.algorithm in PAIRS and not config.get("data.prompt_key") and not config.says("data.apply_chat_template"):
        found["data.prompt"] = ""
    return found


def count_steps(config: Config) -> str:
    """Their optimizer steps, by the number of rows."""
    batch, passes = config.whole("train.batch_size", 128), config.whole("train.max_epochs", 1)
    if config.algorithm not in RL:
        return f"rows // {batch} × {passes}"
    responses = config.whole("rollout.n_samples_per_prompt", 1)
    return f"rows × {responses} // {batch} × {config.whole('train.num_episodes', 1) * passes}"


def decay(owner: str, schedule: str) -> Convert:
    """The conversion of a schedule of an owner's flags; its section here is `schedule`."""

    def convert(value: Json, config: Config) -> Answer:
        if value in ("constant", "constant_with_warmup"):
            return nothing("constant")
        if value not in (FLOORED, "cosine", "linear"):
            return refuse(f"there is no schedule {value}")
        kind = "linear" if value == "linear" else "cosine"
        floor = config.number(f"{owner}min_lr_ratio", 0.1) if value == FLOORED else 0
        end = f"decay_steps: STEPS, final_fraction: {floor:g}"
        return refuse(f"{schedule}: {{decay: {kind}, {end}}}, where STEPS = {count_steps(config)}")

    return convert


def warmup(owner: str, schedule: str) -> Convert:
    """The conversion of a warmup as a share of all steps."""

    def convert(value: Json, config: Config) -> Answer:
        if config.get(f"{owner}lr_scheduler") == "constant":
            return Unset(Kind.IGNORED, "lr_scheduler constant has no warmup")
        steps = count_steps(config)
        return (
            refuse(f"{schedule}.warmup_steps is {value} × STEPS, rounded up, where STEPS = {steps}")
            if value
            else nothing("no warmup")
        )

    return convert


def floor(owner: str, schedule: str) -> Convert:
    """The conversion of the end of a decay."""

    def convert(value: Json, config: Config) -> Answer:
        if config.get(f"{owner}lr_scheduler") != FLOORED:
            return Unset(Kind.IGNORED, f"lr_scheduler is not {FLOORED}")
        return refuse(f"{schedule}.final_fraction goes with the decay")

    return convert


def gradient_bound(value: Json, config: Config) -> Answer:
    """A bound of the gradient's norm; 0 is none."""
    return value or None


def validation(value: Json, config: Config) -> Answer:
    """Steps between validations; -1 is none in RL, and the end of each pass over the rows elsewhere."""
    often = "no validation" if config.algorithm in RL else "after each pass over the rows there"
    return positive(often)(value, config)


def reference(value: Json, config: Config) -> Answer:
    """The reference of DPO, which is the model itself unless another is named."""
    if not value or value == config.get("model.model_name_or_path"):
        return nothing("the model itself, before its first step")
    return lack("the reference is the model itself here, before its first step")


def likelihood(value: Json, config: Config) -> Answer:
    """The weight of the chosen answers' likelihood, which is a mean over tokens there."""
    return section("dpo", sft_loss_weight=value, sft_average_log_probs=True) if value else nothing("off")


def margin(value: Json, config: Config) -> Answer:
    """A margin between the scores of a pair, which their rows have as one number."""
    if value is not True or config.get("model.loss_type") not in (None, "sigmoid"):
        return nothing("off" if value is not True else "loss_type sigmoid alone reads it")
    return lack("it is the rows' field margin there; reward_model.margin takes data.chosen_score less rejected_score")


def find_remarks(config: Config) -> tuple[str, ...]:
    """Facts about a run of theirs that no key says."""
    found: list[str] = []
    wraps = config.algorithm in RL or (config.algorithm == "sft" and config.get("data.output_key"))
    if config.says("data.apply_chat_template") and wraps and (field := _field(config)):
        found.append(
            f"rows may have a text in {field} there, which becomes a user's message; data.messages takes a list of "
            f"messages alone: of a text, say data.prompt='{{{field}}}' and data.chat=true in its place"
        )
    if config.algorithm in RL:
        found += _list_remarks_of_rl(config)
    else:
        found.append(
            "rows longer than data.max_len are cut there; here they are an error, or left out by "
            "data.overlong_prompts: skip"
        )
        found.append("a text that does not end with the end token gets a space and that token there; here the token")
    if any(config.number(f"{owner}adam.weight_decay") for owner in ("", "actor.", "critic.")):
        found.append("biases and the weights of norms do not decay there; here all weights do")
    return tuple(found)


def _list_remarks_of_rl(config: Config) -> list[str]:
    found: list[str] = []
    is_default = "reward.clip_range" not in config.given
    if read_estimator(config) in GROUPS and is_default and read_estimator(config) != "group_norm":
        found.append("advantages within groups are bounded to ±10 there (reward.clip_range), and not here")
    if config.number("rollout.top_p", 1) < 1:
        found.append("log-probabilities are of all tokens there; here of those that rollout.top_p leaves")
    if config.number("actor.entropy_coef") and config.number("rollout.temperature", 1) != 1:
        found.append("the entropy is of temperature 1 there; here of rollout.temperature")
    return found
