"""Conversions of single values, by their names in the tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lockstep_convert.table import DottedOptions

_ROWS = (".parquet", ".json", ".jsonl")
_TRACKERS = ("wandb", "tensorboard")
_SECRETS = ("key", "token", "secret", "password")
_LONGEST_SHOWN = 60
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w-]*/[\w.-]+")
_REFERENCE = re.compile(r"<([\w.]+)>")


class DoubtfulValue(ValueError):
    """Raised for a value that a person must look at; the message says why."""


def spell_value(value: Any) -> str:
    """The text of a value in tables and reports."""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def shorten_value(key: str, value: Any) -> str:
    """A value on one line, cut if it is long; secrets are hidden.

    Under `data`, a key such as `label_key` is a column name, not a secret.
    """
    if re.split(r"[._-]", key.lower())[-1] in _SECRETS and not key.startswith("data."):
        return "…"
    text = re.sub(r"\s+", " ", spell_value(value))
    if len(text) <= _LONGEST_SHOWN:
        return text
    return f"{text[:_LONGEST_SHOWN]}…"


def convert_model(value: Any) -> Any:
    """Keeps a path, and prefixes a hub name with `hf:`."""
    if isinstance(value, str) and _HUB_NAME.fullmatch(value):
        return f"hf:{value}"
    return value


def convert_rows(value: Any) -> Any:
    """Keeps paths of row files, and prefixes a data set's hub name with `hf:datasets/`."""
    if isinstance(value, str) and _HUB_NAME.fullmatch(value) and not value.endswith(_ROWS):
        return f"hf:datasets/{value}"
    if isinstance(value, list):
        names = value
    else:
        names = str(value).split(",")
    for name in names:
        if not str(name).endswith(_ROWS) and not str(name).startswith(("/", "./", "~", "$")):
            raise DoubtfulValue(f"{name} is a data set: write a file, or hf:datasets/owner/name")
    if len(names) > 1:
        return names
    return names[0]


def convert_test_rows(value: Any) -> Any:
    """Converts a data set's hub name to its test split; files have none, so a share is held out."""
    rows = str(convert_rows(value))
    return f"{rows}/test" if rows.startswith("hf:") else 0.05


def convert_function(value: Any) -> Any:
    """Converts a function `module.name` to `module:name`, and several to the parts of a sum."""
    parts: DottedOptions = {}
    for path in convert_list(value):
        module, _, name = str(path).rpartition(".")
        if name.startswith("get_"):
            raise DoubtfulValue(f"{name} returns a function; write it into a file and name that")
        parts[name] = {"type": "python", "function": f"{module or 'trl.rewards'}:{name}"}
        if name == "accuracy_reward":
            parts[name] = {"type": "math"}
    if len(parts) > 1:
        return {"reward.type": "sum", "reward.parts": parts}
    [part] = parts.values()
    return part["function"]


def convert_field(value: Any) -> str:
    """Converts a field name to a template with this field."""
    return f"{{{value}}}"


def convert_list(value: Any) -> list[Any]:
    """Converts one value, or several separated by commas, to a list."""
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        return [part.strip() for part in value.split(",")]
    return [value]


def convert_range(value: Any) -> Any:
    """Converts numbers, in a list or separated by commas, to floats."""
    if isinstance(value, str):
        parts = value.split(",")
    else:
        parts = value
    return list(map(float, parts))


def convert_trackers(value: Any) -> DottedOptions:
    """Converts names of trackers to their sections."""
    names = [str(name) for name in convert_list(value) if name not in ("console", "none", None)]
    unknown = [name for name in names if name not in _TRACKERS]
    if unknown:
        raise DoubtfulValue(
            f"unknown tracker {', '.join(unknown)}: choose one of {', '.join(_TRACKERS)}"
        )
    return {f"trackers.{name}": {} for name in names}


def convert_bound(value: Any) -> Any:
    """Checks a bound above 0; null means no bound. 0 is an error, since libraries interpret it
    differently.
    """
    if value == 0:
        raise DoubtfulValue("0: use null for no bound")
    return value


def convert_count(value: Any) -> Any:
    """Checks a whole number above 0; anything else needs a decision."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0 or value % 1:
        raise DoubtfulValue("expected a whole number above 0")
    return int(value)


def convert_steps(value: Any) -> Any:
    """Checks a whole number above 0, or a share of the run between 0 and 1."""
    if isinstance(value, float) and 0 < value < 1:
        return value
    return convert_count(value)


def convert_schedules(value: Any) -> DottedOptions:
    """Converts a list of torch's schedules, a linear warm-up and then a constant or a half cosine,
    to options of a schedule.
    """
    found: DottedOptions = {}
    for part in value:
        given = part.get("kwargs", {})
        match str(part.get("name")).rpartition(".")[2]:
            case "LinearLR" if given.get("end_factor", 1) == 1 and not found:
                found[".warmup_steps"] = given["total_iters"]
            case "ConstantLR" if given.get("factor") == 1:
                pass
            case "CosineAnnealingLR" if not given.get("eta_min"):
                steps = given["T_max"] + found.get(".warmup_steps", 0)
                found |= {".decay": "cosine", ".decay_steps": steps}
            case "None":
                pass
            case name:
                raise DoubtfulValue(
                    f"{name} with these arguments is not supported; set warmup_steps, decay and "
                    "decay_steps of policy.schedule, critic.schedule or optimizer.schedule"
                )
    return found


def read_prompt(value: Any) -> DottedOptions:
    """Reads a prompt file, in which `{}` stands for the problem."""
    try:
        text = Path(value).read_text(encoding="utf-8")
    except OSError:
        raise DoubtfulValue("run convert in the folder of this path, or copy its text") from None
    return {"data.prompt": re.sub(r"(?<!{){}(?!})", "{<data.train.input_key>}", text)}


def convert_number(value: Any) -> Any:
    """Checks that a value is a number and not text."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DoubtfulValue("expected a number")
    return value


def keep_value(value: Any) -> Any:
    """Returns the value unchanged."""
    return value


CONVERSIONS: Mapping[str, Callable[[Any], Any]] = {
    "": keep_value,
    "mapping": keep_value,
    "model": convert_model,
    "rows": convert_rows,
    "test_rows": convert_test_rows,
    "function": convert_function,
    "field": convert_field,
    "list": convert_list,
    "numbers": convert_range,
    "trackers": convert_trackers,
    "bound": convert_bound,
    "count": convert_count,
    "number": convert_number,
    "steps": convert_steps,
    "schedules": convert_schedules,
    "prompt": read_prompt,
}
TAKES_NULL = ("bound",)
"""Conversions for which null is a value, not a missing one."""


def fill_references(template: Any, value: Any, find: Callable[[str], Any]) -> Any:
    """Replaces `<value>` and `<key>` in a template; a template that is a single reference becomes
    the value itself.

    Raises:
        DoubtfulValue: A key has no value.
    """
    if isinstance(template, list):
        return [fill_references(item, value, find) for item in template]
    if not isinstance(template, str):
        return template

    def resolve_name(name: str) -> Any:
        if name == "value":
            found = value
        else:
            found = find(name)
        if found is None or found == -1:
            raise DoubtfulValue(f"needs {name}, which is not set in your file")
        return found

    whole = _REFERENCE.fullmatch(template)
    if whole is not None:
        return resolve_name(whole[1])
    return _REFERENCE.sub(lambda match: str(resolve_name(match[1])), template)
