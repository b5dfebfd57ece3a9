"""The protocol for answering a judge's questions, and its sampler implementation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from transformers import PreTrainedTokenizerBase

from lockstep.config.sources import TemplateArgs
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.data import messages
from lockstep.data.messages import ChatMessage
from lockstep.data.prompts import token_ids
from lockstep.data.thoughts import decode_marked, opening_mark
from lockstep.judge.templates import build_escape, control_tokens

ChatConversation = Sequence[ChatMessage]

_TAIL = 16
"""Number of tokens at the end of a question that can hold the mark of a thought."""


@dataclass(frozen=True)
class ModelAnswer:
    """A reply to a question.

    Attributes:
        text: Text without the stop token; starts with the mark of a thought if the question's
            template opens one.
        finished: True if the reply is complete; False if a limit truncated it.
        prompt_tokens: Tokens of the question as the model read it; None if unknown.
        tokens: Sampled tokens, including the stop token; None if unknown.
    """

    text: str
    finished: bool
    prompt_tokens: tuple[int, ...] | None = None
    tokens: tuple[int, ...] | None = None


class JudgeModel(Protocol):
    """Answers conversations: the policy, another model, or a server."""

    def escape_controls(self, text: str) -> str:
        """Escapes control tokens in text from models and users."""
        ...

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        """Number of excess tokens of each conversation; 0 if it fits or if unknown."""
        ...

    def answer_conversations(
        self, conversations: Sequence[ChatConversation], keys: Sequence[int]
    ) -> list[ModelAnswer | None]:
        """Replies to each conversation; None without a reply.

        Args:
            conversations: The questions, none too long.
            keys: Key of the random numbers (`lockstep.core.keyed`) of each.
        """
        ...


GenerateFunction = Callable[[Sequence[Request], SamplingParams], Batch]
"""The method `generate` of a `Sampler` or an open `SamplerSession`."""


@dataclass(frozen=True)
class ConversationEncoder:
    """The tokenizer and template that a model uses for conversations.

    Attributes:
        tokenizer: Tokenizer of the model.
        chat: True to apply the chat template; else messages are joined unchanged.
        max_prompt_tokens: Maximum length of a question, tokens.
        section: Section of the recipe, for messages.
        template_args: Arguments of the chat template.

    Raises:
        ValueError: The required chat template is missing.
    """

    tokenizer: PreTrainedTokenizerBase
    chat: bool
    max_prompt_tokens: int
    section: str = "judge"
    template_args: TemplateArgs = field(default_factory=dict)
    escaped: Callable[[str], str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.chat and self.tokenizer.chat_template is None:
            raise InputError(
                f"{self.section}.chat=true, but the judge's tokenizer has no chat template; set "
                f"{self.section}.chat=false, or use a model with one"
            )
        if self.chat:
            messages.require_template(self.tokenizer, self.template_args, self.section)
        object.__setattr__(self, "escaped", build_escape(control_tokens(self.tokenizer)))

    def encode_conversations(self, conversations: Sequence[ChatConversation]) -> list[list[int]]:
        """Token ids up to the beginning of the reply."""
        texts = list(map(self._render_text, conversations))
        return token_ids(self.tokenizer, texts, add_special_tokens=not self.chat)

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        """Counts excess tokens; see `JudgeModel`."""
        found: list[int] = []
        for ids in self.encode_conversations(conversations):
            found.append(max(0, len(ids) - self.max_prompt_tokens))
        return found

    def _render_text(self, conversation: ChatConversation) -> str:
        if self.chat:
            try:
                return messages.render_prompt(conversation, self.tokenizer, self.template_args)
            except messages.ChatTemplateError as error:
                raise InputError(
                    f"{self.section}: the judge's chat template rejects the question ({error}); "
                    f"set {self.section}.chat=false, or use a model with a different template"
                ) from error
        return "\n\n".join(str(message["content"]) for message in conversation)


@dataclass(frozen=True)
class SamplerAnswers:
    """A sampler that answers questions; implements `JudgeModel`.

    Attributes:
        generate: Samples the replies.
        reader: Tokenizer and template of the sampler's model.
        sampling: The sampling distribution of replies.
    """

    generate: GenerateFunction
    reader: ConversationEncoder
    sampling: SamplingParams

    def escape_controls(self, text: str) -> str:
        return self.reader.escaped(text)

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        return self.reader.count_excess_tokens(conversations)

    def answer_conversations(
        self, conversations: Sequence[ChatConversation], keys: Sequence[int]
    ) -> list[ModelAnswer | None]:
        if not conversations:
            return []
        prompts = list(map(tuple, self.reader.encode_conversations(conversations)))
        requests = [Request(ids, key) for ids, key in zip(prompts, keys, strict=True)]
        batch = self.generate(requests, self.sampling)
        rows = zip(
            prompts,
            batch.sequences(),
            batch.sequences("mask"),
            batch["truncated"].tolist(),
            strict=True,
        )
        return [
            self._build_answer(ids, sequence[mask].tolist(), bool(cut))
            for ids, sequence, mask, cut in rows
        ]

    def _build_answer(self, asked: tuple[int, ...], drawn: list[int], cut: bool) -> ModelAnswer:
        tokens = drawn if cut else self.sampling.drop_stop(drawn)
        if self.reader.chat:
            end = self.reader.tokenizer.decode(list(asked[-_TAIL:]))
        else:
            end = ""
        opened = opening_mark(str(end))
        return ModelAnswer(
            opened + decode_marked(self.reader.tokenizer, tokens), not cut, asked, tuple(drawn)
        )
