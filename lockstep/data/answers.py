"""Prompts and answers as rows of a batch: tokens of a prompt, then of an answer with its stop token, trained on."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.batch import Batch
from lockstep.config import DataSection
from lockstep.data import messages
from lockstep.data.prompts import is_chat, token_ids
from lockstep.data.rows import Row
from lockstep.data.templates import fields, read_field, render
from lockstep.errors import InputError


class AnswerEncoder:
    """Encoder of answers to tokens, each with the stop token that a sampler would stop at.

    Args:
        tokenizer: The model's; its end-of-sequence token ends an answer.
        data: If prompts are conversations, answers end with the stop token that the chat template writes after them,
            if there is one.
        stops: The model's other stop tokens.

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


def read_answer(template: str, row: Row, where: str) -> str:
    """An answer as text: the template filled, or the last message if its only field is a conversation."""
    talk = _find_talk(template, row)
    return render(template, row, where) if talk is None else messages.read_answer(row, talk)


def answer_fault(template: str, row: Row) -> str | None:
    """Returns what is wrong with an answer, such as a list that is no conversation; None if nothing is."""
    talk = _find_talk(template, row)
    if talk is not None:
        return messages.answer_fault(row, talk)
    lists = [name for name in fields(template) if isinstance(read_field(row, name), list | dict)]
    return f"has no text in the field {lists[0]!r}, which is an answer" if lists else None


def _find_talk(template: str, row: Row) -> str | None:
    """The field of a conversation that ends with the answer; None where the answer is text."""
    names = fields(template)
    if not names or template != f"{{{names[0]}}}":
        return None
    return names[0] if isinstance(read_field(row, names[0]), list) else None


def build_batch(rows: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Batch:
    """A batch of prompts and answers, `mask` on answers."""
    tokens = [token for given, learned in rows for token in (*given, *learned)]
    parts = torch.tensor([[len(given), len(learned)] for given, learned in rows])
    mask = torch.repeat_interleave(torch.tensor([False, True]).repeat(len(rows)), parts.flatten())
    return Batch(torch.tensor(tokens), parts.sum(1), {"mask": mask})
