"""NeMo RL's keys of data: its sets with their fields, prompts, templates, environments, and validation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lockstep.foreign import sentences as say
from lockstep.foreign.conversions import collect, column, data_file, lack, nothing, optional, refuse, section
from lockstep.foreign.nemo_rl_steps import describe_end, find_start, find_trainer
from lockstep.foreign.nemo_rl_values import SAMPLES, describe_lengths, prompt_length
from lockstep.foreign.words import Answer, Config, Convert, Gate, Json, Key, Kind, Several, Unset, differs, none

FIELDS = {
    "OpenMathInstruct-2": ("problem", "expected_answer"),
    **dict.fromkeys(("DeepScaler", "NuminaMath-1.5", "OpenR1-Math-220k", "AIME2024", "AIME2026"),
                    ("problem", "answer")),
    **dict.fromkeys(("GSM8K", "gsm8k", "AIME2025"), ("question", "answer")),
}  # fmt: skip
"""Sets whose rows have a field with the prompt and one with the answer."""
_OF_DAPO = ("DAPOMath17K", "DAPOMathAIME2024")
TALKS = {
    **dict.fromkeys(_OF_DAPO, "prompt"),
    **dict.fromkeys(("openai_format", "tulu3_sft_mixture"), "messages"),
}  # fmt: skip
"""Sets whose rows have a field with messages."""
_READS_FIELDS = ("ResponseDataset", "BinaryPreferenceDataset")
"""Sets whose rows are read by the fields that a config says."""
_SPLITS = {"OpenMathInstruct-2": 0.05, "tulu3_sft_mixture": 0.05, "open_assistant": 0.05}
"""The share of a set's rows that is validated on, unless a config says it."""
_OF_PAIRS = ("dpo", "rm")
_SEVERAL_ANSWERS = ("openai_format", "tulu3_sft_mixture", "open_assistant", "general-conversation-jsonl")
_PAIRS = {"prompt_key": "prompt", "chosen_key": "chosen", "rejected_key": "rejected"}
_TOKENIZER = "policy.tokenizer"


def _dataset(config: Config) -> str | None:
    name = config.get("data.train.dataset_name") or config.get("data.default.dataset_name")
    return name if isinstance(name, str) else None


def _environment(config: Config) -> Json:
    return config.get("data.train.env_name") or config.get("data.default.env_name")


def _is_math(config: Config) -> bool:
    value = _environment(config)
    return value in (None, "math")


def find_defaults(config: Config) -> Mapping[str, Json]:
    """Their default names of a row's fields, for data sets that read them from the config."""
    match _dataset(config):
        case "ResponseDataset":
            return {"data.train.input_key": "input", "data.train.output_key": "output"}
        case "OpenMathInstruct-2":
            return {"data.train.output_key": "expected_answer"}
        case "BinaryPreferenceDataset":
            return {f"data.train.{key}": value for key, value in _PAIRS.items()}
        case _:
            return {}


def find_always(config: Config) -> Mapping[str, Json]:
    """The fields of a set of theirs, and what their processors do.

    Every prompt goes through the chat template, and a row with a prompt that is too long is not trained on.
    """
    name = _dataset(config) or ""
    always: dict[str, Json] = {"data.overlong_prompts": "skip"} if config.algorithm in SAMPLES else {}
    has_template = config.given.get(f"{_TOKENIZER}.chat_template", "default") is not None
    if name in FIELDS:
        prompt, answer = FIELDS[name]
        always |= {"data.prompt": f"{{{prompt}}}", _answer_option(config): f"{{{answer}}}"}
    elif name in _OF_DAPO:
        always["data.answer"] = "{reward_model.ground_truth}"
    if has_template:
        always |= {"data.messages": TALKS[name]} if name in TALKS else {"data.chat": True}
    return always


def find_remarks(config: Config) -> tuple[str, ...]:
    """Differences that no option says."""
    return tuple(
        text
        for text in (_lengths(config), _rows(config), _note_split(config), _warmup(config), describe_end(config))
        if text
    )


def _lengths(config: Config) -> str:
    limit = config.whole("policy.max_total_sequence_length", 0)
    answer = config.whole("policy.generation.max_new_tokens", 0)
    longest = prompt_length(config.get("data.max_input_seq_length"), config)
    prompt = longest if isinstance(longest, int) else 0
    if config.algorithm not in SAMPLES or not limit or not prompt or prompt + answer <= limit:
        return ""
    return describe_lengths(limit, answer)


