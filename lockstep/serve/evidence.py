"""Proofs: the learner recomputes the log-probabilities of a response."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, uint8

from lockstep.core.batch import concat_batches
from lockstep.learners.base import Learner
from lockstep.objectives.tally import MismatchTally
from lockstep.samplers.base import Sampler
from lockstep.serve.choices import DrawnChoice
from lockstep.serve.refusals import RequestRefused

_SHARD = "dp0:pp0:pcp0:tp0"
"""Prefix of a tensor's name in vLLM's checksums; Lockstep shows whole tensors."""


@dataclass(frozen=True)
class KeptResponse:
    """A response that can be proven, and whose it is."""

    session: str
    choices: Sequence[DrawnChoice]


class ResponseArchive:
    """The newest responses, by request id.

    Args:
        most: Most responses that it keeps.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept = OrderedDict[str, KeptResponse]()

    def keep(self, request_id: str, response: KeptResponse) -> None:
        self._kept[request_id] = response
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def find(self, request_id: str, session: str, is_owner: bool) -> KeptResponse:
        """A response of a session; those of all sessions for the server's key.

        Raises:
            RequestRefused: It is unknown, too old, or another session's.
        """
        kept = self._kept.get(request_id)
        if kept is None or not (is_owner or kept.session == session):
            raise RequestRefused(
                404, f"no response {request_id[:80]!r} is kept in this session", "request_id"
            )
        return kept


def prove_response(
    request_id: str, kept: KeptResponse, learner: Learner, version: int
) -> Mapping[str, Any]:
    """Compares a response's log-probabilities with the learner's, bit by bit.

    Raises:
        RequestRefused: The weights have changed since.
    """
    drawn_by = kept.choices[0].weight_version
    if drawn_by != version:
        raise RequestRefused(
            409,
            f"weights of version {drawn_by} drew this response, but version {version} is loaded; "
            "prove responses before the next weight sync",
        )
    batch = concat_batches([choice.batch for choice in kept.choices])
    scored = learner.logprobs(batch)
    tally = MismatchTally.from_logprobs(scored, batch["sampler_logprob"], batch.mask, batch.lengths)
    rows = [scores[mask].tolist() for scores, mask in _split_rows(scored, batch.mask, kept)]
    return {
        "request_id": request_id,
        "weight_version": version,
        "tokens": int(tally.tokens),
        "mismatches": tally.mismatches,
        "choices": [{"index": index, "logprobs": row} for index, row in enumerate(rows)],
    }


def _split_rows(scored: Tensor, mask: Tensor, kept: KeptResponse) -> list[tuple[Tensor, Tensor]]:
    lengths = [int(choice.batch.lengths.sum()) for choice in kept.choices]
    return list(zip(scored.split(lengths), mask.split(lengths), strict=True))


def compute_checksums(learner: Learner, sampler: Sampler) -> dict[str, str]:
    """SHA-256 of each tensor that the engine computes with, by its name in vLLM's manner."""
    found = dict[str, str]()
    for name, _ in learner.weights():
        tensor = sampler.show(name).detach().cpu().contiguous()
        raw = tensor.reshape(-1).view(uint8).numpy().tobytes()
        found[f"{_SHARD}:{name}"] = hashlib.sha256(raw).hexdigest()
    return found
