"""Prompts and answers as batch rows: prompt, answer, stop token; only answers are trained."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

import torch
from transformers import PreTrainedTokenizerBase

from lockstep.config import DataSection
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Prompt
from lockstep.data import messages
from lockstep.data.messages import ChatMessage, ChatTemplateError, TemplateValues
from lockstep.data.prompts import (
    EncodedRows,
    build_conversation,
    is_chat,
    prompts_of,
    token_ids,
    too_long,
    values_of,
)
from lockstep.data.rows import DataError, DataRow, FileRows
from lockstep.data.selection import ANY_ROW, RowRule
from lockstep.data.templates import fill_template, list_fields, read_field
from lockstep.system.printable import print_note

_STAND_IN = "What stands for an answer"
_IN_TEXT = {"role", "content", "weight"}
"""Message fields that only hold its text or say whether to learn it."""


class AnswerEncoder:
    """Encodes answers: the text that the chat template adds to the prompt, and one stop token.

    Args:
        tokenizer: The model's tokenizer; its end-of-sequence token ends an answer.
        data: If prompts are conversations, answers end with the stop token that the chat template
            writes after them, if there is one.
        stops: The model's other stop tokens.

    Raises:
        ValueError: The tokenizer lacks an end-of-sequence token.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, data: DataSection, stops: Collection[int]
    ) -> None:
        end = tokenizer.eos_token_id
        if not isinstance(end, int):
            raise InputError(
                "the model's tokenizer has no end-of-sequence token to end completions; set "
                "eos_token"
            )
        self._tokenizer = tokenizer
        self._data = data
        self._eos = end
        self._stops = {end, *stops}
        added = tokenizer.added_tokens_decoder
        self._marks = {str(text): token for token, text in added.items() if token in self._stops}
        if is_chat(data):
            closing = messages.render_closing(tokenizer, data.template_args)
        else:
            closing = None
        self._closing = self._token_ids([closing])[0] if closing else []
        if closing is None:
            self._ends = 1
        else:
            self._ends = sum(token in self._stops for token in self._closing)
        self._prepends = False
        if is_chat(data):
            pieces = tokenizer.convert_ids_to_tokens(self._token_ids(["a"])[0])
            self._prepends = str(pieces[0]).startswith("▁")

    def __call__(
        self, prompts: Sequence[Prompt], answers: Sequence[ChatMessage]
    ) -> list[tuple[int, ...]]:
        """Token ids of answers to prompts, the stop token last."""
        if not is_chat(self._data):
            parts = [self._split_stop(_read_text(answer)) for answer in answers]
            bodies = self._token_ids([text for text, _ in parts], prompts)
            return [(*ids, end) for ids, (_, end) in zip(bodies, parts, strict=True)]
        texts: list[str] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            talk = prompt.messages or ()
            try:
                values = values_of(prompt.row, self._data)
                texts.append(self._write_after_prompt(talk, prompt.text, answer, values))
            except ChatTemplateError as error:
                raise DataError(
                    f"{prompt.id}: has an answer that cannot be learned: {error}"
                ) from error
        found = self._token_ids(texts, prompts)
        if self._prepends:
            for k, prompt in enumerate(prompts):
                given, whole = self._token_ids([prompt.text, prompt.text + texts[k]])
                if whole[: len(given)] == given:
                    found[k] = whole[len(given) :]
        return list(map(self._end_at_stop, found))

    def write_answer(self, row: DataRow, where: str, answer: ChatMessage) -> str:
        """Text of an answer that is learned.

        Raises:
            ChatTemplateError: The chat template does not write it after its prompt.
        """
        if not is_chat(self._data):
            return self._split_stop(_read_text(answer))[0]
        talk = build_conversation(row, where, self._data)
        values = values_of(row, self._data)
        return self._write_after_prompt(
            talk, messages.render_prompt(talk, self._tokenizer, values), answer, values
        )

    def examine_answer(self, row: DataRow, answer: ChatMessage) -> tuple[str | None, str]:
        """Returns the reason an answer cannot be learned, if any, and the text to learn."""
        wrong = self._find_fault(answer)
        if wrong is not None:
            return wrong, ""
        try:
            written = self.write_answer(row, "row", answer)
            calls = is_chat(self._data) and answer.get("tool_calls")
            if calls and written == self.write_answer(row, "row", {**answer, "tool_calls": None}):
                return (
                    "has tool_calls in its answer, which the tokenizer's chat template does not "
                    "render",
                    written,
                )
        except ChatTemplateError as error:
            return f"has an answer that cannot be learned: {error}", ""
        return None, written

    def _find_fault(self, answer: ChatMessage) -> str | None:
        """Returns the reason an answer cannot be learned, if known before rendering; else None."""
        weight = answer.get("weight")
        if weight is not None and weight not in (0, 1):
            return f"has the weight {weight} on its answer; the weight must be 1 (learned) or 0"
        if weight is not None and not weight:
            return "has weight 0 on its answer, so nothing is learned from it"
        inside = next(
            (mark for mark in self._marks if mark in self._split_stop(_read_text(answer))[0]), None
        )
        if inside is not None:
            return f"has {inside}, a stop token of the model, inside its answer"
        if is_chat(self._data):
            return None
        others = _list_other_fields(answer)
        for name in ("reasoning_content", "tool_calls"):
            if name in others:
                return f"has {name} in its answer, which data.chat=true renders"
        return None

    def note_unread(self, rows: Iterable[tuple[DataRow, Sequence[ChatMessage]]]) -> None:
        """Prints a note on fields of answers that do not change the learned text."""
        unread = Counter[str]()
        for row, answers in rows if is_chat(self._data) else ():
            found: set[str] = set()
            for answer in answers:
                found.update(self._find_unread(row, answer))
            unread.update(found)
        if unread:
            names = ", ".join(f"{name} ({count})" for name, count in sorted(unread.items()))
            print_note(
                f"the chat template of {self._tokenizer.name_or_path} omits fields of answers; "
                f"omitted fields and how many of the first rows have them: {names}"
            )

    def _find_unread(self, row: DataRow, answer: ChatMessage) -> Iterator[str]:
        """Yields the fields of an answer that do not change its text."""
        names = [name for name in _list_other_fields(answer) if name != "tool_calls"]
        if not names:
            return
        whole = self.write_answer(row, "row", answer)
        for name in names:
            rest = {key: value for key, value in answer.items() if key != name}
            if self.write_answer(row, "row", rest) == whole:
                yield name

    def _write_after_prompt(
        self, talk: Sequence[ChatMessage], opening: str, answer: ChatMessage, values: TemplateValues
    ) -> str:
        """The text that the template adds to a prompt for the assistant's answer."""
        answer = {
            **answer,
            "content": answer.get("content") and self._split_stop(answer["content"])[0],
        }
        whole = messages.render_whole([*talk, answer], self._tokenizer, values)
        if whole.startswith(opening):
            return whole[len(opening) :]
        example = messages.render_whole(
            [*talk, {**answer, "content": _STAND_IN}], self._tokenizer, values
        )
        before, _, after = example.rpartition(_STAND_IN)
        text = _read_text(answer)
        opened = opening[len(before) :]
        if (
            before
            and opening.startswith(before)
            and text.startswith(opened)
            and not _list_other_fields(answer)
        ):
            # the prompt opens a thought, which the template drops after it ends
            return text[len(opened) :] + after
        cut = _find_continuation(_read_text(talk[-1]).strip(), opening, before)
        if cut is None or not whole.startswith(before[:cut]):
            raise ChatTemplateError(
                "the tokenizer's chat template renders the prompt differently once it has an "
                "answer, such as when a prompt opens a thought that the answer lacks; write the "
                "answer as the template would, or use a different template"
            )
        return whole[cut:]

    def _split_stop(self, text: str) -> tuple[str, int]:
        """A text without its final stop tokens, and the token that should end it."""
        length = len(text)
        end = self._eos
        while True:
            bare = length
            while bare and text[bare - 1].isspace():
                bare -= 1
            mark = next((mark for mark in self._marks if text.endswith(mark, 0, bare)), None)
            if mark is None:
                return text[:length], end
            length = bare - len(mark)
            end = self._marks[mark]

    def _end_at_stop(self, ids: list[int]) -> tuple[int, ...]:
        """The tokens up to the template's stop token, or followed by the end-of-sequence token."""
        ends = [index for index, token in enumerate(ids) if token in self._stops]
        if self._ends and ends:
            return tuple(ids[: ends[-min(self._ends, len(ends))] + 1])
        length = len(ids) - len(self._closing)
        return (*(ids[:length] if ids[length:] == self._closing else ids), self._eos)

    def _token_ids(self, texts: Sequence[str], prompts: Sequence[Prompt] = ()) -> list[list[int]]:
        names = [prompt.id for prompt in prompts]
        return token_ids(self._tokenizer, texts, add_special_tokens=False, names=names)


