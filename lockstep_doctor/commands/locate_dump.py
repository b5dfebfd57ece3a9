"""`lockstep doctor locate DUMP --model FOLDER`: the side that leaves the model."""

from __future__ import annotations

import sys
from pathlib import Path

from lockstep import exit_codes
from lockstep.config.hub import fetch_model
from lockstep.errors import InputError
from lockstep_doctor.dumps.judge import describe_dump, locate_dump
from lockstep_doctor.dumps.names import DumpError, FieldNames


def locate_file(dump: str, model: str, names: FieldNames) -> int:
    """Prints which side of a dump leaves the model, and at which stage; returns the exit code.

    Args:
        dump: Its file or folder.
        model: Folder of the model, or of the finished run that trained it.
        names: Of the dump's columns.

    Raises:
        InputError: The dump or the model cannot be read.
    """
    try:
        found = locate_dump(Path(dump), fetch_model(model), names, heard=lambda phase: print(phase, file=sys.stderr))
    except DumpError as error:
        raise InputError(str(error)) from error
    print("\n".join(describe_dump(found)))
    return exit_codes.BROKEN if found.wrong else exit_codes.OK