def _rows(config: Config) -> str:
    name = _dataset(config)
    if name is None or name in {*FIELDS, *TALKS, *_READS_FIELDS}:
        return ""
    return f"rows of {name} are made by a class of theirs: make a file of them, with the fields of docs/guides/data.md"


def _note_split(config: Config) -> str:
    share = config.get("data.train.split_validation_size")
    share = _SPLITS.get(_dataset(config) or "", 0) if share is None else share
    if not share or find_trainer(config) in _OF_PAIRS:
        return ""
    size = f"{share:.0%} of the rows" if isinstance(share, float) and share < 1 else f"{share} rows"
    return f"{size} are validated on there, and not trained on: move them from data.train to data.validation"


def _warmup(config: Config) -> str:
    found = find_start(config)
    if found is None:
        return ""
    share, steps = found
    return f"the warmup begins at {share:.3g} of the learning rate there, and at 1/{steps} of it here"


def _data(value: Json, config: Config) -> Answer:
    if isinstance(value, list | dict):
        return refuse("several data sets; data.train takes a list of files")
    return data_file(value, config)


def _set_name(part: str) -> Convert:
    """The name of a set, or of the class that reads a file."""

    def convert(value: Json, config: Config) -> Answer:
        has_path = config.given.get(f"data.{part}.data_path") is not None
        return nothing("data_path says it") if has_path else data_file(value, config)

    return convert


def _answer_option(config: Config) -> str:
    """The option of what SFT learns, or of the right answer."""
    return "data.completion" if config.algorithm == "sft" else "data.answer"


def _answer_field(value: Json, config: Config) -> Answer:
    return Several({_answer_option(config): f"{{{value}}}"})


def _text_file(option: str, place: str) -> Convert:
    told = lack(f"a file with a text; write it into {option}{place}")
    return lambda value, config: told if value else nothing("none")


def _template(value: Json, config: Config) -> Answer:
    if value is None:
        return nothing("no template: a text goes as it is, as without data.chat")
    if str(value).lower() == "default":
        return nothing("the tokenizer's own")
    return lack("a template of its own; write it into chat_template.jinja in the folder of the model")


def _tokenizer(value: Json, config: Config) -> Answer:
    if value == config.get("policy.model_name"):
        return nothing("the model's own")
    return lack("a tokenizer of another folder, with its chat template; a model has its own here")


def _reward(value: Json, config: Config) -> Answer:
    if value == "math":
        return section("reward", type="math")
    if value == "llm_judge":
        return refuse("a judge of theirs: reward.type=judge has its own question (docs/guides/judge.md)")
    return (
        refuse("their environments are classes of theirs; environment.class_name names one of yours")
        if value
        else (nothing("none"))
    )


def _verifier(value: Json, config: Config) -> Answer:
    if value == "dapo_math_verify":
        return refuse("it compares what follows `Answer:` in the last 300 characters, as text")
    return nothing("reward.type=math")


def _kind_of_verifier(value: Json, config: Config) -> Answer:
    return nothing("reward.type=math") if value in (None, "math") else refuse(f"there is no verifier {value} here")


def _answers(value: Json, config: Config) -> Answer:
    """The answers of a row that SFT learns."""
    if value is True:
        return nothing("the last answer, as here")
    sentence = "every answer of a row is learned there, and the last one here"
    return lack(sentence) if _dataset(config) in _SEVERAL_ANSWERS else Unset(Kind.DIFFERS, sentence)


def _processor(value: Json, config: Config) -> Answer:
    known = (None, "default", "math_hf_data_processor", "math_data_processor", "sft_processor")
    return nothing("prompts by the chat template, as data.chat says") if value in known else lack(
        "rows are made by a function of theirs")  # fmt: skip


def _both(*rows: Key) -> tuple[Key, ...]:
    """Rows of `data.default.`, and the same of `data.train.`, which goes before."""
    return (*rows, *(replace(row, theirs=row.theirs.replace("default", "train", 1), page="-") for row in rows))


