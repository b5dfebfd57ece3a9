"""Paths as users write them: `~` and `$NAME` stand for what they stand for in a shell. Imports no torch."""

from __future__ import annotations

import argparse
import os
import re

from lockstep.core.errors import InputError

HUB = "hf:"
"""The beginning of a name on the Hugging Face Hub (`lockstep.config.hub_name`)."""
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def expand(path: str) -> str:
    """Replaces `~`, `~user`, `$NAME` and `${NAME}` at once, since shells leave them in words like `run.folder=~/run`.

    Raises:
        InputError: If there is no such user or variable, or nothing that could be a path.
    """
    if not path.strip() or "\0" in path:
        raise InputError(f"{path!r} is no path")
    if path.startswith(HUB):
        raise InputError(f"{path} is a name on a hub, which only models and data files may have; give a path here")
    if "://" in path:
        raise InputError(f"{path} is an address; give a path on this machine, or a name on the hub: hf:owner/name")
    for match in _VARIABLE.finditer(path):
        name = match[1] or match[2]
        if not os.environ.get(name):
            raise InputError(f"the variable {name} of the path {path} is not set; set it, or write the path out")
    written = os.path.expandvars(path)
    expanded = os.path.expanduser(written)
    if expanded.startswith("~"):
        user = expanded.split("/", 1)[0]
        raise InputError(f"there is no user for {user} of the path {path}; write ./{path} for a name that begins so")
    return expanded


def path_argument(text: str) -> str:
    """The same for an argument of a command; `type` of argparse."""
    try:
        return expand(text)
    except InputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def source_argument(text: str) -> str:
    """The same for a model or a file of rows, which may be on a hub."""
    return text if text.startswith(HUB) else path_argument(text)


def model_argument(text: str) -> str:
    """The same for a model that may have a server's address, too."""
    return text if text.startswith(("http://", "https://")) else source_argument(text)
