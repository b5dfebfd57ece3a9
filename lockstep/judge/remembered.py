"""A cache file of a judge's replies: a question that was answered before is not asked again, also by a resumed run.

A line is a digest of a question and all that its reply depends on, with the reply; or it counts the questions of a
call, and those of them that were asked. That a server gave no reply is recorded as well, so that a resumed run gets
exactly what it got before.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from lockstep.core.errors import InputError
from lockstep.judge.asking import Answer, Answering, Conversation
from lockstep.system.records import check_shape, is_file
from lockstep.system.whole_files import append

_AT_ONCE = 256
"""Questions that are asked before their replies are written: a killed run asks no more than these again."""


@dataclass(frozen=True)
class RepliedLine:
    """A line of the file: a question and its reply, or the counts of a call.

    Attributes:
        question: Digest of the question; None: the line counts.
        text: Text of the reply; None: there was none.
        finished: True if it came to its end.
        questions: Questions of a call.
        asked: Those of them that were asked.
    """

    question: str | None = None
    text: str | None = None
    finished: bool = False
    questions: int = 0
    asked: int = 0


@dataclass(frozen=True)
class RememberedAnswers:
    """Answers by another `Answering`, which is asked each question once; implements `Answering`.

    Attributes:
        answering: Answers questions that are new.
        file: The replies; a half-written line at its end, left by a killed process, is cut off.
        who: Identifies the model and its sampling distribution.
    """

    answering: Answering
    file: Path
    who: str
    _lines: dict[str, RepliedLine] = field(init=False, repr=False, compare=False, default_factory=dict)
    _begin: list[int] = field(init=False, repr=False, compare=False, default_factory=list)  # of the last call's lines

    def __post_init__(self) -> None:
        if is_file(self.file):
            self._load()

    def _load(self) -> None:
        self._lines.clear()
        with self.file.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    os.truncate(self.file, lines.tell() - len(line))
                    break
                self._note(_read(line, f"{self.file}:{number}"))

    def escape(self, text: str) -> str:
        return self.answering.escape(text)

    def excesses(self, conversations: Sequence[Conversation]) -> list[int]:
        return self.answering.excesses(conversations)

    def answers(self, conversations: Sequence[Conversation], keys: Sequence[int]) -> list[Answer | None]:
        """See `Answering`; a reply is the same whenever its question and its key are."""
        if not conversations:
            return []
        self._begin[:] = [self.file.stat().st_size if self.file.exists() else 0]
        names = [self._name(*asked) for asked in zip(conversations, keys, strict=True)]
        missing = {name: place for place, name in enumerate(names) if name not in self._lines}
        new = list(missing.items())
        for start in range(0, len(new), _AT_ONCE):
            part = new[start : start + _AT_ONCE]
            places = [place for _, place in part]
            replies = self.answering.answers([conversations[i] for i in places], [keys[i] for i in places])
            self._keep([_reply_line(name, reply) for (name, _), reply in zip(part, replies, strict=True)])
        self._keep([RepliedLine(questions=len(names), asked=len(new))])
        found = [self._lines[name] for name in names]
        return [None if line.text is None else Answer(line.text, line.finished) for line in found]

    def forget_last_unanswered(self) -> None:
        """Forgets the questions of the last call that had no reply, so that a resumed run asks them again."""
        [start] = self._begin
        with self.file.open("rb") as lines:
            lines.seek(start)
            kept = [line for line in lines if _read(line, str(self.file)).text is not None]
        os.truncate(self.file, start)
        append(self.file, b"".join(kept))
        self._load()

    def _name(self, conversation: Conversation, key: int) -> str:
        asked = json.dumps([self.who, [dict(message) for message in conversation], key], sort_keys=True)
        return hashlib.sha256(asked.encode()).hexdigest()[:32]

    def _keep(self, lines: Sequence[RepliedLine]) -> None:
        self.file.parent.mkdir(exist_ok=True)
        append(self.file, b"".join(map(_write, lines)))
        for line in lines:
            self._note(line)

    def _note(self, line: RepliedLine) -> None:
        if line.question is not None:
            self._lines[line.question] = line


def count_asked(file: Path) -> tuple[int, int]:
    """The questions of all calls that a file of replies counts, and those of them that were asked."""
    if not is_file(file):
        return 0, 0
    with file.open("rb") as lines:
        read = [_read(line, str(file)) for line in lines if line.endswith(b"\n") and line.startswith(_COUNTS)]
    return sum(line.questions for line in read), sum(line.asked for line in read)


_COUNTS = b'{"questions"'
_DIGEST = re.compile(r"[0-9a-f]{32}")


def _reply_line(name: str, reply: Answer | None) -> RepliedLine:
    return RepliedLine(name) if reply is None else RepliedLine(name, reply.text, reply.finished)


def _write(line: RepliedLine) -> bytes:
    if line.question is None:
        content = {"questions": line.questions, "asked": line.asked}
    else:
        content = {"question": line.question, "text": line.text, "finished": line.finished}
    return json.dumps(content).encode() + b"\n"


def _read(line: bytes, where: str) -> RepliedLine:
    wrong = f"{where} is no reply of a judge, but {line[:60]!r}"
    found = check_shape(line, RepliedLine, wrong, "restore the file")
    if found.question is not None and not _DIGEST.fullmatch(found.question):
        raise InputError(f"{wrong}; restore the file")
    return found
