"""Kept replies of judges: a question without one is asked again, and a stop string stays in a
reply.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lockstep.core.batch import Batch
from lockstep.core.types import Request, SamplingParams
from lockstep.judge.asking import ChatConversation, ConversationEncoder, ModelAnswer, SamplerAnswers
from lockstep.judge.remembered import RememberedAnswers
from lockstep.models.tokenizer import load_tokenizer

QUESTIONS: list[ChatConversation] = [({"role": "user", "content": text},) for text in "abc"]


class Silent:
    """Is asked nothing."""

    def generate(self, requests: Sequence[Request], sampling: SamplingParams) -> Batch:
        raise AssertionError(requests)


class Flaky:
    """Answers all questions but those of a list, and says what it was asked."""

    def __init__(self, silent: Sequence[str]) -> None:
        self.silent, self.asked = set(silent), list[str]()

    def escape_controls(self, text: str) -> str:
        return text

    def count_excess_tokens(self, conversations: Sequence[ChatConversation]) -> list[int]:
        return [0] * len(conversations)

    def answer_conversations(
        self, conversations: Sequence[ChatConversation], keys: Sequence[int]
    ) -> list[ModelAnswer | None]:
        texts = [str(conversation[0]["content"]) for conversation in conversations]
        self.asked += texts
        return [
            None if text in self.silent else ModelAnswer(f"said {text}", True) for text in texts
        ]


def test_resumed_judge_asks_again_only_questions_without_saved_reply(tmp_path: Path) -> None:
    file, server = tmp_path / "replies.jsonl", Flaky("c")
    remembered = RememberedAnswers(server, file, "judge")
    assert remembered.answer_conversations(QUESTIONS, [0, 0, 0]) == [
        ModelAnswer("said a", True),
        ModelAnswer("said b", True),
        None,
    ]
    file.write_bytes(file.read_bytes() + b'{"question": "half')
    server.silent = set()
    resumed = RememberedAnswers(server, file, "judge")
    said = [ModelAnswer(f"said {text}", True) for text in "abc"]
    assert resumed.answer_conversations([*QUESTIONS, *QUESTIONS], [0] * 6) == [*said, *said]
    assert server.asked == ["a", "b", "c", "c"]


def test_judge_reply_drops_stop_token_and_keeps_end_of_stop_string(assets: Path) -> None:
    reader = ConversationEncoder(load_tokenizer(assets / "models/stories260K/hf"), False, 64)
    sampled = SamplerAnswers(Silent().generate, reader, SamplingParams(8, stop_token_ids=(2,)))
    said = reader.tokenizer("Score: 5")["input_ids"][1:]
    texts = [sampled._build_answer((1,), drawn, False).text for drawn in (said, [*said, 2])]
    assert texts == [texts[0]] * 2
    assert texts[0].endswith("5")
