"""Rows for SFT, DPO and reward models from trees of OpenAssistant, which people have ranked.

python examples/oasst_rows.py trees.jsonl     # also .gz

Writes talks.jsonl and pairs.jsonl into the current folder, and their held-out twins, which have
every fourth tree.
"""

from __future__ import annotations

import json
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

from lockstep.data.files import FileGroup, open_rows
from lockstep.data.ranked import RankedResponses, read_ranked
from lockstep.data.ranked_options import RankedSection

HELD_OUT = 4


def build_talk(one: RankedResponses) -> dict[str, Any]:
    """The conversation with the response that people liked best."""
    best = one.responses[one.ranks.index(min(one.ranks))]
    return {"messages": [*one.conversation, {"role": "assistant", "content": best}]}


def build_pairs(one: RankedResponses) -> list[dict[str, Any]]:
    """A pair for each two responses with different ranks."""
    ordered = sorted(zip(one.ranks, one.responses, strict=True))
    return [
        {"prompt": list(one.conversation), "chosen": better, "rejected": worse}
        for (low, better), (high, worse) in combinations(ordered, 2)
        if low < high and better != worse
    ]


def main(trees: str) -> None:
    """Writes the four files."""
    section = RankedSection(ranked=trees, tree=True)
    found, _ = read_ranked(open_rows(FileGroup((Path(trees),))), section)
    questions = dict.fromkeys(one.conversation[0]["content"] for one in found)
    held_out = set(list(questions)[::HELD_OUT])
    for start, wanted in (("", False), ("held_out_", True)):
        own = [one for one in found if (one.conversation[0]["content"] in held_out) == wanted]
        talks = [build_talk(one) for one in own]
        pairs = [pair for one in own for pair in build_pairs(one)]
        for name, rows in ((f"{start}talks.jsonl", talks), (f"{start}pairs.jsonl", pairs)):
            Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            print(f"{name}: {len(rows)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
