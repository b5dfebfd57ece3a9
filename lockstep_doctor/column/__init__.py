"""The column of log-probabilities: which stage behind the logits it leaves, and what the damage looks like."""

from lockstep_doctor.column.columns import TokenColumns
from lockstep_doctor.column.examine import examine_columns
from lockstep_doctor.column.finding import Finding
from lockstep_doctor.column.halves import Processing, StageDifference, Stages, compare_stages, recompute
from lockstep_doctor.column.predicates import Atom, Predicate

__all__ = [
    "Atom",
    "Finding",
    "Predicate",
    "Processing",
    "StageDifference",
    "Stages",
    "TokenColumns",
    "compare_stages",
    "examine_columns",
    "recompute",
]
