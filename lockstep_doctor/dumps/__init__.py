"""Dumps of ids and log-probabilities that any program wrote."""

from lockstep_doctor.dumps.errors import DumpError
from lockstep_doctor.dumps.names import FieldNames
from lockstep_doctor.dumps.read import Dump, read_dump

__all__ = ["Dump", "DumpError", "FieldNames", "read_dump"]
