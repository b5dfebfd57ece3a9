"""The ladder: tasks that tell algorithms and their options apart, each in a few CPU minutes.

    python -m benchmarks.ladder                      # runs what is missing, then prints all tables
    python -m benchmarks.ladder bandit --seeds 0 1   # one rung, two seeds
    python -m benchmarks.ladder --show               # the tables of what has been measured
    python -m benchmarks.ladder --show --page docs/ladder.md

Every run is trained by `lockstep train` on one thread. Results stand in
`benchmarks/ladder/results/`, by the digest of the recipe: what has been measured is not measured
again, and a run that was interrupted resumes.
"""

from __future__ import annotations

import os
from pathlib import Path

from benchmarks.harness import parser_of
from benchmarks.ladder.rung import list_rungs, open_rung
from benchmarks.ladder.runs import Ladder
from benchmarks.ladder.tables import table, write_page


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "rungs", nargs="*", choices=[*list_rungs(), []], help="rungs; none: all of them"
    )
    parser.add_argument("--arms", nargs="+", default=[], help="names of arms; none: all of them")
    parser.add_argument(
        "--seeds", nargs="+", type=int, help="seeds; none: as many as the rung says"
    )
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="runs at a time, each on one thread"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("build/ladder"), help="folder of runs and logs"
    )
    parser.add_argument("--show", action="store_true", help="run nothing")
    parser.add_argument(
        "--page",
        type=Path,
        help="also writes all rungs' figures below the mark of this page",
    )
    options = parser.parse_args()
    rungs = [open_rung(name) for name in options.rungs or list_rungs()]
    if not options.show:
        Ladder(options.out.resolve(), options.jobs).run(rungs, options.arms, options.seeds)
    print("\n".join(table(rung) for rung in rungs))
    if options.page is not None:
        write_page(options.page, [open_rung(name) for name in list_rungs()])


if __name__ == "__main__":
    main()
