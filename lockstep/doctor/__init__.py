"""The doctor from Python: `lockstep.doctor.table(model)`, and so on, as the commands of the same names.

Names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.lazy_names import export_lazily

if TYPE_CHECKING:
    from lockstep.api.doctor import analyze, locate, refit, table

__all__ = ["analyze", "locate", "refit", "table"]

__getattr__ = export_lazily(__name__, {"lockstep.api.doctor": __all__})


def __dir__() -> list[str]:
    return __all__
