"""Paths as users write them: `~` and `$NAME` stand for what they stand for in a shell.

Imports no torch.
"""

from __future__ import annotations

import argparse
import os
import re

from lockstep.core.errors import InputError

HUB = "hf:"
"""The beginning of a name on the Hugging Face Hub (`lockstep.config.hub_name`)."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def expand(path: str) -> str:
    """Replaces `~`, `~user`, `$NAME` and `${NAME}` at once, since shells leave them in words like
    `run.folder=~/run`.

    Raises:
        InputError: If there is no such user or variable, or nothing that could be a path.
    """
    if not path.strip() or "\0" in path:
        raise InputError(f"{path!r} is no path")
    if path.startswith(HUB) or "://" in path:
        raise InputError(
            f"{path} is not a path on this machine; only models and data files may be names on "
            "the hub, hf:owner/name"
        )
    names = [match[1] or match[2] for match in _VARIABLE.finditer(path)]
    expanded = os.path.expanduser(os.path.expandvars(path))
    if expanded.startswith("~") or not all(map(os.environ.get, names)):
        raise InputError(
            f"{path} names a user or a variable that does not exist; write the path out"
        )
    return expanded


def path_argument(text: str) -> str:
    """The same for an argument of a command; `type` of argparse."""
    try:
        return expand(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def source_argument(text: str) -> str:
    """The same for a model or a file of rows, which may be on a hub."""
    if text.startswith(HUB):
        return text
    return path_argument(text)


def model_argument(text: str) -> str:
    """The same for a model that may have a server's address, too."""
    if text.startswith(("http://", "https://")):
        return text
    return source_argument(text)
