"""The cost of the checks of values at borders (`lockstep/borders.py`) in a PPO step, beside the same step without them.

    python -m benchmarks.value_checks [--save]

Checks are on in every other step of one run, off in the rest, so that other work on the machine meets both alike; the
CPU seconds within the checks are counted, too, which is the finer figure: they are few. `toy` is the quick start's run,
`25M` a Llama of random weights, 512 wide and 8 layers deep, that answers 8 prompts in up to 36 tokens.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.harness import Row, environment, save, table
from lockstep import borders
from lockstep.config.loading import load
from lockstep.rollouts import sampler_session
from lockstep.run.callbacks import Callbacks
from lockstep.run.train import train

WIDE = (
    "model.from_recipe=null",
    "model.scratch={config: {model_type: llama, hidden_size: 512, intermediate_size: 1408, num_hidden_layers: 8, "
    "num_attention_heads: 16, num_key_value_heads: 16, max_position_embeddings: 128}}",
    "ppo.num_prompts_per_step=8",
    "ppo.global_batch_size=8",
)
RUNS = {"toy": ("ppo_quiz", 40, ()), "25M": ("ppo_arithmetic", 10, WIDE)}
WARMUP = 2


@dataclass
class Checks:
    """The checks, on or off, and the CPU seconds that they take.

    Attributes:
        on: Whether values are checked.
        inside_s: CPU seconds within checks since the last step.
        steps: Of each step with checks, its CPU seconds and those within them; of each without, the first.
    """

    on: bool = True
    inside_s: float = 0.0
    with_s: list[tuple[float, float]] = field(default_factory=list)
    without_s: list[float] = field(default_factory=list)
    _depth: int = 0
    _since: float = 0.0

    def wrap(self, check: Callable[..., None]) -> Callable[..., None]:
        """The check, timed while it is on."""

        def checked(*args: Any, **options: Any) -> None:
            if not self.on:
                return
            self._depth += 1
            began = time.process_time()
            try:
                check(*args, **options)
            finally:
                self._depth -= 1
                self.inside_s += 0.0 if self._depth else time.process_time() - began

        return checked

    def after_step(self, step: int, values: Mapping[str, float]) -> None:
        now = time.process_time()
        if step > WARMUP and self.on:
            self.with_s.append((now - self._since, self.inside_s))
        elif step > WARMUP:
            self.without_s.append(now - self._since)
        self._since, self.inside_s, self.on = now, 0.0, not self.on


def measure(recipe: str, steps: int, overrides: tuple[str, ...]) -> Checks:
    """One run, in the present folder."""
    found = Checks()
    require, responses = borders._require, sampler_session.require_responses
    borders._require, sampler_session.require_responses = found.wrap(require), found.wrap(responses)
    options = [f"run.max_steps={steps}", "run.validate_every=1000", "run.save_every=1000", "acceptance=[]"]
    try:
        train(load(recipe, [*options, *overrides]), callbacks=Callbacks(on_step=found.after_step))
    finally:
        borders._require, sampler_session.require_responses = require, responses
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/value_checks.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, details = list[Row](), dict[str, object]()
    with tempfile.TemporaryDirectory(prefix="value-checks-") as folder:
        os.chdir(folder)
        for name, run in RUNS.items():
            found = measure(*run)
            on, off = statistics.median(whole for whole, _ in found.with_s), statistics.median(found.without_s)
            inside = statistics.median(inside for _, inside in found.with_s)
            rows.append(Row(f"{name}: a step, CPU ms: without, with", off * 1e3, on * 1e3, off / on))
            rows.append(Row(f"{name}: of a step with checks, within them, CPU ms", on * 1e3, inside * 1e3, on / inside))
            print(f"{name}: {100 * inside / on:.3f} % of {on:.3f} s", flush=True)
            details[name] = {"share": inside / on, "with_s": found.with_s, "without_s": found.without_s}
    where = environment()
    print(where, table(rows, "without, or whole", "PPO steps"), sep="\n\n")
    if options.save:
        print(save("value_checks", where, rows, details))


if __name__ == "__main__":
    main()
