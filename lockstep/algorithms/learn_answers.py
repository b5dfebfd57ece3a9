"""The supervised fine-tuning step and its data, shared with self-rewarding."""

from __future__ import annotations

from lockstep.algorithms.job import RunLength, StepResult
from lockstep.algorithms.rows import open_demonstrations
from lockstep.algorithms.setup import Setup
from lockstep.config import DataSection
from lockstep.core.types import PhaseTimer
from lockstep.data.answers import build_answer_batch, is_empty
from lockstep.data.demonstrations import DemonstrationRows, answer_of
from lockstep.data.files import FileGroup
from lockstep.data.selection import RowRule
from lockstep.learners.base import Learner, train
from lockstep.losses.cross_entropy import CrossEntropyLoss


def sft_step(
    step: int,
    position: int,
    *,
    policy: Learner,
    demonstrations: DemonstrationRows,
    phase: PhaseTimer,
    run_length: RunLength,
    seed: int,
) -> StepResult:
    """Runs one optimizer step on rows starting at `position`."""
    count = run_length.count_rows(position)
    with phase("data"):
        batch = build_answer_batch(demonstrations.read_at(position, count, seed))
    with phase("policy"):
        metrics = train(policy, batch, CrossEntropyLoss())
    return StepResult(metrics.with_prefix("policy"), position + count, batch.tokens.numel())


def open_answers(
    setup: Setup,
    files: FileGroup,
    data: DataSection,
    longest: int,
    option: str,
    kind: type[DemonstrationRows] = DemonstrationRows,
) -> DemonstrationRows:
    """Opens rows with answers, at most `longest` tokens long as set by `option`."""
    answered = RowRule(
        lambda row: "has an empty answer" if is_empty(answer_of(row, "row", data)) else None,
        "answered",
    )
    return open_demonstrations(files, data, setup.source, longest, option, answered, kind)
