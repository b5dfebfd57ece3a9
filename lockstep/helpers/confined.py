"""A child process behind the sandbox's filters: it reads what it can import, and writes to a folder of its own.

Run as a program in place of `process`, it is the child of a `ConfinedChild`. The filters hold for threads that start
after them, so they come first.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import weakref

from lockstep.config.user_code import find_file
from lockstep.guarded_imports import keep_guards
from lockstep.helpers import process
from lockstep.helpers.private_folder import make_private_folder, remove_private_folder
from lockstep.helpers.sandbox import filters, linux
from lockstep.helpers.sandbox.jail import SYSTEM_FILES


class ConfinedChild(process.Child):
    """A child process without network, that reads only what it can import and can signal no other process."""

    program = __name__

    def __init__(self, module: str, *arguments: str) -> None:
        super().__init__(module, *arguments)
        folder = make_private_folder("lockstep-reward-")
        self._environment = {"TMPDIR": folder.name}
        weakref.finalize(self, remove_private_folder, folder)  # before the process starts, so after it has ended


def _confine(reference: str, *options: str) -> None:
    """Puts the filters on this process, which will run the user's code at `reference`; `options` do not matter here.

    Raises:
        OSError: The system cannot do it.
    """
    folder = os.environ["TMPDIR"]
    guards = keep_guards()
    os.environ.clear()
    os.environ.update(guards)
    os.environ["TMPDIR"] = tempfile.tempdir = folder
    file = find_file(reference)
    own = [] if file is None else [str(file.resolve().parent)]
    linux.forbid_privileges()
    filters.confine_files({*SYSTEM_FILES, sys.prefix, sys.base_prefix, *sys.path, *own}, folder)
    filters.refuse_system_calls(signals=not filters.keeps_signals())
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    process.serve(_confine, *sys.argv[1:])
