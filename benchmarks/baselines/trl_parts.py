"""Common parts of TRL's sides: a clock, a tokenizer, and options."""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from itertools import pairwise

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, TrainerCallback

from benchmarks.harness import WARMUP
from benchmarks.small_llama import SIZES


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
