"""The end of a command: what it raised, as words for the user and as an exit code."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable

from lockstep import exit_codes
from lockstep.disk import is_user_error
from lockstep.errors import LockstepError
from lockstep.printable import print_text
from lockstep.run.stop import Stopped
from lockstep.unread import is_unread


def end_with_code(command: Callable[[], int], show_traceback: bool = False) -> int:
    """Runs a command and returns its exit code; an error of the user's is one sentence on standard error.

    Args:
        command: The command; returns its own code.
        show_traceback: Raise errors instead.
    """
    try:
        return command()
    except (LockstepError, OSError) as error:
        if show_traceback or (isinstance(error, BrokenPipeError) and is_unread(sys.stdout)):
            raise
        print_text(f"lockstep: {error!s}", file=sys.stderr)  # it may quote a stranger's file
        if isinstance(error, LockstepError):
            return error.exit_code
        return exit_codes.INPUT if is_user_error(error) else exit_codes.CRASH
    except Stopped as stopped:
        print_text(f"lockstep: {stopped}", file=sys.stderr)
        return stopped.code
    except KeyboardInterrupt:
        print_text("lockstep: interrupted; the same command resumes from the newest checkpoint", file=sys.stderr)
        return exit_codes.INTERRUPTED
    except Exception:
        if show_traceback:
            raise
        traceback.print_exc()
        return exit_codes.CRASH
