"""Paths as users write them: `~` and `$NAME` expand as in a shell.

Imports no torch.
"""

from __future__ import annotations

import argparse
import os
import re

from lockstep.core.errors import InputError

HUB = "hf:"
"""Prefix of names on the Hugging Face Hub (`lockstep.config.hub_name`)."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def expand_path(path: str) -> str:
    """Expands `~`, `~user`, `$NAME` and `${NAME}`, which shells leave in `run.folder=~/run`.

    Raises:
        InputError: Unknown user or variable, or a text that cannot be a path.
    """
    if not path.strip() or "\0" in path:
        raise InputError(f"{path!r} is not a valid path")
    if path.startswith(HUB) or "://" in path:
        raise InputError(
            f"{path} is not a local path; only models and data files may be hub names "
            "(hf:owner/name)"
        )
    names = [match[1] or match[2] for match in _VARIABLE.finditer(path)]
    expanded = os.path.expanduser(os.path.expandvars(path))
    if expanded.startswith("~") or not all(map(os.environ.get, names)):
        raise InputError(f"{path} uses an unknown user or variable; write out the full path")
    return expanded


def path_argument(text: str) -> str:
    """Like `expand_path`, for a command's argument; usable as argparse's `type`."""
    try:
        return expand_path(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def source_argument(text: str) -> str:
    """Like `path_argument`, for a model or a file of rows that may be on the Hub."""
    if text.startswith(HUB):
        return text
    return path_argument(text)


def model_argument(text: str) -> str:
    """Like `source_argument`, for a model that may also be a server's URL."""
    if text.startswith(("http://", "https://")):
        return text
    return source_argument(text)
