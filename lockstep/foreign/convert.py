"""Converts a config of another library to the options of a recipe, and says what became of each of its keys."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

from lockstep import yaml12
from lockstep.foreign.conversions import data_file, data_names, data_split, is_placeholder, model_folder
from lockstep.foreign.interpolation import is_open
from lockstep.foreign.words import Answer, Config, Json, Key, Kind, Library, Several, Unset, find_option, spell

_PATHS = (model_folder, data_file, data_names, data_split)
_MOST_NAMED = 8
"""Ignored keys of one section that the table names; more are counted."""
_SECRETS = ("key", "token", "secret", "password")
"""Last words of keys whose values are not shown."""
_LEFT = {Kind.REFUSED: "Left out", Kind.LOST: "Left out", Kind.UNFINISHED: "To finish"}
"""Kinds that a recipe has comments about at its end."""
_NEEDS = {
    "run.validate_every": "data.validation",
    "run.best.metric": "run.validate_every",
    "run.best.mode": "run.best.metric",
    "run.best.count": "run.best.metric",
    "data.max_validation_samples": "data.validation",
    "data.limit_val_batches": "data.validation",
    "learner.lora.alpha": "learner.lora.rank",
    "learner.lora.target_modules": "learner.lora.rank",
    "ppo.kl.placement": "ppo.kl.coef",
    "ppo.kl.adaptive.target": "ppo.kl.coef",
    "ppo.correction.high": "ppo.correction.kind",
    "ppo.correction.low": "ppo.correction.kind",
    "ppo.overlong_penalty.penalty": "ppo.overlong_penalty.buffer",
    "policy.schedule.final_fraction": "policy.schedule.decay",
}
"""Options that do nothing without another."""
_OBJECTIVE = (
    "grpo.baseline", "grpo.scale_rewards", "grpo.loss", "grpo.loss_mean", "grpo.importance_sampling_level",
    "ppo.clip", "ppo.clip_high", "ppo.dual_clip", "ppo.entropy_coef", "ppo.kl.coef", "ppo.kl.placement",
    "ppo.correction.kind", "ppo.correction.high", "ppo.correction.low",
    "dpo.preference_loss", "dpo.preference_loss_weight", "distill.on_policy", "reward.type", "reward.function",
    "reward.parts", "data.prompt",
)  # fmt: skip
"""Options of the objective: a recipe that lacks one of theirs trains something else."""
_ONLY_WITH = {
    "sampler.tensor_parallel": ("sampler.backend", "vllm"),
    "sampler.vllm.max_model_len": ("sampler.backend", "vllm"),
    "sampler.vllm.max_num_batched_tokens": ("sampler.backend", "vllm"),
    "sampler.vllm.enforce_eager": ("sampler.backend", "vllm"),
    "learner.parallel.pp": ("learner.backend", "megatron"),
}
"""Options that go with one value of another, where they are not 1 or off."""
_FILL = {
    "model.path": ("models/MODEL", "the folder of the first weights"),
    "data.train": ("data/train.jsonl", "a file of rows"),
    "data.max_prompt_tokens": (1024, "the longest prompt of your rows"),
    "sampling.max_tokens": (512, "the longest response"),
    "sft.max_tokens": (2048, "the longest prompt and completion together"),
    "dpo.max_tokens": (2048, "the longest prompt and answer together"),
    "simpo.max_tokens": (2048, "the longest prompt and answer together"),
    "orpo.max_tokens": (2048, "the longest prompt and answer together"),
    "kto.max_tokens": (2048, "the longest prompt and completion together"),
    "reward_model.max_tokens": (2048, "the longest prompt and answer together"),
    "policy.lr": (1e-6, "the learning rate"),
    "critic.lr": (1e-5, "the learning rate of the critic"),
    "ppo.num_prompts_per_step": (128, "prompts of a step"),
    "ppo.num_generations": (8, "responses per prompt"),
    "ppo.global_batch_size": (128, "responses per optimizer step"),
    "sft.global_batch_size": (32, "rows per optimizer step"),
    "dpo.global_batch_size": (32, "pairs per optimizer step"),
    "simpo.global_batch_size": (32, "pairs per optimizer step"),
    "orpo.global_batch_size": (32, "pairs per optimizer step"),
    "kto.global_batch_size": (32, "rows per optimizer step"),
    "online_dpo.num_prompts_per_step": (32, "prompts of a step"),
    "reward_model.global_batch_size": (32, "pairs per optimizer step"),
    "distill.num_prompts_per_step": (32, "prompts of a step"),
    "distill.global_batch_size": (32, "responses per optimizer step"),
    "run.max_epochs": (1, "passes over the rows, or run.max_steps"),
    "teachers": ({"teacher": {"path": "models/TEACHER"}}, "the folder of the teacher"),
}
"""Options that a recipe must have, for configs without them: a value to begin with, and what it is."""


@dataclass(frozen=True)
class Entry:
    """One key, and what became of it.

    Attributes:
        theirs: The key.
        value: Its value there.
        kind: What became of it.
        ours: The options that it set, with their values.
        reason: What one has to know about it.
        is_default: True where the config does not say it, and their default counts.
    """

    theirs: str
    value: Json
    kind: Kind
    ours: Mapping[str, Json]
    reason: str
    is_default: bool = False


@dataclass(frozen=True)
class Converted:
    """A converted config.

    Attributes:
        library: The library of the config.
        algorithm: The algorithm of the recipe.
        entries: One for each of its keys, and then for defaults of theirs that matter.
        options: The options of the recipe, by dotted keys.
        notes: Where each option is from.
        missing: Files that it builds on, and that were not there.
        remarks: What one has to know besides.
    """

    library: Library
    algorithm: str
    entries: tuple[Entry, ...]
    options: Mapping[str, Json]
    notes: Mapping[str, str]
    missing: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def list_kind(self, kind: Kind) -> list[Entry]:
        """The entries of one kind."""
        return [entry for entry in self.entries if entry.kind is kind]

    def list_changes(self) -> dict[str, str | None]:
        """The keys whose loss changes what is trained, as the table shows them, with the option of each, if any."""
        changes: dict[str, str | None] = {}
        for entry in self.entries:
            row = self.library.find(entry.theirs)
            ours = [key for key in row.ours if key in _OBJECTIVE] if row is not None else []
            if entry.kind in (Kind.LOST, Kind.UNFINISHED) or (entry.kind is Kind.REFUSED and ours):
                changes[_name(entry)] = ours[0] if ours else None
        return changes

    def render_recipe(self, order: Collection[str]) -> str:
        """The recipe as YAML, with comments; `order` has the options as recipes order them."""
        placed = {key: i for i, key in enumerate(order)}
        tree: dict[str, Json] = {"algorithm": self.algorithm}
        for key in sorted(self.options, key=lambda key: placed.get(key, len(placed))):
            _put(tree, key.split("."), self.options[key])
        body = yaml12.annotate(tree, lambda keys: self.notes.get(".".join(keys), ""))
        left = [_one_line(f"# {_LEFT[kind]}: {entry.theirs}: {_show_value(entry)}: {entry.reason}.")
                for kind in _LEFT for entry in self.list_kind(kind)]  # fmt: skip
        left += [_one_line(f"# {remark}.") for remark in self.remarks]
        head = f"# Converted from {self.library.name} ({self.library.version}) by `lockstep convert`.\n"
        return head + body + "".join(f"{line}\n" for line in left)


@dataclass
class _Options:
    """The options that were set so far, and by what."""

    known: Collection[str]
    values: dict[str, Json] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def find(self, key: str) -> str | None:
        """The option that this recipe has for a key of the tables."""
        return next((option for option in spell(key) if option in self.known), None)

    def put(self, option: str, value: Json, note: str) -> None:
        self.values[option] = value
        self.notes[option] = note


def translate(
    library: Library, config: Config, algorithm: str, known: Collection[str], missing: tuple[str, ...] = ()
) -> Converted:
    """Converts a config to a recipe of an algorithm that has the options `known`."""
    config = library.with_defaults(config, algorithm)
    options = _Options(known)
    entries = [_convert(library, key, value, config, options) for key, value in config.given.items()]
    for key, value in config.defaults.items():
        if key not in config.given and _is_free(library, key, options):
            entry = _convert(library, key, value, config, options, is_default=True)
            entries += [entry] if entry.ours or entry.kind in (Kind.REFUSED, Kind.LOST) else []
    for key, value in library.always(config).items():
        if (option := options.find(key)) is not None and option not in options.values:
            options.put(option, value, f"as {library.name} does")
    entries = [_check_needs(entry, options) for entry in entries]
    _fill(options)
    return Converted(library, algorithm, tuple(entries), options.values, options.notes, missing, library.remark(config))


def _is_free(library: Library, key: str, options: _Options) -> bool:
    """True if nothing has set the option that a default of theirs would set."""
    option = find_option(library.by_key[key], options.known)
    return option is not None and option not in options.values


def _convert(
    library: Library, key: str, value: Json, config: Config, options: _Options, is_default: bool = False
) -> Entry:
    row = library.find(key)
    if row is None:
        return Entry(key, value, Kind.UNKNOWN, {}, f"no key of {library.name} ({library.version}) that is known here")
    answer = _answer(library, row, key, value, config, options.known)
    if isinstance(answer, Unset):
        return Entry(key, value, answer.kind, {}, answer.reason, is_default)
    parts = _parts(row, answer, options)
    taken = [option for option in parts if option in options.values and options.values[option] != parts[option]]
    if taken:
        option, other = taken[0], options.values[taken[0]]
        return Entry(
            key, value, Kind.REFUSED, {}, f"{option} is {_short(other)} already, by {options.notes[option]}", is_default
        )
    note = f"{key}, their default" if is_default else key
    for option, converted in parts.items():
        options.put(option, converted, _describe(row, value, converted, note))
    if isinstance(answer, Several) and answer.unfinished:
        return Entry(key, value, Kind.UNFINISHED, parts, answer.unfinished, is_default)
    kind = Kind.DIFFERS if row.differs else Kind.MAPS
    return Entry(key, value, kind, parts, row.differs or row.note, is_default)


def _describe(row: Key, theirs: Json, ours: Json, note: str) -> str:
    """The comment of an option in the recipe."""
    if is_placeholder(theirs, ours) or (row.convert in _PATHS and ours != theirs):
        return f"placeholder: put {_short(theirs)} there ({note})"
    return note if ours == theirs or isinstance(ours, dict) else _one_line(f"{note}: {_short(theirs)}")


def _answer(library: Library, row: Key, key: str, value: Json, config: Config, known: Collection[str]) -> Answer:
    shut = next((gate for gate in library.gates if gate.shuts(key, config)), None)
    if shut is not None:
        return Unset(Kind.IGNORED, shut.because)
    if row.kind is Kind.LOST and value in row.off:
        return Unset(Kind.MAPS, "off, as it is here without a word")
    if row.kind is not Kind.MAPS or not row.ours:
        return Unset(row.kind, row.differs or row.note)
    answer = _read_answer(row, value, config)
    if find_option(row, known) is None and not (isinstance(answer, Unset) and answer.kind is not Kind.REFUSED):
        return Unset(Kind.NONE, f"a recipe of {config.algorithm} has nothing like it")
    return answer


def _read_answer(row: Key, value: Json, config: Config) -> Answer:
    is_unknown = is_open(value) or (isinstance(value, str) and re.search(r"\$[\w(]", value))
    if is_unknown and row.convert not in _PATHS:
        return Unset(Kind.REFUSED, "a variable that the file does not set")
    try:
        return row.convert(value, config)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return Unset(Kind.REFUSED, "a value that it cannot have there")


def _parts(row: Key, answer: Json | Several, options: _Options) -> dict[str, Json]:
    """The options of this recipe that an answer sets."""
    if isinstance(answer, Several):
        found = (
            (options.find(key) or options.find(key.rpartition(".")[0]), value) for key, value in answer.values.items()
        )
        return {option: value for option, value in found if option is not None}
    option = find_option(row, options.known)
    assert option is not None, "asked before"
    return {option: answer}


def _check_needs(entry: Entry, options: _Options) -> Entry:
    """Takes options back that would do nothing, since what they need is not set."""
    for key, needed in _NEEDS.items():
        option, other = options.find(key), options.find(needed)
        if option in entry.ours and other not in options.values:
            options.values.pop(str(option), None)
            return replace(entry, kind=Kind.REFUSED, ours={}, reason=f"{option} needs {other}")
    for option, (other, value) in _ONLY_WITH.items():
        if option in entry.ours and entry.ours[option] not in (1, False) and options.values.get(other) != value:
            options.values.pop(option, None)
            return replace(entry, kind=Kind.REFUSED, ours={}, reason=f"{option} needs {other}: {value}")
    if "data.template_args" in entry.ours and not {"data.chat", "data.messages"} & options.values.keys():
        options.values.pop("data.template_args", None)
        return replace(entry, kind=Kind.REFUSED, ours={}, reason="data.template_args needs data.chat or data.messages")
    if "grpo.clip" in entry.ours and options.values.get("grpo.loss") == "cispo" and "grpo.clip_high" in options.values:
        options.values.pop("grpo.clip", None)
        return replace(entry, ours={}, reason="clip_high alone bounds the ratio of loss: cispo")
    return entry


def _fill(options: _Options) -> None:
    """Sets what a recipe must say and the config did not."""
    values = options.values
    for key, (value, meaning) in _FILL.items():
        option = options.find(key)
        is_said = option in values or (option == "run.max_epochs" and "run.max_steps" in values)
        if option is not None and not is_said:
            options.put(option, value, f"placeholder: {meaning}")
    if options.find("reward.type") is not None:
        _fill_rewards(options, options.find("ppo.kl.coef"))
    if options.find("sft.global_batch_size") and not {"data.completion", "data.messages"} & values.keys():
        options.put("data.completion", "{completion}", "placeholder: the field of the answer")
    if options.find("distill.kl_type") and "data.validation" not in values:
        for option in [option for option in values if option.startswith("validation_sampling.")]:
            del values[option]
    elif options.find("distill.kl_type"):
        options.put("validation_reward.type", "math", "placeholder: what scores held-out responses")
        options.put("validation_sampling.max_tokens", values["sampling.max_tokens"], "as sampling.max_tokens")


def _fill_rewards(options: _Options, coefficient: str | None) -> None:
    """Sets what a recipe must say where responses are scored; `coefficient`: the KL's option, if there is one."""
    values = options.values
    options.put("validation_sampling.max_tokens", values["sampling.max_tokens"], "as sampling.max_tokens")
    if not any(key.startswith(("reward.", "environment.")) or key == "reward_model.path" for key in values):
        options.put("reward.type", "math", "placeholder: what scores the responses, docs/guides/rewards.md")
    if "reward_model.path" in values and coefficient is not None and coefficient not in values:
        options.put(coefficient, 0.0, "a learned reward needs one, and 0 does without")


