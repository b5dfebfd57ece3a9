"""Pairs for DPO from a model's own responses, which a program has checked.

python examples/sentence_pairs.py MODEL    # also: MODEL TRAINED HELD_OUT, numbers of prompts

Writes sentence_pairs.jsonl and held_out_sentence_pairs.jsonl into the current folder. A pair has
two responses to a prompt of the task `given_words`: one follows all instructions, the other does
not.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from lockstep.inference.eval_recipe import eval_recipe
from lockstep.inference.evaluate import evaluate
from lockstep.tasks.given_words import GivenWords

SYSTEM = "Follow the instruction."
OPTIONS = (
    "data.prompt=question",
    "data.answer=''",
    "data.chat=true",
    "data.max_prompt_tokens=256",
    f"data.system_prompt={SYSTEM}",
    "reward={type: instructions, instructions: {field: asked, all_or_nothing: true}}",
    "learner={device: cpu, dtype: fp32}",
)
SAMPLED = ("greedy=null", "sampling={num_samples: 8, max_tokens: 24, temperature: 0.7, k: null}")


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def build_pairs(
    rows: list[dict[str, Any]], samples: Iterable[dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yields a pair for each row with a right and a wrong response; truncated ones are left out."""
    for number, drawn in groupby(samples, itemgetter("question")):
        ended = [one for one in drawn if not one["truncated"]]
        right = [one["response"] for one in ended if one["score"] == 1]
        wrong = [one["response"] for one in ended if one["score"] == 0]
        if right and wrong:
            prompt = [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": rows[number]["question"]},
            ]
            yield {"prompt": prompt, "chosen": right[0], "rejected": wrong[0]}


def main(model: str, trained: str = "256", held_out: str = "160") -> None:
    """Writes both files, from this many prompts each."""
    files = GivenWords(name="given_words").write(Path())
    for start, path, count in (
        ("", files.train, trained),
        ("held_out_", files.validation, held_out),
    ):
        limit = f"data.max_validation_samples={count}"
        folder = evaluate(eval_recipe(model, str(path), (*OPTIONS, *SAMPLED, limit)))
        pairs = list(build_pairs(read_rows(path), read_rows(folder / "samples.jsonl")))
        name = f"{start}sentence_pairs.jsonl"
        Path(name).write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
        print(f"{name}: {len(pairs)} rows")


if __name__ == "__main__":
    main(*sys.argv[1:])
