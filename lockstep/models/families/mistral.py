"""Mistral: a Llama whose layers may see a window of tokens."""

from __future__ import annotations

from lockstep.models.families.base import Family

FAMILY = Family("mistral", is_exact=True)
