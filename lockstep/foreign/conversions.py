"""Small conversions of values; each returns the value here, or says why there is none."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from lockstep.foreign.words import Answer, Config, Convert, Json, Kind, Several, Unset

AS_HERE = "that is always so here"


def refuse(reason: str) -> Unset:
    """The answer to a value that cannot be represented."""
    return Unset(Kind.REFUSED, reason)


def nothing(reason: str) -> Unset:
    """The answer to a value that needs no option here."""
    return Unset(Kind.MAPS, reason)


def lack(reason: str) -> Unset:
    """The answer to a value that changes what is trained there, and has no counterpart."""
    return Unset(Kind.LOST, reason)


@dataclass(frozen=True)
class Lookup:
    """The conversion by a table from their values to ours; other values are refused."""

    values: Mapping[Json, Json | Unset]

    def __call__(self, value: Json, config: Config) -> Answer:
        if isinstance(value, list | dict) or value not in self.values:
            known = ", ".join(str(key) for key in self.values if key is not None)
            return refuse(f"there is no counterpart of {value}, only of {known}")
        return self.values[value]


def insist(value: Json, sentence: str) -> Convert:
    """The conversion of a key that must be `value` or null, since it is always so here; others are refused."""
    return lambda given, config: nothing(AS_HERE) if given in (value, None) else refuse(sentence)


def optional(convert: Convert | None = None, off: tuple[Json, ...] = (None,)) -> Convert:
    """The conversion of a key that the values `off` switch off, which is the default here."""

    def convert_given(value: Json, config: Config) -> Answer:
        if value in off:
            return nothing("off, as it is here without a word")
        return value if convert is None else convert(value, config)

    return convert_given


def share_of_steps(total: Callable[[Config], float], whole: Callable[[float], int] = math.ceil) -> Convert:
    """The conversion of a share of all steps to a number of steps, rounded by `whole` as their program does."""

    def convert(value: Json, config: Config) -> Answer:
        if not value:
            return nothing("no warmup")
        steps = total(config)
        if not isinstance(value, int | float) or steps <= 0:
            return refuse(f"a share of all steps, whose number the config does not say: {value} × steps")
        return whole(value * steps) or nothing("less than one step of warmup")

    return convert


def data_ranks(gpus: int, others: int) -> Answer:
    """Data-parallel ranks: the GPUs divided by the ranks of the other axes."""
    return gpus // others if gpus > 0 and gpus % others == 0 else refuse(f"{gpus} GPUs do not divide by {others}")


def kl_coefficient(value: Json, config: Config) -> Answer:
    """A coefficient of the KL to a reference policy."""
    return value if value else nothing("0: no reference policy is loaded")


def bound(value: Json, config: Config) -> Answer:
    """A bound above 0; null means no bound, there and here."""
    return (
        value if value is None or (isinstance(value, int | float) and value > 0) else refuse("null is no bound, not 0")
    )


def tokens_left(value: Json, config: Config) -> Answer:
    """-1 and null, which are off, are 0 here."""
    return 0 if value in (-1, None) else value


def read_section(prefix: str, config: Config) -> dict[str, Json]:
    """The values of a section that is one option here."""
    return {key.removeprefix(prefix): given for key, given in config.given.items() if key.startswith(prefix)}


def collect(prefix: str) -> Convert:
    """The conversion of any key of a section that is one option here."""
    return lambda value, config: read_section(prefix, config)


def strings(value: Json, config: Config) -> Answer:
    """One text or several; null stands for none."""
    return nothing("none, as here without a word") if not value else [value] if isinstance(value, str) else value


def distance(value: Json, config: Config) -> Answer:
    """A bound of 0 or null stands for none."""
    return value if value else nothing("no bound, as here without a word")


def model_folder(value: Json, config: Config) -> Answer:
    """A model: a path as it is, a name of a hub as the folder to download it to."""
    if not isinstance(value, str) or not value:
        return nothing("none")
    return _place(value, "models")


def teacher(value: Json, config: Config) -> Answer:
    """A model that teaches: the only one, which is called `teacher`."""
    folder = model_folder(value, config)
    return {"teacher": {"path": folder}} if isinstance(folder, str) else folder


def data_file(value: Json, config: Config) -> Answer:
    """Files of rows, one or several: paths as they are, names of a hub as files to download them to."""
    if value in (None, "", []):
        return nothing("none")
    if isinstance(value, list):
        return [_place(str(item), "data") for item in value]
    return _place(str(value), "data")


def data_names(value: Json, config: Config) -> Answer:
    """Files of rows from one text, separated by commas; what follows an `@` is left off."""
    if not isinstance(value, str):
        return data_file(value, config)
    names: list[Json] = [part.partition("@")[0].strip() for part in value.split(",")]
    return data_file(names if len(names) > 1 else names[0], config)


def data_split(value: Json, config: Config) -> Answer:
    """A data set, and the split of it that is said."""
    found, split = data_file(value, config), config.given.get("dataset_train_split")
    is_folder = isinstance(found, str) and PurePosixPath(found).suffix not in (".parquet", ".json", ".jsonl")
    return f"{found}/{split}" if isinstance(split, str) and is_folder else found


def _place(name: str, folder: str) -> str:
    """A path as it is; of a name on a hub, or with variables that are not set, its last part in `folder`."""
    is_path = name.startswith(("/", "./", "../", "~", "$")) or name.endswith((".parquet", ".json", ".jsonl"))
    if is_path and "$" not in name.removeprefix("$HOME"):
        return name
    return f"{folder}/{PurePosixPath(name).name.replace('$', '').strip('{}')}"


def is_placeholder(theirs: Json, ours: Json) -> bool:
    """True if a path stands in the place of a name on a hub, so that something is to be put there."""
    if isinstance(ours, list):
        return any(is_placeholder(theirs, item) for item in ours)
    return ours != theirs and isinstance(ours, str) and ours.startswith(("models/", "data/"))


def column(value: Json, config: Config) -> Answer:
    """A field of a row becomes a template of it."""
    return f"{{{value}}}" if isinstance(value, str) and value else nothing("none")


def numbers(value: Json, config: Config) -> Answer:
    """A text of numbers, separated by commas, becomes a list of them."""
    if isinstance(value, str):
        try:
            return [float(part) for part in value.split(",")]
        except ValueError:
            return refuse(f"{value} is no list of numbers")
    return [value] if isinstance(value, int | float) else value


def positive(otherwise: str) -> Convert:
    """Returns the conversion of a number above 0; others set nothing, and `otherwise` says what they mean."""

    def convert(value: Json, config: Config) -> Answer:
        is_set = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
        return value if is_set else nothing(otherwise)

    return convert


def whole(value: Json, config: Config) -> Answer:
    """A whole number, also where it is written as 1e5 or in quotes."""
    try:
        number = float(str(value))
    except ValueError:
        return refuse(f"{value} is no number")
    return int(number) if number.is_integer() else refuse(f"{value} is no whole number")


def number(value: Json, config: Config) -> Answer:
    """A number, also where YAML reads it as text, as PyYAML does with 1e-5."""
    try:
        return float(str(value)) if isinstance(value, str) else value
    except ValueError:
        return refuse(f"{value} is no number")


def context(prompt: str, response: str) -> Convert:
    """The longest sequence of an engine, unless the bounds on prompt and response, by their keys, exceed it."""

    def convert(value: Json, config: Config) -> Answer:
        needed = config.whole(prompt, 0) + config.whole(response, 0)
        if not isinstance(value, int) or value < needed:
            return nothing("it follows from data.max_prompt_tokens and sampling.max_tokens")
        return value

    return convert


def adaptive_kl(target: Json, responses: int, horizon: float) -> Answer:
    """A target of the KL, with the gain that a horizon is, in responses, at the size of a step."""
    gain = responses / horizon
    if gain > 1:
        return lack(
            f"with {responses} responses a step the coefficient follows {gain:g} times the error, here at most 1"
        )
    return section("ppo.kl.adaptive", target=target, gain=gain)


def section(key: str, **parts: Json) -> Several:
    """Several options of one section."""
    return Several({f"{key}.{name}": value for name, value in parts.items()})
