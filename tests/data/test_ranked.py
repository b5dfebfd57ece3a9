"""Ranked responses from flat rows and from trees; what is wrong with a row is said, or counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lockstep.data.files import FileGroup, open_rows
from lockstep.data.ranked import RankedResponses, read_ranked
from lockstep.data.ranked_options import RankedSection
from lockstep.data.rows import DataError, SkippedRows

FLAT: dict[str, Any] = {"ranked": "x", "ranks": "ranks"}
TREE: dict[str, Any] = {"ranked": "x", "tree": True}


def ranked(
    folder: Path, rows: list[Any], section: dict[str, Any], name: str = "rows.jsonl"
) -> tuple[list[RankedResponses], SkippedRows]:
    path = folder / name
    path.write_text(
        "".join(json.dumps(row) + "\n" for row in rows) if name.endswith("l") else json.dumps(rows)
    )
    options = RankedSection.model_validate_json(json.dumps(section))
    return read_ranked(open_rows(FileGroup((path,)), options.bad_rows), options)


def said(role: str, text: str, *replies: dict[str, Any], rank: int | None = None) -> dict[str, Any]:
    return {"role": role, "text": text, "replies": list(replies), "rank": rank}


def test_ranked_responses_are_read_from_list_fields(tmp_path: Path) -> None:
    rows = [{"prompt": "p", "responses": ["a", "b", "c"], "ranks": [2, 0, 1.5]}]
    (one,), skipped = ranked(tmp_path, rows, FLAT)
    assert one == RankedResponses(
        "rows.jsonl:1", ({"role": "user", "content": "p"},), ("a", "b", "c"), (2.0, 0.0, 1.5)
    )
    assert skipped.count == 0


def test_ranked_responses_are_read_from_response_templates_and_best_field(tmp_path: Path) -> None:
    rows = [{"input": "p", "output_1": "a", "output_2": "b", "label": 2}]
    section = {
        "ranked": "x",
        "prompt": "Q {input}",
        "responses": ["{output_1}", "{output_2}!"],
        "best": "{label}",
    }
    for name in ("rows.jsonl", "rows.json"):
        (one,), _ = ranked(tmp_path, rows, section, name)
        assert one == RankedResponses(
            f"{name}:1", ({"role": "user", "content": "Q p"},), ("a", "b!"), (1.0, 0.0)
        )


def test_each_tree_message_with_ranked_replies_becomes_a_prompt(tmp_path: Path) -> None:
    again = said("prompter", "q", said("assistant", "c", rank=1), said("assistant", "d", rank=0))
    unranked = said(
        "assistant",
        "e",
        said("prompter", "r", said("assistant", "f"), said("assistant", "g", rank=0)),
    )
    first = said(
        "prompter",
        "p",
        said("assistant", "a", again, rank=0),
        said("assistant", "b", rank=1),
        unranked,
    )
    found, _ = ranked(tmp_path, [{"prompt": first}], TREE)
    assert [(one.id, one.responses, one.ranks) for one in found] == [
        ("rows.jsonl:1", ("a", "b"), (0.0, 1.0)),
        ("rows.jsonl:1.1.1", ("c", "d"), (1.0, 0.0)),
    ]
    assert [(message["role"], message["content"]) for message in found[1].conversation] == [
        ("user", "p"), ("assistant", "a"), ("user", "q"),
    ]  # fmt: skip


BAD = (
    ({"responses": ["a", "b"], "ranks": [0, 1]}, FLAT, "has no field 'prompt'"),
    ({"prompt": "p", "responses": ["a"], "ranks": [0]}, FLAT, "needs a list of at least two texts"),
    (
        {"prompt": "p", "responses": ["a", "b"], "ranks": [0]},
        FLAT,
        "needs one number for each of 2 responses",
    ),
    (
        {"prompt": "p", "responses": ["a", "b"], "ranks": [0, "1"]},
        FLAT,
        "needs one number for each of 2 responses",
    ),
    (
        {"prompt": "p", "responses": ["a", "b"], "best": 3},
        {"ranked": "x", "best": "{best}"},
        "says '3' for the best",
    ),
    ({"prompt": "p"}, TREE, "has text in the field 'prompt', which should be object"),
    (
        {"prompt": said("system", "p")},
        TREE,
        "has in the field 'role' 'system', not 'prompter' or 'assistant'",
    ),
)


@pytest.mark.parametrize(("row", "section", "sentence"), BAD)
def test_bad_ranked_row_is_rejected_by_line_or_skipped_and_counted(
    tmp_path: Path, row: Any, section: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(DataError, match=rf"rows\.jsonl, line 1: .*{sentence}.*; correct the row"):
        ranked(tmp_path, [row], section)
    good: dict[str, Any] = {"prompt": "p", "responses": ["a", "b"], "ranks": [0, 1], "best": 1}
    if section is TREE:
        good = {
            "prompt": said(
                "prompter", "p", said("assistant", "a", rank=0), said("assistant", "b", rank=1)
            )
        }
    found, skipped = ranked(tmp_path, [row, good], section | {"bad_rows": "skip"})
    assert (len(found), skipped.count) == (1, 1)
    assert skipped.first[0].startswith(f"{tmp_path / 'rows.jsonl'}, line 1: ")


def test_oasst_tree_file_gives_212_prompts_with_641_ranked_responses(assets: Path) -> None:
    section = RankedSection.model_validate({"ranked": "x", "tree": True})
    found, skipped = read_ranked(
        open_rows(FileGroup((assets / "data/oasst/en_100_tree.jsonl",))), section
    )
    assert (len(found), sum(len(one.responses) for one in found), skipped.count) == (212, 641, 0)
    assert {len(one.conversation) % 2 for one in found} == {1}
