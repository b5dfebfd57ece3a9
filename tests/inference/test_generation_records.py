"""Records: where a response ends, and what a line holds."""

from __future__ import annotations

import json
from collections.abc import Sequence

import torch

from lockstep.core.batch import Batch
from lockstep.core.types import Prompt, SamplingParams
from lockstep.data.jsonl import parse_row
from lockstep.inference.generate import count_totals, format_lines

STOP = 9
ROW = '{"q": "a\\nb", "n": 3.10, "zip": "007", "list": [1e5, {"x": -0}]}'


def letters(tokens: Sequence[int]) -> str:
    """Shows every token, also one that stops."""
    return "".join("abcdefghij"[token] for token in tokens)


def batch() -> Batch:
    """Two tokens of prompt each; one response stops, one is cut off at a token that could have, a
    text ends two.
    """
    ended = [False, False, True]
    return Batch(
        torch.tensor([7, 7, 1, 2, STOP, 7, 7, 3, STOP, 7, 7, 4, 7, 7, 4]),
        torch.tensor([5, 4, 3, 3]),
        {
            "mask": torch.tensor(
                [False, False, True, True, True, False, False, True, True, *ended, *ended]
            ),
            "sampler_logprob": torch.tensor(
                [0, 0, -1.0, -2.0, -3.0, 0, 0, -4.0, -5.0, 0, 0, -6.0, 0, 0, -7.0]
            ),
        },
        {"truncated": torch.tensor([False, True, False, False])},
        SamplingParams(4, stop_token_ids=(STOP,), stop=("e",)),
    )


def test_generation_line_holds_responses_finish_reasons_and_unchanged_row() -> None:
    """The stop token counts and is no text."""
    talk = ({"role": "user", "content": "Hi"},)
    prompts = [
        Prompt("rows.jsonl:3", "a\nb", (7, 7), parse_row(ROW.encode())),
        Prompt("rows.jsonl:4", "Hi", (7, 7), {}, messages=talk),
    ]
    first, second = format_lines(prompts, batch(), letters, logprobs=False)
    assert first == (
        '{"id": "rows.jsonl:3", "prompt": "a\\nb", "responses": ["bc", "dj"], "num_tokens": [3, '
        "2], "
        f'"finish_reasons": ["stop", "length"], "metadata": {ROW}}}\n'
    )
    assert json.loads(second) == {
        "id": "rows.jsonl:4", "prompt": "Hi", "messages": [*talk],
        "responses": ["e", "e"], "num_tokens": [1, 1], "finish_reasons": ["stop", "stop"], "metadata": {},
    }  # fmt: skip
    logged, _ = format_lines(prompts, batch(), letters, logprobs=True)
    assert json.loads(logged)["logprobs"] == [[-1.0, -2.0, -3.0], [-4.0, -5.0]]
    assert count_totals([json.loads(first), json.loads(second)]) == {
        "prompts": 2, "responses": 4, "unfinished_responses": 1, "tokens": 7,
    }  # fmt: skip
