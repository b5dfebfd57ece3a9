"""Numbers with units, for people."""

from __future__ import annotations

_UNITS = ("bytes", "kB", "MB", "GB", "TB")


def format_bytes(size: float) -> str:
    """A number of bytes with its unit, in three digits; 999.6 kB rounds to 1 MB."""
    for unit in _UNITS[:-1]:
        if size < 999.5:
            if unit != "bytes":
                return f"{size:.3g} {unit}"
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:,.3g} {_UNITS[-1]}"
