"""Hostile files of rows."""

from __future__ import annotations

import gzip
import json

from hostile import (
    LINE_1,
    SFT,
    in_order,
    known,
    other,
    pair,
    ranked,
    replaced,
    rows,
    score,
    table,
    talk,
)

GOOD = '{"question": "1+1=", "answer": "2"}\n'

DATA = {
    "data: a link to nothing": replaced(lambda p: p.symlink_to("nowhere"), "rows.jsonl"),
    "data: a folder": replaced(lambda p: p.mkdir(), "rows.jsonl", "not a regular file"),
    "data: /dev/zero": replaced(lambda p: p.symlink_to("/dev/zero"), "rows.jsonl"),
    "data: an answer that is a list": rows(
        '{"question": "1+1=", "answer": ["2"]}\n' * 24, "rows.jsonl"
    ),
    "data: an answer of 9**9**9**9": in_order(
        rows('{"question": "1+1=", "answer": "9**9**9**9"}\n' * 24)
    ),
    "data: a question of 20 MB": rows(
        json.dumps({"question": "1+1= " * 4000000, "answer": "2"}) + "\n", LINE_1, "characters"
    ),
    "data: escape sequences in a field's name": rows(
        '{"\\u001b[2J\\u001b[31mq": 1}\n', LINE_1, "␛[2J"
    ),
    "data: packed, with something behind": other(
        "r.jsonl.gz", gzip.compress(GOOD.encode() * 24) + b"garbage", "r.jsonl.gz"
    ),
    "data: Parquet that is none": other("r.parquet", b"PAR1garbagePAR1", "r.parquet", "Parquet"),
    "data: Parquet with decimals inside lists": table(
        lambda pa: {"question": ["1+1="] * 24, "answer": pa.array([[b"1"]] * 24)},
        "r.parquet, row 1",
        "'answer'",
    ),
    "data: demonstrations of nothing": rows(
        '{"question": "1+1=", "answer": ""}\n' * 24, LINE_1, of=SFT
    ),
    "data: talk: messages that are text": talk("[{}]", LINE_1, "list"),
    "data: talk: content in parts": talk(
        [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
            {"role": "assistant", "content": "a"},
        ],
        LINE_1,
        "message, number 1",
    ),
    "data: talk: an answer without a question": talk(
        [{"role": "assistant", "content": "a"}], LINE_1
    ),
    "data: talk: a conversation of 20,000 messages": talk(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 1000,
        LINE_1,
        "tokens",
    ),
    "data: pair: a chosen conversation beside a rejected text": in_order(
        pair(
            {
                "c": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
                "r": "3",
            }
        )
    ),
    "data: pair: empty answers": pair({"c": "", "r": "3"}, LINE_1, "empty chosen answer"),
    "data: a score that is NaN": score("NaN", "1", LINE_1, "NaN"),
    "data: a known score that is NaN": known(
        '{"prompt": "a", "response": "b", "score": NaN}\n', "known.jsonl, line 1"
    ),
    "data: known comparisons of another kind": known(
        '{"prompt": "a"}\n', "known.comparisons", "use_meta_judge", kind="comparisons"
    ),
    "data: ranks that are NaN": ranked(
        '{"p": "a", "responses": ["1", "2"], "ranks": [NaN, 1]}\n', "ranked.jsonl"
    ),
}
