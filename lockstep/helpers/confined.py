"""A child process under bubblewrap: it reads what it can import, and writes to its private /tmp."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from lockstep.config.user_code import find_file
from lockstep.helpers.process import Child, ChildError
from lockstep.helpers.sandbox.bubblewrap import SYSTEM_FILES, find_obstacle, map_to_itself, open_filter, wrap
from lockstep.system.guarded_imports import keep_guards, split_path

_TMP_MB = 1024
_LOCKSTEP = str(Path(__file__).parents[2])
"""The folder of this package, which is not in `sys.path` if it is installed as editable."""


class ConfinedChild(Child):
    """A child process without network, that reads only what it can import and sees no other process.

    The first argument of its module's `answers` is the place of the user's code.
    """

    def _popen(self, descriptor: int) -> subprocess.Popen[bytes]:
        obstacle = find_obstacle()
        if obstacle is not None:
            raise ChildError(f"{self._arguments[0]} cannot be confined here ({obstacle})")
        file = find_file(self._arguments[0])
        own = [] if file is None else [str(file.resolve().parent)]
        imported = [sys.prefix, sys.base_prefix, _LOCKSTEP, *filter(os.path.isabs, sys.path)]
        readable = map_to_itself([*SYSTEM_FILES, *imported, *own])
        with open(open_filter(), "rb") as filtered:
            # As process 1 it ends all that it has started as it ends.
            variables = {**keep_guards(), **split_path()}
            confined = wrap(readable, os.getcwd(), _TMP_MB, filtered.fileno(), variables, "--as-pid-1")
            return subprocess.Popen(
                [*confined, *self._command(descriptor)],
                stdin=subprocess.DEVNULL,
                pass_fds=(descriptor, filtered.fileno()),
                start_new_session=True,
            )
