"""A cache file of a judge's replies, so that no question is asked twice, even after resuming."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from lockstep.judge.asking import ChatConversation, JudgeModel, ModelAnswer
from lockstep.system.records import check_shape, is_file
from lockstep.system.whole_files import append_lines

_AT_ONCE = 256
"""Number of questions per write; a killed run repeats at most these."""


@dataclass(frozen=True)
class RepliedLine:
    """A line of the cache file.

    Attributes:
        question: Digest of a question and everything that its reply depends on.
        text: Text of the reply.
        finished: True if the reply is complete.
    """

    question: str
    text: str
    finished: bool


@dataclass(frozen=True)
class RememberedAnswers:
    """Caches the answers of another `JudgeModel`; implements `JudgeModel`.

    Attributes:
        answering: Answers new questions and questions without a reply.
        file: The replies; an incomplete last line, left by a killed process, is removed.
        who: Identity of the model and its sampling distribution.
    """

    answering: JudgeModel
    file: Path
    who: str
    _known: dict[str, ModelAnswer] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        if not is_file(self.file):
            return
        with self.file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    os.truncate(self.file, lines.tell() - len(line))
                    break
                wrong = f"{self.file}:{number} is not a judge's reply: {line[:60]!r}"
                reply = check_shape(line, RepliedLine, wrong, "restore the file")
                self._known[reply.question] = ModelAnswer(reply.text, reply.finished)

    def escape_controls(self, text: str) -> str:
        return self.answering.escape_controls(text)

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        return self.answering.count_excess_tokens(conversations)

    def answer_conversations(
        self, conversations: Sequence[ChatConversation], keys: Sequence[int]
    ) -> list[ModelAnswer | None]:
        """See `JudgeModel`; equal questions and keys give equal replies."""
        names: list[str] = []
        for conversation, key in zip(conversations, keys, strict=True):
            asked = json.dumps([self.who, list(map(dict, conversation)), key], sort_keys=True)
            names.append(hashlib.sha256(asked.encode()).hexdigest()[:32])
        missing = [(name, index) for index, name in enumerate(names) if name not in self._known]
        new = list(dict(missing).items())
        for start in range(0, len(new), _AT_ONCE):
            part = new[start : start + _AT_ONCE]
            replies = self.answering.answer_conversations(
                [conversations[i] for _, i in part], [keys[i] for _, i in part]
            )
            lines: list[RepliedLine] = []
            for (name, _), reply in zip(part, replies, strict=True):
                if reply is not None:
                    lines.append(RepliedLine(name, reply.text, reply.finished))
            text = "".join(f"{json.dumps(asdict(line))}\n" for line in lines)
            self.file.parent.mkdir(exist_ok=True)
            append_lines(self.file, text.encode())
            for line in lines:
                self._known[line.question] = ModelAnswer(line.text, line.finished)
        return list(map(self._known.get, names))
