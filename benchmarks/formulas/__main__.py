"""Advantages, losses, divergences and corrections of Lockstep and three other libraries, beside the
papers in float64.

    python -m benchmarks.formulas                          # Lockstep alone
    python -m benchmarks.formulas --peers FOLDER [--save]  # beside the others

The same rollouts (`rollouts.py`: ragged, a tool, a response that was cut off, outliers; fp32) go
through the functions of each library and through the papers' equations, written in float64
(`references.py`); losses in two micro-batches of unequal size, with the denominators that the
library's trainer passes. Compared are the value and the gradient with respect to log-probabilities,
values or logits, relative to the largest number. A difference counts as explained only if the
equation with that difference written into it, in float64, gives the library's numbers to rounding.

FOLDER holds checkouts, and nothing of theirs is kept in this project. Only the files with the
formulas are executed, in a process for each library, with stand-ins for what else they import
(`loading.py`); what a library adds outside of a function is added as it does, and its file says how
(`peers/`). These commands make them:

"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.formulas import ours
from benchmarks.formulas.cases import Outcome, judge
from benchmarks.formulas.catalog import FORMULAS
from benchmarks.formulas.rollouts import draw_rollouts
from benchmarks.formulas.tables import LEGEND, PEERS, commits, differences, matrix
from benchmarks.harness import environment, parser_of, save, side


@dataclass
class Comparison:
    """What was compared.

    Attributes:
        outcomes: Of all libraries.
        commits: What was checked out, by library.
        missing: Libraries that could not be asked, and why.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    commits: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def ask(self, library: str, checkout: Path) -> None:
        """Runs a library's side."""
        if not checkout.is_dir():
            self.missing[library] = f"there is no {checkout}"
            return
        try:
            said = side(
                Path(sys.executable), "benchmarks.formulas.side", library, str(checkout.resolve())
            )
        except RuntimeError as error:
            self.missing[library] = str(error)
            return
        self.outcomes += [Outcome(**row) for row in said["outcomes"]]
        self.commits[library] = said["commit"]


def of_lockstep() -> list[Outcome]:
    """Lockstep's side."""
    batch = draw_rollouts()
    return [
        judge("lockstep", case, FORMULAS[case.formula].reference, batch) for case in ours.cases()
    ]


def _commands() -> str:
    lines: list[str] = []
    for name, peer in PEERS.items():
        lines += [
            f"    git clone --filter=blob:none --no-checkout {peer.url} FOLDER/{name}",
            f"    git -C FOLDER/{name} checkout {peer.commit}",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = parser_of(f"{__doc__}{_commands()}", "formulas")
    parser.add_argument(
        "--peers", type=Path, metavar="FOLDER", help="checkouts of the other libraries"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"  # checkouts stay as they are
    comparison = Comparison(of_lockstep())
    for library in PEERS if args.peers else ():
        comparison.ask(library, args.peers / library)
    print(
        f"{environment()}\n\n{matrix(comparison.outcomes)}\n\n{LEGEND}\n\n{differences(comparison.outcomes)}"
    )
    print(f"\n{commits(comparison.commits)}")
    for library, reason in comparison.missing.items():
        print(f"{PEERS[library].title} was not compared: {reason}", file=sys.stderr)
    if args.save:
        details = {"commits": comparison.commits, "missing": comparison.missing}
        print(save("formulas", environment(), comparison.outcomes, details))
    unexplained = [o for o in comparison.outcomes if o.verdict == "unexplained"]
    if unexplained:
        raise SystemExit(
            "differences without an explanation: "
            + ", ".join(f"{o.library} {o.formula}" for o in unexplained)
        )


if __name__ == "__main__":
    main()
