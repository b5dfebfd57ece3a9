"""Common parts of both sides of `benchmarks.preference_step`: options, rows of random words, tokenizer, figures."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.harness import peak_rss_mb
from benchmarks.small_llama import VOCAB

BATCHES = 4
"""Number of batches in a pass over the rows."""

PROMPT, ANSWER = (42, 0.37), (47, 0.54)
"""Median, and standard deviation of the logarithm, of the words in GSM8K's questions and answers."""


def rows(count: int, lengths: str, seed: int = 0) -> list[dict[str, str]]:
    """Rows with a prompt, a chosen and a rejected answer.

    Args:
        count: Number of rows.
        lengths: `even`: all have the medians; `gsm8k`: log-normal with its spread, at most 200 words each.
        seed: Seed of the words and lengths.
    """
    draw = torch.Generator().manual_seed(seed)

    def words(median: int, spread: float) -> str:
        factor = float(torch.exp(spread * torch.randn((), generator=draw))) if lengths == "gsm8k" else 1.0
        length = min(200, max(1, round(median * factor)))
        return " ".join(f"t{token}" for token in torch.randint(VOCAB - 2, (length,), generator=draw).tolist())

    return [
        {"prompt": words(*PROMPT), "chosen": f" {words(*ANSWER)}", "rejected": f" {words(*ANSWER)}"}
        for _ in range(count)
    ]


def options(doc: str | None) -> argparse.ArgumentParser:
    """The options of a side."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--algorithm", choices=("dpo", "sft", "reward"), default="dpo")
    parser.add_argument("--lengths", choices=("even", "gsm8k"), default="gsm8k")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup", type=int, default=4)
    return parser


def figures(program: str, args: argparse.Namespace, ticks: Sequence[float], tokens: int, loss: float) -> dict[str, Any]:
    """The figures that a side prints.

    Args:
        program: Name and versions.
        args: Its options.
        ticks: The CPU clock at the end of each step.
        tokens: Tokens of a pass over the rows.
        loss: Mean loss over steps.
    """
    steps = [b - a for a, b in pairwise(ticks)][args.warmup - 1 :]
    return {
        "program": program,
        "algorithm": args.algorithm,
        "lengths": args.lengths,
        "steps": len(steps),
        "tokens_per_pass": tokens,
        "cpu_s": undisturbed(steps),
        "cpu_median_s": statistics.median(steps),
        "loss": loss,
        "peak_rss_mb": round(peak_rss_mb(), 1),
    }


def undisturbed(steps: list[float]) -> float:
    """Seconds per step of the quickest pass over the rows: other programs on the machine only add to them."""
    passes = [steps[i : i + BATCHES] for i in range(0, len(steps) - BATCHES + 1, BATCHES)]
    return min(sum(one) for one in passes) / BATCHES


def tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per word; the last two of the model's tokens are padding and the end."""
    vocabulary = {f"t{i}": i for i in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<end>": VOCAB - 1}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
