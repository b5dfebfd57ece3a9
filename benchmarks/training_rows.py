"""Rows that both sides of `benchmarks.group_step` train on without sampling: GSM8K's for SFT, pairs
of random words for DPO.
"""

from __future__ import annotations

import argparse
import json
import os
from itertools import islice
from pathlib import Path

from benchmarks.harness import WARMUP
from benchmarks.small_llama import random_prompts

WORDS = (
    "the of and to in that it was for on are as with they be at one have this from by hot word but "
    "what some is you had out time up use your many then them would like so these her long make"
)
"""Words of one token each in SmolLM2's vocabulary."""


def training_rows(args: argparse.Namespace) -> list[dict[str, str]]:
    """The rows of all steps, with `--prompts` rows a step."""
    count = (WARMUP + args.steps + 1) * args.prompts
    if args.algorithm == "sft":
        with (Path(os.environ["LOCKSTEP_ASSETS"]) / "data/gsm8k/train.jsonl").open() as file:
            rows = [json.loads(line) for line in islice(file, count)]
        return [{"prompt": f"{row['question']}\n", "completion": row["answer"]} for row in rows]
    lengths = [args.prompt_tokens, args.new_tokens, args.new_tokens] * count
    words = WORDS.split()
    drawn = random_prompts(lengths, vocab=len(words))
    texts = ["".join(f" {words[token]}" for token in row) for row in drawn]
    fields = ("prompt", "chosen", "rejected")
    return [
        dict(zip(fields, texts[start : start + 3], strict=True))
        for start in range(0, len(texts), 3)
    ]
