"""Replies and records: where a response ends, and what a line holds."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from lockstep.core.batch import Batch
from lockstep.core.types import Prompt, Reply, SamplingParams
from lockstep.data.jsonl import parse
from lockstep.inference.generate import account, line_of, replies_of

STOP = 9


def letters(tokens: Sequence[int]) -> str:
    """Shows every token, also one that stops."""
    return "".join("abcdefghij"[token] for token in tokens)


def test_the_stop_token_counts_and_is_no_text() -> None:
    """Two tokens of prompt each; one response stops, one is cut off behind a token that could have, a text ends one."""
    batch = Batch(
        torch.tensor([7, 7, 1, 2, STOP, 7, 7, 3, STOP, 7, 7, 4]),
        torch.tensor([5, 4, 3]),
        {
            "mask": torch.tensor([False, False, True, True, True, False, False, True, True, False, False, True]),
            "sampler_logprob": torch.tensor([0.0, 0.0, -1.0, -2.0, -3.0, 0.0, 0.0, -4.0, -5.0, 0.0, 0.0, -6.0]),
        },
        {"truncated": torch.tensor([False, True, False])},
        SamplingParams(4, stop_token_ids=(STOP,), stop=("e",)),
    )
    assert replies_of(batch, letters, logprobs=True) == [
        Reply("bc", 3, "stop", (-1.0, -2.0, -3.0)),
        Reply("dj", 2, "length", (-4.0, -5.0)),
        Reply("e", 1, "stop", (-6.0,)),
    ]
    assert [reply.logprobs for reply in replies_of(batch, letters, logprobs=False)] == [None, None, None]


def test_a_line_holds_what_there_is_and_the_row_as_written() -> None:
    row = '{"q": "a\\nb", "n": 3.10, "zip": "007", "list": [1e5, {"x": -0}]}'
    plain = Prompt("rows.jsonl:3", "a\nb", (1,), parse(row.encode()))
    line = line_of(plain, [Reply("é", 2, "stop", None)])
    assert line == (
        '{"id": "rows.jsonl:3", "prompt": "a\\nb", "responses": ["é"], "num_tokens": [2], "finish_reasons": ["stop"], '
        f'"metadata": {row}}}\n'
    )
    talk = ({"role": "user", "content": "Hi"},)
    cut = Prompt("rows.jsonl:4", "Hi", (1,), {}, messages=talk, tokens_cut=3)
    record = json.loads(line_of(cut, [Reply("a", 1, "length", (-0.5,)), Reply("", 1, "stop", (-1.5,))]))
    assert (record["truncated_prompt"], record["messages"], record["logprobs"]) == (True, [*talk], [[-0.5], [-1.5]])
    assert account([json.loads(line), record]) == {
        "prompts": 2, "responses": 3, "unfinished_responses": 1, "tokens": 4, "truncated_prompts": 1,
    }  # fmt: skip
