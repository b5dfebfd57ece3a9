"""Records of generations: a prompt and its replies as a line of JSON; and the conversion of batches to replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lockstep.batch import Batch
from lockstep.data.templates import as_written
from lockstep.types import Prompt, Reply


def replies_of(batch: Batch, decode: Callable[[Sequence[int]], str], logprobs: bool) -> list[Reply]:
    """Converts a sampler's batch to replies.

    Args:
        batch: See `Sampler.generate`.
        decode: Converts a response's tokens to text.
        logprobs: True if replies carry log-probabilities.
    """
    columns = zip(
        batch.sequences(), batch.sequences("mask"), batch.sequences("sampler_logprob"), batch["truncated"], strict=True
    )
    replies = []
    for sequence, mask, logprob, truncated in columns:
        tokens, cut = sequence[mask].tolist(), bool(truncated)
        text = decode(tokens if cut or batch.sampling is None else batch.sampling.drop_stop(tokens))
        own = tuple(logprob[mask].tolist()) if logprobs else None
        replies.append(Reply(text, len(tokens), "length" if cut else "stop", own))
    return replies


def line_of(prompt: Prompt, replies: Sequence[Reply]) -> str:
    """A prompt and its replies as a line of JSON; the row's numbers keep their form.

    Raises:
        TypeError: The row holds a type that JSON does not have.
    """
    record: dict[str, Any] = {"id": prompt.id, "prompt": prompt.text}
    if prompt.tokens_cut:
        record["truncated_prompt"] = True
    if prompt.messages is not None:
        record["messages"] = list(prompt.messages)
    record["responses"] = [reply.text for reply in replies]
    record["num_tokens"] = [reply.num_tokens for reply in replies]
    record["finish_reasons"] = [reply.finish_reason for reply in replies]
    if all(reply.logprobs is not None for reply in replies):
        record["logprobs"] = [list(reply.logprobs or ()) for reply in replies]
    record["metadata"] = dict(prompt.row)
    return as_written(record) + "\n"


def account(records: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Totals of records."""
    reasons = [reason for record in records for reason in record["finish_reasons"]]
    return {
        "prompts": len(records),
        "responses": len(reasons),
        "unfinished_responses": sum(reason != "stop" for reason in reasons),
        "tokens": sum(sum(record["num_tokens"]) for record in records),
        "truncated_prompts": sum("truncated_prompt" in record for record in records),
    }
