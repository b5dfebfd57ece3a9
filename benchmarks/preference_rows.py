"""Rows of random words that both sides of `benchmarks.preference_step` learn from, and a tokenizer of these words."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from benchmarks.small_llama import VOCAB

BATCHES = 4
"""Batches that a pass over the rows has."""

PROMPT, ANSWER = (42, 0.37), (47, 0.54)
"""Median, and standard deviation of the logarithm, of the words in GSM8K's questions and answers."""


def rows(count: int, lengths: str, seed: int = 0) -> list[dict[str, str]]:
    """Rows with a prompt, a chosen and a rejected answer.

    Args:
        count: How many.
        lengths: `even`: all have the medians; `gsm8k`: log-normal with its spread, at most 200 words each.
        seed: Of the words and lengths.
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


def undisturbed(steps: list[float]) -> float:
    """Seconds per step of the quickest pass over the rows: what other programs on the machine do only adds to them."""
    passes = [steps[i : i + BATCHES] for i in range(0, len(steps) - BATCHES + 1, BATCHES)]
    return min(sum(one) for one in passes) / BATCHES


def tokenizer() -> PreTrainedTokenizerFast:
    """One token per word; the last two of the model's are padding and the end."""
    vocabulary = {f"t{i}": i for i in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<end>": VOCAB - 1}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<end>")
