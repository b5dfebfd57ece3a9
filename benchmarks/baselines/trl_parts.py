"""Common parts of TRL's sides: a clock, a tokenizer, and options."""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
import transformers
import trl  # pyright: ignore[reportMissingImports]
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback

from benchmarks.harness import WARMUP, peak_rss_mb
from benchmarks.small_llama import SIZES

CHEAPEST: dict[str, Any] = {
    "gradient_accumulation_steps": 1, "use_cpu": True, "bf16": False, "gradient_checkpointing": False,
    "report_to": "none", "disable_tqdm": True, "logging_steps": 1000, "save_strategy": "no", "seed": 0,
}  # fmt: skip
"""The settings that cost TRL least on a CPU."""


class StepClock(TrainerCallback):
    """Notes the CPU clock at the end of each step, and the time that garbage collection took until
    then.

    Args:
        updates: Optimizer steps that make a step.
    """

    def __init__(self, updates: int = 1) -> None:
        self._updates = updates
        self.ticks: list[float] = []
        self._gc_ticks: list[float] = []
        self._gc_s = 0.0
        self._gc_start = 0.0
        gc.callbacks.append(self._on_gc)

    def on_step_end(self, *_: object, **__: object) -> None:
        self.ticks.append(time.process_time())
        self._gc_ticks.append(self._gc_s)

    def seconds(self) -> dict[str, float]:
        """CPU seconds of the steps that count, and what is left of them without garbage
        collection.
        """
        steps, collecting = (
            [b - a for a, b in pairwise(ticks[self._updates - 1 :: self._updates])][WARMUP - 1 :]
            for ticks in (self.ticks, self._gc_ticks)
        )
        return {
            "cpu_s": statistics.median(steps),
            "cpu_without_gc_s": statistics.median(
                s - g for s, g in zip(steps, collecting, strict=True)
            ),
        }

    def _on_gc(self, phase: str, _: object) -> None:
        now = time.process_time()
        if phase == "start":
            self._gc_start = now
        else:
            self._gc_s += now - self._gc_start

    def print_result(self) -> None:
        """Prints the versions, the seconds and the peak memory as one JSON line."""
        versions = {part.__name__: part.__version__ for part in (trl, transformers, torch)}
        result = {"program": versions, **self.seconds(), "peak_rss_mb": round(peak_rss_mb(), 1)}
        print(json.dumps(result), flush=True)


def tokenizer(vocab: int) -> PreTrainedTokenizerFast:
    """One token per word; padding and end lie outside of the model's vocabulary, so that nothing
    ends a response.
    """
    words = {f"t{i}": i for i in range(vocab)} | {"<pad>": vocab, "<end>": vocab + 1}
    inner = Tokenizer(models.WordLevel(words, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<end>", padding_side="left"
    )


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds options for the numbers of a step and the size of the model."""
    for name in ("prompts", "prompt-tokens", "new-tokens", "minibatches", "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    usual = SIZES["default"]
    parser.add_argument("--hidden", type=int, default=usual.hidden)
    parser.add_argument("--layers", type=int, default=usual.layers)
    parser.add_argument("--vocab", type=int, default=usual.vocab)