def _put(tree: dict[str, Json], keys: list[str], value: Json) -> None:
    for key in keys[:-1]:
        inner = tree.setdefault(key, {})
        if not isinstance(inner, dict):
            return
        tree = inner
    existing = tree.get(keys[-1])
    if not (isinstance(existing, dict) and value == {}):
        tree[keys[-1]] = value


def _short(value: Json) -> str:
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def list_lines(converted: Converted) -> Iterator[str]:
    """The table: what became of each key, by kind."""
    yield f"{converted.library.name} ({converted.library.version}) → algorithm: {converted.algorithm}"
    for name in converted.missing:
        yield f"not read: {name}, which it builds on; what it says there is not in the recipe"
    for remark in converted.remarks:
        yield f"note: {remark}"
    for kind in Kind:
        entries = converted.list_kind(kind)
        if not entries:
            continue
        yield ""
        yield f"{kind.value} ({len(entries)})"
        for entry in filter(lambda entry: entry.ours, entries):
            ours = ", ".join(f"{key}: {_one_line(_short(value))}" for key, value in entry.ours.items())
            yield f"  {_name(entry)} → {ours}{f'  ({entry.reason})' if entry.reason else ''}"
        reasons = dict.fromkeys(entry.reason for entry in entries if not entry.ours)
        for reason in reasons:
            same = [entry for entry in entries if not entry.ours and entry.reason == reason]
            yield f"  {'; '.join(_fold(same) if kind is Kind.IGNORED else map(_name, same))}: {reason}"