ROWS = (
    Key("data.train.data_path", ("data.train",), data_file),
    Key("data.train.dataset_name", ("data.train",), _set_name("train"), page="-"),
    Key("data.train", ("data.train",), _data, page="-"),
    Key("data.validation.data_path", ("data.validation",), data_file),
    Key("data.validation.dataset_name", ("data.validation",), _set_name("validation"), page="-"),
    Key("data.validation", ("data.validation",), _data, page="-"),
    *_both(
        Key("data.default.input_key", ("data.prompt",), column),
        Key("data.default.prompt_key", ("data.prompt",), column, page="-"),
        Key("data.default.prompt_file", ("data.prompt",), _text_file("data.prompt", ", with the field for its {}")),
        Key("data.default.output_key", ("data.answer", "data.completion"), _answer_field),
        Key("data.default.system_prompt_file", ("data.system_prompt",), _text_file("data.system_prompt", "")),
        Key("data.default.chosen_key", ("data.chosen",), column),
        Key("data.default.rejected_key", ("data.rejected",), column),
        Key("data.default.env_name", ("reward.function", "environment.class_name"), _reward, "an environment"),
        Key("data.default.processor", ("data.prompt",), _processor, page="-"),
    ),
    Key("", ("data.chat",), page="always"),
    Key("data.max_input_seq_length", ("data.max_prompt_tokens",), prompt_length),
    Key("data.shuffle", ("data.shuffle",)),
    Key("env.math.math_verify_impl", ("reward.type",), _verifier, page="-"),
    Key("env.math.verifier_type", ("reward.type",), _kind_of_verifier, page="-"),
    Key(f"{_TOKENIZER}.name", ("data.chat",), _tokenizer, page="-"),
    Key(f"{_TOKENIZER}.chat_template", ("data.chat",), _template, page="-"),
    Key(f"{_TOKENIZER}.chat_template_kwargs", ("data.template_args",), optional(off=(None, {}))),
    Key(f"{_TOKENIZER}.chat_template_kwargs.*", ("data.template_args",), collect(f"{_TOKENIZER}.chat_template_kwargs."),
        page="-"),
    Key("sft.only_unmask_final", ("data.completion",), _answers, page="-"),
    *differs("data.prompt, data.answer and data.completion are of validation, too",
             *(f"data.validation.{key}" for key in ("input_key", "output_key", "prompt_key", "chosen_key",
                                                    "rejected_key", "prompt_file", "system_prompt_file"))),
    *none("data.validation names one file or several, and validation_reward what scores them",
          "data.validation.env_name", "data.validation.processor", "data.val_data_paths", "data.val_data_paths.*"),
    *none("data.train and data.validation name files: their splits, and rows to hold out, are yours to write",
          *(f"data.{part}.{key}" for part in ("train", "validation") for key in ("seed", "split", "subset", "repeat",
            "split_validation_size", "filter_prompt"))),
    *differs("the tokens that open an answer are the prompt's here; there add_generation_prompt decides",
             "data.add_generation_prompt"),
    *none("the tokenizer's template says which tokens begin and end a prompt", "data.add_bos", "data.add_eos",
          "data.add_system_prompt"),
    *none(say.OFFLINE, "data.default.dataset_name", "data.use_multiple_dataloader", "data.custom_dataloader",
          "data.num_workers", "data.num_prompts_per_dataloader", "data.train.download_dir"),
)  # fmt: skip


def _is_read(field: str, *sets: str) -> Gate:
    """The gate of a field that a set of theirs takes from the config only where it is one of `sets`."""
    return Gate(
        (f"data.default.{field}", f"data.train.{field}"),
        lambda config: (name := _dataset(config)) not in {*FIELDS, *TALKS} or name in sets,
        "the set has fields of its own",
    )


def _has_no_own(key: str) -> Gate:
    return Gate((f"data.default.{key}",), lambda config: f"data.train.{key}" not in config.given,
                "data.train has its own")  # fmt: skip


GATES = (
    *(_has_no_own(key) for key in ("input_key", "output_key", "prompt_key", "chosen_key", "rejected_key",
                                   "prompt_file", "system_prompt_file", "env_name", "processor")),
    Gate(("env.math.*",), _is_math, "no rows are of the environment math"),
    _is_read("input_key"),
    _is_read("output_key", "OpenMathInstruct-2"),
)  # fmt: skip
