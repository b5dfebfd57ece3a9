"""The column of log-probabilities: whether it is that of the logits, and what the damage looks like."""

from lockstep_doctor.column.columns import Finding, TokenColumns
from lockstep_doctor.column.examine import examine_columns
from lockstep_doctor.column.formulas import describe_column

__all__ = ["Finding", "TokenColumns", "describe_column", "examine_columns"]
