"""The reference policy's part in a batch, which DPO and its relatives share."""

from __future__ import annotations

from lockstep.batch import Batch
from lockstep.learners.base import Learner, compute_logprobs


def with_reference(batch: Batch, reference: Learner) -> Batch:
    """Adds the column `ref_logprob`, log-probabilities under the frozen reference policy."""
    return batch.with_columns({"ref_logprob": compute_logprobs(reference, batch, "the reference policy")})
