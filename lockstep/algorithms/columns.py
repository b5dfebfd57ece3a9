"""Infers `data` options from the columns of a run's rows, as in TRL's dataset formats."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain
from typing import Any

from lockstep.algorithms.base import Algorithm
from lockstep.algorithms.rows import group_files
from lockstep.config import DataSection
from lockstep.config.loading import LoadedRecipe
from lockstep.config.recipe_files import find_shipped
from lockstep.core.errors import shorten_text
from lockstep.data.files import open_rows
from lockstep.data.pair_options import PairSection
from lockstep.data.rows import DataError, DataRow
from lockstep.data.templates import has_fields, is_talk
from lockstep.rewards.options import RewardSection
from lockstep.system.printable import print_note

_ANSWERS = ("{answer}", "{solution}", "{reward_model.ground_truth}")
"""Right answers as GSM8K, TRL and verl name them."""

_PROMPT = ("data", "prompt")
_READS = {"math", "by_row"}
_MAY_READ = {"python", "server"}
"""Rewards that read the right answer, and rewards that may."""


def read_columns(loaded: LoadedRecipe) -> LoadedRecipe:
    """Adds the options implied by the columns of the first training row to a recipe."""
    recipe = loaded.expect_recipe(Algorithm)
    learns = recipe.longest_demonstration is not None
    return tell_options(loaded, recipe.data, recipe.rewards.values(), learns)


def tell_options(
    loaded: LoadedRecipe,
    data: DataSection,
    rewards: Iterable[RewardSection | None] = (),
    learns: bool = False,
) -> LoadedRecipe:
    """Adds the options of `data` implied by the columns of the first row to a recipe.

    Options set by the recipe or an override stay; a line names the inferred ones. A shipped
    template whose field is missing is replaced by one for the rows' field. Unreadable rows infer
    nothing; the code that uses them reports why.

    Args:
        loaded: The recipe.
        data: Its rows, in `train`.
        rewards: Its rewards.
        learns: True if it learns the answers of the rows.
    """
    if data.train is None:
        return loaded
    try:
        [row] = open_rows(group_files(data.train), "skip").read_rows([0])
    except DataError:
        return loaded
    written = {keys[1] for keys in loaded.origins if "data" in keys[:1] and keys[1:]}
    told: dict[str, Any] = {}
    if not has_fields(row, data.prompt) and loaded.find_origin(_PROMPT) in find_shipped():
        written.discard("prompt")
    if not written & {"prompt", "messages"}:
        told = _match_columns(row, data, learns)
    if "prompt" in told:
        told["prompt"] = data.prompt.replace("{question}", told["prompt"])
    if "messages" in told:
        told["prompt"] = "{question}"  # the default: messages use no template
        written.discard("chat")  # messages always use the chat template
    sections = [one.leaf_sections("reward") for one in rewards if one]
    types = {leaf.type for _, leaf in chain(*sections)} & (_MAY_READ | _READS)
    if types:
        found = [template for template in _ANSWERS if has_fields(row, template)]
        none = "{answer}" if types & _READS else ""
        told["answer"] = [*found, none][0]
    told = {k: v for k, v in told.items() if k not in written and v != getattr(data, k)}
    if not told:
        return loaded
    shown: list[str] = []
    for name, value in told.items():
        if name != "prompt" or "messages" not in told:
            text = str(value).partition("\n")[0] or "null"
            shown.append(f"data.{name}={text}")
    options = " ".join(shown).translate({ord("{"): None, ord("}"): None})
    print_note(f"data: columns {shorten_text(', '.join(row))} → {options}")
    return loaded.with_told_options(told)


def _match_columns(row: DataRow, data: DataSection, learns: bool) -> dict[str, Any]:
    """Returns the options for a row's format."""
    talks = [name for name, value in row.items() if is_talk(value)]
    asked = [name for name in ("prompt", "question", "messages") if name in row]
    names = ("completion", "answer") if "prompt" in row else ("answer", "completion")
    answers = [name for name in names if name in row and learns]
    if isinstance(data, PairSection):
        answers = ["chosen"]
        if "chosen" in talks and row["chosen"][0]["role"] != "assistant":
            asked = answers
        elif not asked:
            return {"prompt": ""}  # both answers begin with it
    elif learns and (not answers or asked[:1] == ["messages"]):
        answers = []
        asked = [name for name in asked if name == "messages"]
        if not asked and not data.chat and has_fields(row, "{text}"):
            return {"prompt": "", "completion": "{text}"}
    if not asked:
        return {}
    told = {"prompt": f"{{{asked[0]}}}", "chat": any(name in talks for name in answers[:1])}
    if asked[0] in talks and data.system_prompt is None:
        told = {"messages": asked[0], "chat": False}
    if answers[:1] == ["completion"] or ("messages" in told and answers[:1] == ["answer"]):
        told["completion"] = f"{{{answers[0]}}}"
    return told
