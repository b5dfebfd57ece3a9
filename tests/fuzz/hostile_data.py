"""Hostile files of rows."""

from __future__ import annotations

import gzip
import json

from hostile import (
    DEEP,
    LINE_1,
    SFT,
    Hostile,
    in_order,
    known,
    other,
    pair,
    pipe,
    ranked,
    replaced,
    rows,
    score,
    table,
    talk,
)

GOOD = '{"question": "1+1=", "answer": "2"}\n'
BARE = """'data.prompt="{question}"'"""


DATA = {
    "data: a link to nothing": replaced(lambda p: p.symlink_to("nowhere"), "rows.jsonl"),
    "data: a link to itself": replaced(lambda p: p.symlink_to("rows.jsonl"), "rows.jsonl", "cannot be opened"),
    "data: an empty folder": replaced(lambda p: p.mkdir(), "rows.jsonl", "folder"),
    "data: a folder of a data set that is torn": replaced(
        lambda p: [p.mkdir(), (p / "state.json").write_text('{"_data')], "rows.jsonl", "state.json"
    ),
    "data: a folder of a data set without its files": replaced(
        lambda p: [p.mkdir(), (p / "state.json").write_text("{}")], "rows.jsonl", "state.json"
    ),
    "data: a folder whose arrow file is gone": replaced(
        lambda p: [
            p.mkdir(),
            (p / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}'),
            (p / "dataset_info.json").write_text("{}"),
        ],
        "data-00000-of-00001.arrow",
        "no such file",
    ),
    "data: a folder of splits that is torn": replaced(
        lambda p: [p.mkdir(), (p / "dataset_dict.json").write_text('{"splits": ')], "rows.jsonl", "dataset_dict.json"
    ),
    "data: a folder of splits without splits": replaced(
        lambda p: [p.mkdir(), (p / "dataset_dict.json").write_text('{"splits": []}')], "rows.jsonl", "dataset_dict.json"
    ),
    "data: /dev/null": replaced(lambda p: p.symlink_to("/dev/null"), "rows.jsonl"),
    "data: /dev/zero": replaced(lambda p: p.symlink_to("/dev/zero"), "rows.jsonl"),
    "data: NUL bytes": rows(b"\x00" * 4096, LINE_1),
    "data: brackets 100,000 deep": rows('{"question": ' + DEEP + "}\n", LINE_1, "nested more than 100 deep"),
    "data: a question nested 900 deep": rows(
        '{"question": ' + "[" * 900 + "]" * 900 + ', "answer": "1"}\n', LINE_1, "nested more than 100 deep"
    ),
    "data: a number of 5,000 digits": rows('{"question": "a", "answer": ' + "9" * 5000 + "}\n", LINE_1, "digits"),
    "data: an answer that is NaN": rows('{"question": "a", "answer": NaN}\n', "rows.jsonl", "NaN"),
    "data: an empty question": rows('{"question": "", "answer": "1"}\n' * 24, LINE_1, "empty", options=BARE),
    "data: questions of white space": in_order(rows('{"question": " ", "answer": "1"}\n' * 24, options=BARE)),
    "data: a question that is a list": in_order(rows('{"question": ["1+1="], "answer": "2"}\n')),
    "data: a question that is an object": in_order(rows('{"question": {"text": "1+1="}, "answer": "2"}\n')),
    "data: an empty answer": rows('{"question": "1+1=", "answer": ""}\n' * 24, "rows.jsonl"),
    "data: an answer that is a list": rows('{"question": "1+1=", "answer": ["2"]}\n' * 24, "rows.jsonl"),
    "data: an answer of 9**9**9**9": in_order(rows('{"question": "1+1=", "answer": "9**9**9**9"}\n' * 24)),
    "data: an answer of 5,000 digits": rows(
        json.dumps({"question": "1+1=", "answer": "9" * 5000}) + "\n", LINE_1, "math-verify", "…"
    ),
    "data: an answer of 1 MB": rows(
        json.dumps({"question": "1+1=", "answer": "1+" * 500000 + "1"}) + "\n", LINE_1, "math-verify", "…"
    ),
    "data: a question of 20 MB": rows(
        json.dumps({"question": "1+1= " * 4000000, "answer": "2"}) + "\n", LINE_1, "characters"
    ),
    "data: line ends of old Macs": rows(GOOD.replace("\n", "\r") * 5, "rows.jsonl", "carriage returns"),
    "data: UTF-16 without a mark": rows((GOOD * 3).encode("utf-16-le"), LINE_1, "UTF-16"),
    "data: UTF-32": rows((GOOD * 3).encode("utf-32"), LINE_1, "UTF-32"),
    "data: a second byte-order mark": rows(GOOD.encode() + b"\xef\xbb\xbf" + GOOD.encode(), "rows.jsonl, line 2"),
    "data: a page of HTML": rows("<!DOCTYPE html>\n<html><body>404</body></html>\n", "rows.jsonl", "web page"),
    "data: escape sequences in a field's name": rows('{"\\u001b[2J\\u001b[31mq": 1}\n', LINE_1, "␛[2J"),
    "data: 10,000 fields": rows(json.dumps({f"field_{i}": i for i in range(10000)}) + "\n", LINE_1),
    "data: a list of objects in one line": rows(
        json.dumps([json.loads(GOOD)] * 3), "rows.jsonl", "is one JSON list", ".json"
    ),
    "data: an object over several lines": rows(json.dumps(json.loads(GOOD), indent=1), "rows.jsonl", "one line"),
    "data: a gold answer off the field": rows('{"question": "1+1=", "Answer": "2"}\n', LINE_1, "answer"),
    "data: only one row, on and on": in_order(rows(GOOD)),
    "data: packed twice": other("r.jsonl.gz", gzip.compress(gzip.compress(GOOD.encode() * 24)), "r.jsonl.gz", "twice"),
    "data: packed, with something behind": other(
        "r.jsonl.gz", gzip.compress(GOOD.encode() * 24) + b"garbage", "r.jsonl.gz"
    ),
    "data: packed by another program": other("r.jsonl.zst", b"(\xb5/\xfd" + bytes(100), "r.jsonl.zst", "packed"),
    "data: a zip": other("r.zip", b"PK\x03\x04" + bytes(100), "r.zip", "packed"),
    "data: columns in JSON": other(
        "r.json", json.dumps({"question": ["a", "b"], "answer": ["1", "2"]}), "r.json", "list of objects"
    ),
    "data: lines in JSON": other("r.json", GOOD * 24, "r.json", ".jsonl"),
    "data: JSON with nothing": other("r.json", "", "r.json"),
    "data: JSON with an empty list": other("r.json", "[]", "r.json", "no rows"),
    "data: Parquet that is none": other("r.parquet", b"PAR1garbagePAR1", "r.parquet", "Parquet"),
    "data: Parquet of nothing": other("r.parquet", b"", "r.parquet"),
    "data: Parquet without rows": table(
        lambda pa: {"question": pa.array([], pa.string()), "answer": pa.array([], pa.string())}, "r.parquet", "no rows"
    ),
    "data: Parquet with bytes": table(
        lambda pa: {"question": pa.array([b"\xff"] * 24), "answer": ["1"] * 24}, "r.parquet, row 1", "question"
    ),
    "data: Parquet with dates": table(
        lambda pa: {"question": pa.array([10**9] * 24, pa.timestamp("s")), "answer": ["1"] * 24},
        "r.parquet, row 1",
        "question",
    ),
    "data: Parquet with decimals inside lists": table(
        lambda pa: {"question": ["1+1="] * 24, "answer": pa.array([[b"1"]] * 24)}, "r.parquet, row 1", "'answer'"
    ),
    "data: an arrow file": other("r.arrow", b"ARROW1\x00\x00" + bytes(64), "r.arrow", "Arrow"),
    "data: demonstrations of nothing": rows('{"question": "1+1=", "answer": ""}\n' * 24, LINE_1, of=SFT),
    "data: talk: messages that are text": talk("[{}]", LINE_1, "list"),
    "data: talk: no messages": talk([], LINE_1),
    "data: talk: content in parts": talk(
        [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": "a"}],
        LINE_1,
        "message, number 1",
    ),
    "data: talk: content that is null": talk(
        [{"role": "user", "content": None}, {"role": "assistant", "content": "a"}], LINE_1, "message, number 1"
    ),
    "data: talk: an answer without a question": talk([{"role": "assistant", "content": "a"}], LINE_1),
    "data: talk: an empty answer": talk(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": ""}], LINE_1
    ),
    "data: talk: a conversation of 20,000 messages": talk(
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}] * 1000, LINE_1, "tokens"
    ),
    "data: pair: answers that differ in a space": in_order(pair({"c": "2", "r": "2 "})),
    "data: pair: a chosen answer that is null": pair({"c": None, "r": "3"}, LINE_1, "'c'"),
    "data: pair: a chosen conversation beside a rejected text": in_order(
        pair({"c": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "r": "3"})
    ),
    "data: pair: conversations that end with the user": pair(
        {"c": [{"role": "user", "content": "a"}], "r": [{"role": "user", "content": "b"}]}, LINE_1, "assistant"
    ),
    "data: pair: answers that are numbers": in_order(pair({"c": 1, "r": 2})),
    "data: pair: empty answers": pair({"c": "", "r": "3"}, LINE_1, "empty answer"),
    "data: a score that is NaN": score("NaN", "1", LINE_1, "NaN"),
    "data: a score that is infinite": score("1e999", "1", LINE_1, "1e999"),
    "data: a score of 400 digits": score("1" + "0" * 400, "1", LINE_1, "cs"),
    "data: a score that is text": score('"5"', "1", LINE_1, "cs"),
    "data: a score that is true": score("true", "1", LINE_1, "cs"),
    "data: a known score that is NaN": known('{"prompt": "a", "response": "b", "score": NaN}\n', "known.jsonl, line 1"),
    "data: a known score that is true": known(
        '{"prompt": "a", "response": "b", "score": true}\n', "known.jsonl, line 1"
    ),
    "data: a known score of 400 digits": known(
        '{"prompt": "a", "response": "b", "score": 1' + "0" * 400 + "}\n", "known.jsonl, line 1"
    ),
    "data: a known prompt that is a list": known(
        '{"prompt": ["a"], "response": "b", "score": 1}\n', "known.jsonl, line 1"
    ),
    "data: known comparisons of another kind": known(
        '{"prompt": "a"}\n', "known.comparisons", "use_meta_judge", kind="comparisons"
    ),
    "data: ranks that are NaN": ranked('{"p": "a", "responses": ["1", "2"], "ranks": [NaN, 1]}\n', "ranked.jsonl"),
    "data: ranks of 400 digits": ranked(
        '{"p": "a", "responses": ["1", "2"], "ranks": [1' + "0" * 400 + ", 1]}\n", "ranked.jsonl"
    ),
    "data: a pipe": Hostile("train own.yaml --dry-run", pipe("rows.jsonl"), ("rows.jsonl", "pipe")),
}
