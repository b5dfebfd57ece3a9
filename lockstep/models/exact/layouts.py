"""Layouts of ranks on which an exact learner has the bits of one process (level E4).

A table, not a measurement: bits must not depend on the machine that tried them.

* Data parallelism (`dp`, `dp_replicate`): rows never mix, and FSDP2 gathers whole weights.
* Context parallelism (`cp`): keys are gathered, and a query sums them in their order.
"""

from __future__ import annotations

from transformers import PreTrainedConfig

from lockstep.config import Parallel


def explain_inexact_layout(config: PreTrainedConfig, parallel: Parallel) -> str | None:
    """Names the option that splits a sum of a model across ranks; None if there is none."""
    if parallel.tp > 1:
        return f"learner.parallel.tp is {parallel.tp}, which splits sums across ranks"
    return None
