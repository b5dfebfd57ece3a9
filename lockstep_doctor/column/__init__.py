"""The column of log-probabilities: which stage behind the logits it leaves, and what the damage looks like."""

from lockstep_doctor.column.columns import TokenColumns

__all__ = ["TokenColumns"]
