"""Prompts and answers as rows of a batch: tokens of a prompt, then of an answer with its stop token, masked."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.batch import Batch
from lockstep.config import DataSection
from lockstep.data import messages
from lockstep.data.prompts import is_chat, token_ids
from lockstep.errors import InputError


class AnswerEncoder:
    """Encoder of answers to tokens: with the stop token that a sampler would wait for.

    Args:
        tokenizer: The model's; its end-of-sequence token ends an answer.
        data: In a conversation, what the chat template puts behind an answer ends it, if the model stops there.
        stops: The tokens at which the model stops, besides that.

    Raises:
        ValueError: The tokenizer lacks an end-of-sequence token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, data: DataSection, stops: Collection[int]) -> None:
        end = tokenizer.eos_token_id
        if not isinstance(end, int):
            raise InputError(
                "the model's tokenizer has no end-of-sequence token, and completions must end; set eos_token"
            )
        in_talk = messages.end_of_answer(tokenizer, {end, *stops}, data.template_args) if is_chat(data) else None
        self._stop = end if in_talk is None else in_talk
        self._tokenizer = tokenizer

    def __call__(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Token ids of answers, the stop token last."""
        return [(*ids, self._stop) for ids in token_ids(self._tokenizer, texts, add_special_tokens=False)]


def build_batch(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """A batch of prompts and answers, `mask` on answers."""
    tokens = [token for given, learned in rows for token in (*given, *learned)]
    parts = torch.tensor([[len(given), len(learned)] for given, learned in rows])
    mask = torch.repeat_interleave(torch.tensor([False, True]).repeat(len(rows)), parts.flatten())
    return Batch(torch.tensor(tokens), parts.sum(1), {"mask": mask})
