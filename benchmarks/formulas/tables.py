"""The results as Markdown: which formula is whose, and every difference with its reason, size, file
and line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.formulas.cases import Outcome
from benchmarks.formulas.catalog import FORMULAS

SIGNS = {"equal": "=", "convention": "≈", "substance": "≠", "unexplained": "?"}
LEGEND = (
    "= equal to rounding (10⁻⁵ of the largest number); ≈ differs by a convention; ≠ differs in "
    "substance; – has none. "
    "Several signs are several options, the default first; numbers are those of the second table."
)


@dataclass(frozen=True)
class Peer:
    """Another library.

    Attributes:
        title: Its name.
        url: Its repository.
        commit: What the figures are of.
    """

    title: str
    url: str
    commit: str


PEERS = {
    "verl": Peer(
        "verl", "https://github.com/verl-project/verl", "1dda039b9c6311889a9c9a26040677e1254814f9"
    ),
    "nemo_rl": Peer(
        "NeMo RL", "https://github.com/NVIDIA-NeMo/RL", "7ea279abfbeb698b092856d0dab61e7cf39bc909"
    ),
    "openrlhf": Peer(
        "OpenRLHF",
        "https://github.com/OpenRLHF/OpenRLHF",
        "3c3be6234e0cb353e76bb8019947db9dfe99fca7",
    ),
}


def title(library: str) -> str:
    """The name of a library."""
    return PEERS[library].title if library in PEERS else "Lockstep"


def matrix(outcomes: Sequence[Outcome]) -> str:
    """A row for each formula, a column for each library."""
    libraries = _libraries(outcomes)
    numbers = _numbers(outcomes)
    lines = [
        "| formula | " + " | ".join(title(name) for name in libraries) + " |",
        "|---|" + "---|" * len(libraries),
    ]
    for key, formula in FORMULAS.items():
        cells = [
            _cell([o for o in outcomes if (o.formula, o.library) == (key, name)], numbers)
            for name in libraries
        ]
        lines.append(f"| {formula.title} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def differences(outcomes: Sequence[Outcome]) -> str:
    """A row for each difference: whose, what, how large, where; and the option without it."""
    head = "| | formula | library | options | what differs | value | gradient | file and line |"
    lines = [head, "|---:|---|---|---|---|---:|---:|---|"]
    for outcome, number in _numbers(outcomes).items():
        same = [o for o in outcomes if (o.formula, o.library) == (outcome.formula, outcome.library)]
        better = [o.options for o in same if o.verdict == "equal" and o.options]
        options = outcome.options + (f"; equal with {', '.join(better)}" if better else "")
        cells = (
            f"{SIGNS[outcome.verdict]} {number}",
            FORMULAS[outcome.formula].title,
            title(outcome.library),
            options,
            outcome.because,
            _figure(outcome.value),
            _figure(outcome.gradient),
            _place(outcome),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def commits(found: Mapping[str, str]) -> str:
    """What was compared."""
    return "\n".join(
        f"* {title(name)}: {PEERS[name].url} at `{commit}`" for name, commit in found.items()
    )


def _libraries(outcomes: Sequence[Outcome]) -> list[str]:
    return list(dict.fromkeys(outcome.library for outcome in outcomes))


def _numbers(outcomes: Sequence[Outcome]) -> dict[Outcome, int]:
    """Numbers of the differences, by formula."""
    order = list(FORMULAS)
    differing = [outcome for outcome in outcomes if outcome.verdict != "equal"]
    differing.sort(key=lambda outcome: order.index(outcome.formula))
    return {outcome: number for number, outcome in enumerate(differing, 1)}


def _cell(outcomes: Sequence[Outcome], numbers: Mapping[Outcome, int]) -> str:
    signs = [
        f"{SIGNS[o.verdict]} {numbers[o]}" if o in numbers else SIGNS[o.verdict] for o in outcomes
    ]
    return " / ".join(signs) or "–"


def _place(outcome: Outcome) -> str:
    """File and line, of other libraries as a link to the commit that the table is of."""
    if outcome.library not in PEERS:
        return f"`{outcome.at}`"
    peer = PEERS[outcome.library]
    (file, line) = outcome.at.split(":")
    return f"[{file.rpartition('/')[2]}:{line}]({peer.url}/blob/{peer.commit}/{file}#L{line})"


def _figure(x: float | None) -> str:
    return "" if x is None else f"{x:.1e}"
