"""Whoever answers a judge's questions: one small protocol, and samplers behind it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from lockstep.batch import Batch
from lockstep.data import messages
from lockstep.data.messages import Message
from lockstep.data.prompts import token_ids
from lockstep.errors import InputError
from lockstep.judge.templates import control_tokens, escaping
from lockstep.types import Request, SamplingParams

Conversation = Sequence[Message]


@dataclass(frozen=True)
class Answer:
    """A reply.

    Attributes:
        text: Without its stop token.
        finished: Whether it came to its end; else a limit cut it off.
        prompt_tokens: What was asked, as the model read it; None where that is not known here.
        tokens: What was drawn, the stop token among it; likewise.
    """

    text: str
    finished: bool
    prompt_tokens: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None


class Answering(Protocol):
    """Answers conversations: the policy, another model, or a server."""

    def escape(self, text: str) -> str:
        """Text from models and users, with nothing in it that would be read as a control token."""
        ...

    def excesses(self, conversations: Sequence[Conversation]) -> list[int]:
        """How many tokens each is too long by; 0 where it fits, or where nobody here can tell."""
        ...

    def answers(self, conversations: Sequence[Conversation], keys: Sequence[int]) -> list[Answer | None]:
        """One reply to each; None where there is none to be had.

        Args:
            conversations: What is asked, none of it too long.
            keys: Of the random numbers (`lockstep.keyed`), one for each.
        """
        ...


class Generates(Protocol):
    """A `Sampler`, or a `SamplerSession` within its bracket."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch: ...


@dataclass(frozen=True)
class Reader:
    """How a model reads conversations.

    Attributes:
        tokenizer: The model's.
        chat: Whether through the tokenizer's chat template; else the messages alone, one after the other.
        max_prompt_tokens: The longest that may be asked.
        section: Of the recipe, for messages.

    Raises:
        ValueError: A chat template is wanted and missing.
    """

    tokenizer: PreTrainedTokenizerBase
    chat: bool
    max_prompt_tokens: int
    section: str = "judge"
    escaped: Callable[[str], str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.chat and self.tokenizer.chat_template is None:
            raise InputError(
                f"{self.section}.chat is on, but the tokenizer of who is asked has no chat template; set "
                f"{self.section}.chat=false, or ask a model that has one"
            )
        if self.chat:
            messages.require_template(self.tokenizer)
        object.__setattr__(self, "escaped", escaping(control_tokens(self.tokenizer)))

    def tokens(self, conversations: Sequence[Conversation]) -> list[list[int]]:
        """Token ids, up to where the reply begins."""
        texts = [self._text(conversation) for conversation in conversations]
        each = list(dict.fromkeys(texts))  # a question is asked several times
        ids = token_ids(self.tokenizer, each, add_special_tokens=not self.chat) if each else []
        found = dict(zip(each, ids, strict=True))
        return [found[text] for text in texts]

    def excesses(self, conversations: Sequence[Conversation]) -> list[int]:
        """See `Answering`."""
        return [max(0, len(ids) - self.max_prompt_tokens) for ids in self.tokens(conversations)]

    def _text(self, conversation: Conversation) -> str:
        if self.chat:
            try:
                return messages.render_prompt(conversation, self.tokenizer)
            except messages.ChatTemplateError as error:
                raise InputError(
                    f"{self.section}: the chat template of the judge's tokenizer refuses the question ({error}); set "
                    f"{self.section}.chat=false, or ask a model with another template"
                ) from error
        return "\n\n".join(str(message["content"]) for message in conversation)


@dataclass(frozen=True)
class SamplerAnswers:
    """A sampler answers; implements `Answering`.

    Attributes:
        sampler: Draws.
        reader: Of the sampler's model.
        sampling: The distribution that replies are drawn from.
    """

    sampler: Generates
    reader: Reader
    sampling: SamplingParams

    def escape(self, text: str) -> str:
        return self.reader.escaped(text)

    def excesses(self, conversations: Sequence[Conversation]) -> list[int]:
        return self.reader.excesses(conversations)

    def answers(self, conversations: Sequence[Conversation], keys: Sequence[int]) -> list[Answer | None]:
        if not conversations:
            return []
        asked = [tuple(ids) for ids in self.reader.tokens(conversations)]
        requests = [Request(ids, key) for ids, key in zip(asked, keys, strict=True)]
        batch = self.sampler.generate(requests, self.sampling)
        rows = zip(asked, batch.sequences(), batch.sequences("mask"), batch["truncated"].tolist(), strict=True)
        return [self._answer(ids, sequence[mask].tolist(), bool(cut)) for ids, sequence, mask, cut in rows]

    def _answer(self, asked: tuple[int, ...], drawn: list[int], cut: bool) -> Answer:
        said = drawn if cut else drawn[:-1]  # all but the stop token
        text = self.reader.tokenizer.decode(said, skip_special_tokens=True)
        return Answer(str(text), not cut, asked, tuple(drawn))
