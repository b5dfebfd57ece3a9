"""Where the torch sampler spends CPU time: products, attention, drawing, and all else, which is mostly Python.

    python -m benchmarks.generate_profile [--sizes toy 100M]

A clock interrupts the call each millisecond and notes what runs, with the CPU time since it last did. So nothing is
slowed down, and nothing need be known of the sampler but a few names: within functions that are called as in `PARTS`,
time belongs to that part; a line that calls a product by itself is a product; norms, activations, rotary positions and
the interpreter are the rest. Responses are uneven, and the pass over their prompts counts as one.
"""

from __future__ import annotations

import argparse
import linecache
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from itertools import product
from types import FrameType

import torch

from benchmarks.generate_sides import LOADS, Case, Lockstep, build_lm, prepare
from benchmarks.harness import environment
from lockstep.samplers.torch.sampler import TorchSampler

PARTS = {
    "draw": {"draw", "token_scores", "uniforms", "append"},
    "attention": {"attention", "attend_by", "add", "move", "remove"},
}
"""Names of functions whose time, with all that they call, belongs to a part."""
PRODUCT = re.compile(r"\b(linear|addmm|mm|matmul)\(|[\w\])] @ ")
REST = "rest"
COLUMNS = ("products", "attention", "draw", REST)


def classify(frame: FrameType | None) -> str:
    """The part that a frame's work belongs to."""
    line = "" if frame is None else linecache.getline(frame.f_code.co_filename, frame.f_lineno or 0)
    while frame is not None:
        for part, names in PARTS.items():
            if frame.f_code.co_name in names:
                return part
        frame = frame.f_back
    return "products" if PRODUCT.search(line) else REST


def profile(call: Callable[[], object], seconds: float) -> tuple[dict[str, float], int]:
    """CPU seconds of each part over at least so many CPU seconds of calls, and the number of calls."""
    spent, last = defaultdict[str, float](float), time.process_time()

    def note(_: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.process_time()
        spent[classify(frame)] += now - last
        last = now

    before = signal.signal(signal.SIGALRM, note)
    signal.setitimer(signal.ITIMER_REAL, 1e-3, 1e-3)
    calls, begun = 0, last
    while time.process_time() - begun < seconds:
        call()
        calls += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
    return spent, calls


def measure(size: str, rows: int, exact: bool, seconds: float) -> str:
    """A row of the table."""
    lm = prepare(build_lm(size), exact)
    sampler = TorchSampler(lm, rows)
    side = Lockstep(sampler, Case.of(size, responses=rows))
    side()
    per_call = sampler.passes
    spent, calls = profile(side, seconds)
    total, tokens = sum(spent.values()), sum(side.tokens[1:])
    parts = " | ".join(f"{1e3 * spent[part] / calls / per_call:.2f} ({spent[part] / total:.0%})" for part in COLUMNS)
    how = "exact" if exact else "inexact"
    return (
        f"| {size}, {rows} rows, {how} | {1e6 * total / tokens:.0f} | {1e3 * total / calls / per_call:.2f} | {parts} |"
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["toy", "100M"], choices=LOADS)
    parser.add_argument("--rows", type=int, nargs="+", help="responses side by side; default: those of the size")
    parser.add_argument("--inexact", action="store_true", help="by PyTorch's own kernels too")
    parser.add_argument("--seconds", type=float, default=8.0, help="CPU seconds of each row, at least")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(environment())
    print(f"| CPU time | µs per token | ms per pass | {' | '.join(f'{part}, ms per pass' for part in COLUMNS)} |")
    print("|---|" + "---:|" * (2 + len(COLUMNS)))
    for size in args.sizes:
        for rows, exact in product(args.rows or LOADS[size][:1], (True, False) if args.inexact else (True,)):
            print(measure(size, rows, exact, args.seconds), flush=True)


if __name__ == "__main__":
    main()