def _find_continuation(question: str, opening: str, before: str) -> int | None:
    """Finds the index in `before`, a longer conversation, at which the prompt `opening` ends.

    The prompt ends after its last message `question` and the template's text after that message.
    """
    follows = opening.rpartition(question)[2]
    start = before.rfind(question) + len(question)
    if (
        not question
        or question not in opening
        or question not in before
        or not before.startswith(follows, start)
    ):
        return None
    return start + len(follows)


def _read_text(message: ChatMessage) -> str:
    return message.get("content") or ""


def _list_other_fields(answer: ChatMessage) -> list[str]:
    """Names of the non-empty fields other than the text."""
    return [name for name, value in answer.items() if name not in _IN_TEXT and value]


def is_empty(answer: ChatMessage) -> bool:
    """True for an answer with nothing to learn."""
    return (
        not _read_text(answer).strip()
        and not answer.get("tool_calls")
        and not answer.get("reasoning_content")
    )


def read_answer(template: str, row: DataRow, where: str) -> ChatMessage:
    """An answer: the filled template, or the last message if its only field is a conversation."""
    talk = _find_talk(template, row)
    if talk is None:
        return build_answer(fill_template(template, row, where))
    return read_field(row, talk)[-1]


def build_answer(text: str) -> ChatMessage:
    """A text as an assistant message."""
    return {"role": "assistant", "content": text}