def _fold(entries: list[Entry]) -> Iterator[str]:
    """Keys as the table shows them; where many are of one section, the section with their number."""
    sections: dict[str, list[Entry]] = {}
    for entry in entries:
        sections.setdefault(".".join(entry.theirs.split(".")[:2]), []).append(entry)
    for inside in sections.values():
        if len(inside) > _MOST_NAMED:
            yield f"{_find_common(inside)}.* ({len(inside)} keys)"
        else:
            yield from map(_name, inside)


def _find_common(entries: list[Entry]) -> str:
    """The section that all keys are in."""
    first, *others = ([part + "." for part in entry.theirs.split(".")[:-1]] for entry in entries)
    return "".join(part for i, part in enumerate(first) if all(other[: i + 1] == first[: i + 1] for other in others))[
        :-1
    ]


def _name(entry: Entry) -> str:
    """A key with its value, as the table shows it."""
    return f"{entry.theirs}{' (their default)' if entry.is_default else ''} = {_one_line(_show_value(entry))}"


def _show_value(entry: Entry) -> str:
    """A value, unless it is a secret; below `data` a key is the name of a column."""
    is_secret = re.split(r"[._-]", entry.theirs.lower())[-1] in _SECRETS and not entry.theirs.startswith("data.")
    return "…" if is_secret else _short(entry.value)
