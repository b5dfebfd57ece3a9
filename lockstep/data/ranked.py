"""Responses ranked by people: from flat rows by fields and templates, or from trees.

Trees are conversations with several replies to a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.data.messages import ChatMessage
from lockstep.data.ranked_options import RankedSection
from lockstep.data.rows import (
    NUM_NAMED,
    DataError,
    DataRow,
    FileRows,
    SkippedRows,
    describe_remedy,
    is_error,
    read_number,
)
from lockstep.data.templates import (
    FieldType,
    fill_template,
    find_field_fault,
    list_fields,
    read_field,
)
from lockstep.system.printable import print_note

_ROLES = {"prompter": "user", "assistant": "assistant"}
"""Roles in OpenAssistant trees, and in conversations."""


@dataclass(frozen=True)
class RankedResponses:
    """A prompt with ranked responses.

    Attributes:
        id: Identifies the prompt across runs.
        conversation: The conversation to answer.
        responses: At least two responses.
        ranks: Rank of each response, lower is better; not all equal.
    """

    id: str
    conversation: tuple[ChatMessage, ...]
    responses: tuple[str, ...]
    ranks: tuple[float, ...]


def read_ranked(
    rows: FileRows, section: RankedSection
) -> tuple[list[RankedResponses], SkippedRows]:
    """Reads all ranked responses of some rows, in order, and the skipped rows.

    A row without a ranking (all ranks equal or, in a tree, missing) is ignored without an error.

    Raises:
        DataError: A row lacks what the section requires, and the policy is error; or no row is
            left.
        ValueError: A template is malformed.
    """
    found: list[RankedResponses] = []
    faults: list[str] = []
    for i, row in enumerate(rows.read_rows(range(len(rows)))):
        try:
            found += _read_row(row, rows.row_id(i), section)
        except DataError as error:
            faults.append(f"{rows.name_row(i)}: {error}")
            if is_error(section.bad_rows):
                raise DataError(f"{faults[-1]}; {describe_remedy(i)}") from error
    skipped = rows.skipped + SkippedRows(len(faults), tuple(faults[:NUM_NAMED]))
    usable = [one for one in found if len(set(one.ranks)) > 1][: section.max_prompts]
    if skipped.count:
        print_note(f"{skipped.count} bad rows skipped; the first:\n  " + "\n  ".join(skipped.first))
    if not usable:
        raise DataError(f"{rows.name}: has no responses with different ranks")
    return usable, skipped


def _read_row(row: DataRow, name: str, section: RankedSection) -> list[RankedResponses]:
    """Reads the ranked responses of a flat row; its DataError does not name the row."""
    if section.tree:
        return list(_read_tree(row, name))
    responses = _read_responses(row, section)
    ranks = _read_ranks(row, section, len(responses))
    question = {"role": "user", "content": _fill_checked(section.prompt, row)}
    return [RankedResponses(name, (question,), responses, ranks)]


def _read_responses(row: DataRow, section: RankedSection) -> tuple[str, ...]:
    if isinstance(section.responses, tuple):
        return tuple(_fill_checked(template, row) for template in section.responses)
    responses = _require_field(row, section.responses, "list")
    if len(responses) < 2 or not all(isinstance(response, str) for response in responses):
        raise DataError(f"needs a list of at least two texts in the field {section.responses!r}")
    return tuple(responses)


def _read_ranks(row: DataRow, section: RankedSection, count: int) -> tuple[float, ...]:
    if section.ranks is not None:
        ranks = _require_field(row, section.ranks, "list")
        if len(ranks) != count or any(read_number(rank) is None for rank in ranks):
            raise DataError(
                f"needs one number for each of {count} responses in the field {section.ranks!r}"
            )
        return tuple(map(float, ranks))
    best = _fill_checked(section.best or "", row)
    if best not in map(str, range(1, count + 1)):
        raise DataError(f"says {best!r} for the best response, not a number from 1 to {count}")
    return tuple(0.0 if number == int(best) else 1.0 for number in range(1, count + 1))


def _read_tree(row: DataRow, name: str) -> Iterator[RankedResponses]:
    """Reads a tree: each message with two or more ranked replies ends a prompt."""
    waiting: list[tuple[Mapping[str, Any], tuple[ChatMessage, ...], str]] = [
        (_require_field(row, "prompt", "object"), (), name)
    ]
    while waiting:
        message, before, where = waiting.pop()
        talk = (
            *before,
            {"role": _read_role(message), "content": _require_field(message, "text", "text")},
        )
        replies = _require_field(message, "replies", "list")
        if not all(isinstance(reply, dict) for reply in replies):
            raise DataError("has an invalid message in the field 'replies'")
        texts: list[str] = []
        ranks: list[float] = []
        for reply in replies:
            rank = read_number(reply.get("rank"))
            if _read_role(reply) == "assistant" and rank is not None:
                texts.append(_require_field(reply, "text", "text"))
                ranks.append(rank)
        if len(ranks) > 1:
            yield RankedResponses(where, talk, tuple(texts), tuple(ranks))
        inner = [
            (reply, talk, f"{where}.{number}") for number, reply in enumerate(replies, start=1)
        ]
        waiting += reversed(inner)


def _read_role(message: Mapping[str, Any]) -> str:
    name = _require_field(message, "role", "text")
    if name not in _ROLES:
        raise DataError(f"has in the field 'role' {name!r}, not 'prompter' or 'assistant'")
    return _ROLES[name]


def _fill_checked(template: str, row: DataRow) -> str:
    wrong = find_field_fault(row, dict.fromkeys(list_fields(template), "any"))
    if wrong is not None:
        raise DataError(wrong)
    return fill_template(template, row, "row")


def _require_field(row: DataRow, name: str, kind: FieldType) -> Any:
    wrong = find_field_fault(row, {name: kind})
    if wrong is not None:
        raise DataError(wrong)
    return read_field(row, name)


def describe_ranked(ranked: Sequence[RankedResponses], skipped: SkippedRows) -> str:
    """Summarizes the number of prompts, responses and skipped rows, for people."""
    responses = sum(len(one.responses) for one in ranked)
    return (
        f"{len(ranked)} prompts with {responses} ranked responses ({skipped.count or 'no'} "
        "rows skipped)"
    )
