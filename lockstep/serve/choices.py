"""Drawn responses, and their JSON in each of the three forms."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from lockstep.core.batch import Batch
from lockstep.core.types import SamplingParams
from lockstep.data.thoughts import drop_thought, opening_mark
from lockstep.environments.options import ToolFormat
from lockstep.environments.tools import MARKS, ToolCall, parse_calls, replace_surrogates
from lockstep.models.source import ModelSource
from lockstep.rollouts.turns import FinishReason


@dataclass(frozen=True)
class DrawnChoice:
    """A drawn response.

    Attributes:
        index: Its place among the responses to its request.
        token_ids: What the policy drew, with the stop token.
        logprobs: Log-probabilities of these tokens, nats.
        text: Its text, without the stop token or the stop string.
        cut_text: True if the text lacks a stop string and what follows it.
        truncated: True if a limit ended it.
        weight_version: Version of the weights that drew it.
        batch: Prompt and response, see `Sampler.pieces`.
    """

    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    text: str
    cut_text: bool
    truncated: bool
    weight_version: int
    batch: Batch

    @classmethod
    def from_batch(
        cls, index: int, batch: Batch, sampling: SamplingParams, source: ModelSource
    ) -> DrawnChoice:
        """Reads a batch of one response."""
        tokens = batch.tokens[batch.mask].tolist()
        truncated = bool(batch["truncated"])
        text = source.decode(tokens if truncated else sampling.drop_stop(tokens))
        ends = [place for string in sampling.stop if (place := text.find(string)) >= 0]
        return cls(
            index,
            tuple(tokens),
            tuple(batch["sampler_logprob"][batch.mask].tolist()),
            text[: min(ends, default=len(text))],
            bool(ends),
            truncated,
            int(batch["version"]),
            batch,
        )

    @property
    def finish_reason(self) -> FinishReason:
        """The reason why it ended, in the words of OpenAI's API."""
        return "length" if self.truncated else "stop"

    @property
    def spans(self) -> list[dict[str, int]]:
        """The weights that drew its tokens: one version, since no response mixes any."""
        return [{"version": self.weight_version, "start": 0, "end": len(self.token_ids)}]


def build_message(
    choice: DrawnChoice, prompt: str, request_id: str, tool_format: ToolFormat | None
) -> tuple[dict[str, Any], FinishReason]:
    """The message of a choice, with its tool calls if all are well-formed, and why it ended.

    Args:
        choice: The choice.
        prompt: Text of the prompt.
        request_id: Id of the request, from which its calls get theirs.
        tool_format: Format of tool calls; None: the request has no tools.
    """
    message: dict[str, Any] = {"role": "assistant", "content": choice.text}
    if tool_format is None:
        return message, choice.finish_reason
    opened = opening_mark(prompt)
    found = parse_calls(choice.text, tool_format, opened)
    calls = [call for call in found if isinstance(call, ToolCall)]
    if not calls or len(calls) < len(found):
        return message, choice.finish_reason
    message["content"] = _find_text_before(choice.text, MARKS[tool_format], opened) or None
    message["tool_calls"] = [
        {
            "id": f"call_{request_id}_{choice.index}_{number}",
            "type": "function",
            "function": {
                "name": replace_surrogates(call.name),
                "arguments": replace_surrogates(json.dumps(call.arguments, ensure_ascii=False)),
            },
        }
        for number, call in enumerate(calls)
    ]
    return message, "length" if choice.truncated else "tool_calls"


def _find_text_before(text: str, mark: str, opened: str) -> str:
    """The text of a response before its first call, including its thought."""
    if not opened and text.lstrip().startswith(mark):
        return ""
    answer = drop_thought(text, opened)
    return text[: text.find(mark, len(text) - len(answer))].rstrip()
