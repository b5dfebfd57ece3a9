"""Dumps of ids and log-probabilities that any program wrote, columns of servers, and a model beside both."""

from lockstep_doctor.dumps.judge import DumpLocation, SideVerdict, describe_dump, locate_dump
from lockstep_doctor.dumps.names import KNOWN, DumpError, FieldNames
from lockstep_doctor.dumps.read import Dump, read_dump
from lockstep_doctor.dumps.server import Server, score_by_url

__all__ = [
    "KNOWN",
    "Dump",
    "DumpError",
    "DumpLocation",
    "FieldNames",
    "Server",
    "SideVerdict",
    "describe_dump",
    "locate_dump",
    "read_dump",
    "score_by_url",
]
