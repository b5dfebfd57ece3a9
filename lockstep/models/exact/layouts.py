"""Layouts of ranks on which an exact learner has the bits of one process (level E4).

A table, not a measurement: bits must not depend on the machine that tried them.

* Data parallelism (`dp`, `dp_replicate`): rows never mix, and FSDP2 gathers whole weights.
* Context parallelism (`cp`): keys are gathered, and a query sums them in their order.
* Tensor parallelism (`tp`): heads, columns and tokens never mix, and sums over divided inputs are
  those of `chunks`. Heads of fewer than 16 numbers may use another kernel.
"""

from __future__ import annotations

from transformers import PreTrainedConfig

from lockstep.config import Parallel
from lockstep.models.exact.chunks import count_chunks
from lockstep.models.folder import head_size
from lockstep_logprobs.softmax import FEW_COLUMNS


def explain_inexact_layout(config: PreTrainedConfig, parallel: Parallel) -> str | None:
    """Names the option that splits a sum of a model across ranks; None if there is none."""
    if parallel.tp == 1:
        return None
    chunks = count_chunks(config)
    if chunks % parallel.tp:
        return (
            f"learner.parallel.tp is {parallel.tp}, but the model's sums have {chunks} chunks, "
            "which it does not divide"
        )
    size = head_size(config.get_text_config())
    if size < FEW_COLUMNS:
        return (
            f"learner.parallel.tp is {parallel.tp}, but the model's heads have {size} dimensions, "
            f"fewer than {FEW_COLUMNS}"
        )
    return None