def answer_fault(template: str, row: DataRow) -> str | None:
    """Returns the error in an answer, such as a list that is not a conversation; None if valid."""
    talk = _find_talk(template, row)
    if talk is not None:
        return messages.answer_fault(row, talk)
    lists: list[str] = []
    for name in list_fields(template):
        if isinstance(read_field(row, name), list | dict):
            lists.append(name)
    if lists:
        return f"has no text in the answer field {lists[0]!r}"
    return None


def _find_talk(template: str, row: DataRow) -> str | None:
    """The field whose conversation ends with the answer; None if the answer is text."""
    names = list_fields(template)
    if not names or template != f"{{{names[0]}}}":
        return None
    if isinstance(read_field(row, names[0]), list):
        return names[0]
    return None


TokenRuns = Sequence[Sequence[int]]
"""A sequence as runs of tokens, by turns given and learned, such as a prompt and its answer."""


def build_batch(rows: Sequence[TokenRuns]) -> Batch:
    """A batch of sequences; `mask` is true for learned tokens."""
    runs = [run for row in rows for run in row]
    lengths = torch.tensor(list(map(len, runs)))
    mask = torch.repeat_interleave(torch.tensor([False, True]).repeat(len(runs) // 2), lengths)
    sizes = torch.tensor([sum(map(len, row)) for row in rows])
    return Batch(torch.tensor([*chain(*runs)]), sizes, {"mask": mask})


@dataclass(frozen=True)
class AnsweredRow:
    """A prompt and the answers to learn.

    Attributes:
        prompt: The prompt, tokenized alone, exactly as a sampler receives it.
        answers: Token ids of each answer, the stop token last.
        scores: Scores of the answers; empty if rows have none.
        turns: The sequences of a conversation that is learned as a whole; `answers` has its last.
    """

    prompt: Prompt
    answers: tuple[tuple[int, ...], ...]
    scores: tuple[float, ...] = ()
    turns: Sequence[TokenRuns] = ()

    def give_first_token(self) -> AnsweredRow:
        """The row with the first token of its answer as its prompt, since its prompt is empty."""
        [answer] = self.answers
        return replace(self, prompt=replace(self.prompt, tokens=answer[:1]), answers=(answer[1:],))

    @property
    def learned_sequences(self) -> Sequence[TokenRuns]:
        """The sequences to learn: one per answer, or the turns of a conversation."""
        return self.turns or [(self.prompt.tokens, answer) for answer in self.answers]

    @property
    def longest_length(self) -> int:
        """Tokens of the longest sequence."""
        return max(sum(map(len, sequence)) for sequence in self.learned_sequences)


def build_answer_batch(rows: Sequence[AnsweredRow]) -> Batch:
    """A batch of rows to learn, one sequence per answer; `mask` is true for answer tokens."""
    scores = [score for row in rows for score in row.scores]
    sample = {"score": torch.tensor(scores)} if scores else {}
    batch = build_batch([sequence for row in rows for sequence in row.learned_sequences])
    return replace(batch, sample=sample, group_size=len(rows[0].answers))


class AnsweredRows(EncodedRows[AnsweredRow]):
    """The rows of a data file with answers to learn.

    Args:
        rows: The data.
        tokenizer: The model's tokenizer.
        data: Templates, limits, and whether to shuffle.
        max_tokens: Maximum length of prompt and answer together; rows above it count as over-long,
            like rows with long prompts.
        stops: See `AnswerEncoder`.
        rule: Further requirements on a row.
        limit: Name of `max_tokens` in messages.
    """

    def __init__(
        self,
        rows: FileRows,
        tokenizer: PreTrainedTokenizerBase,
        data: DataSection,
        max_tokens: int,
        stops: Collection[int] = (),
        rule: RowRule = ANY_ROW,
        limit: str = "max_tokens",
    ) -> None:
        self._answers = AnswerEncoder(tokenizer, data, stops)
        self._max_tokens = max_tokens
        self._limit = limit
        templates = {**data.prompt_templates, **data.completion_templates}
        super().__init__(rows, tokenizer, data, templates, rule, max_tokens, limit)
        self._answers.note_unread(
            (row, self._read_answers(row, "row")) for row in self.selection.read_first()
        )

    @abstractmethod
    def _read_answers(self, row: DataRow, where: str) -> Sequence[ChatMessage]:
        """The answers of a row."""

    def _read_scores(self, row: DataRow) -> tuple[float, ...]:
        """Scores of the answers of a row."""
        return ()

    def _encode_rows(
        self, rows: FileRows, numbers: Sequence[int], contents: Sequence[DataRow]
    ) -> list[AnsweredRow]:
        has_one = len(self._data.completion_templates) < 2
        prompts = prompts_of(rows, numbers, contents, self._tokenizer, self._data, has_one)
        answers = [
            self._read_answers(row, rows.name_row(i))
            for i, row in zip(numbers, contents, strict=True)
        ]
        encoded = [self._answers(prompts, column) for column in zip(*answers, strict=True)]
        scores = map(self._read_scores, contents)
        found: list[AnsweredRow] = []
        for parts in zip(prompts, zip(*encoded, strict=True), scores, strict=True):
            found.append(AnsweredRow(*parts))
        return [row if row.prompt.tokens else row.give_first_token() for row in found]

    def _find_length_fault(self, item: AnsweredRow) -> str | None:
        if item.longest_length <= self._max_tokens:
            return too_long(item.prompt, self._data.max_prompt_tokens)
        return (
            f"prompt and answer have {item.longest_length} tokens, more than "
            f"{self._limit}={self._max_tokens}"
        )
