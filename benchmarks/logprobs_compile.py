"""The first call of a compiled step: how long it takes with 1, 16 and 32 blocks of rows, forward and backward.

    python -m benchmarks.logprobs_compile

Each call has a process of its own and inductor's caches are off, so that nothing is compiled before. Seconds are CPU
seconds of that process and its children, medians of three. The blocks are the same work in more pieces: a step whose
loop dynamo unrolls takes longer the more there are.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys

from benchmarks.harness import environment

BLOCKS = (1, 16, 32)
REPEATS = 3

CALL = """
import sys, torch
torch.set_num_threads(1)
from lockstep_logprobs import Scoring, hidden_logprobs, vocab_logprobs
rows, vocabulary, width = 512, 4096, 64
kind, blocks = sys.argv[1], int(sys.argv[2])
scoring = Scoring(entropy=True, max_rows=rows // blocks)
token = torch.randint(vocabulary, (rows, 1))
head = torch.randn(vocabulary, width, requires_grad=True)
x = torch.randn(rows, vocabulary if kind == "logits" else width, requires_grad=True)
def step(x):
    found = vocab_logprobs(x, token, scoring) if kind == "logits" else hidden_logprobs(x, head, token, scoring)
    return found[0].sum() + found[1].sum()
if sys.argv[3] == "compiled":
    step = torch.compile(step, fullgraph=True)
step(x).backward()
"""


def cpu_seconds(kind: str, blocks: int, way: str) -> float:
    """CPU seconds of one process that starts, calls once and ends."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    variables = {**os.environ, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "-c", CALL, kind, str(blocks), way], check=True, env=variables)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    print(environment(1))
    for kind in ("logits", "hidden states"):
        for way in ("compiled", "not compiled"):
            seconds = [statistics.median(cpu_seconds(kind, n, way) for _ in range(REPEATS)) for n in BLOCKS]
            told = ", ".join(f"{n} blocks {s:.2f} s" for n, s in zip(BLOCKS, seconds, strict=True))
            print(f"{kind}, {way}: {told}; {seconds[-1] / seconds[0]:.2f}×", flush=True)


if __name__ == "__main__":
    main()
