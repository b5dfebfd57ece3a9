"""The libraries whose keys are known here."""

from __future__ import annotations

from lockstep.errors import InputError
from lockstep.foreign import nemo_aligner, nemo_rl, openrlhf, trl, verl
from lockstep.foreign.words import Config, Library

LIBRARIES = (nemo_rl.LIBRARY, verl.LIBRARY, trl.LIBRARY, openrlhf.LIBRARY, nemo_aligner.LIBRARY)
"""All of them, in the order of docs/coming_from.md."""
CONVERTIBLE = {library.option: library for library in LIBRARIES if library.option}
"""Those whose configs are converted, by the word for `--from`."""


def detect(config: Config) -> Library:
    """The library that has the most of a config's keys.

    Raises:
        InputError: None has any, or two have as many.
    """
    counts = {
        library.option: sum(library.find(key) is not None for key in config.given) for library in CONVERTIBLE.values()
    }
    most = max(counts.values())
    best = [option for option, count in counts.items() if count == most]
    if not most or len(best) > 1:
        found = "none of its keys is known" if not most else f"its keys are those of {' and of '.join(best)}"
        raise InputError(f"{found}; say whose config it is: --from {' or --from '.join(CONVERTIBLE)}")
    return CONVERTIBLE[best[0]]
