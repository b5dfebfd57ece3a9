"""The one error of everything here that reads what others wrote."""

from __future__ import annotations


class DumpError(ValueError):
    """A dump, a model's folder or a server's reply is not what it should be: one sentence, with what to do."""
