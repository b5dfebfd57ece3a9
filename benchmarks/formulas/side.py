"""One library's side, in a process of its own, since importing its files with stand-ins changes a
process for good.

    python -m benchmarks.formulas.side verl CHECKOUT

It prints one JSON object: commit, and an outcome for each case.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.formulas.cases import judge
from benchmarks.formulas.catalog import FORMULAS
from benchmarks.formulas.rollouts import draw_rollouts
from benchmarks.harness import parser_of


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("library")
    parser.add_argument("checkout", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.compiler.set_stance("force_eager")  # what they compile is computed as it is written
    batch = draw_rollouts()
    peer = importlib.import_module(f"benchmarks.formulas.peers.{args.library}")
    files = peer.open_files(args.checkout)
    outcomes = [
        judge(args.library, case, FORMULAS[case.formula].reference, batch)
        for case in peer.cases(files)
    ]
    said = {
        "commit": files.commit(),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    print(json.dumps(said, ensure_ascii=False))


if __name__ == "__main__":
    main()
