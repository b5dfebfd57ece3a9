"""`lockstep train` with a critic that is read one token late: what it calls the value of a token
has seen that token.

    python -m benchmarks.unshifted train RECIPE key=value …

An experiment, and no option of the product: no one should train so. The fault is put in where this
file is imported, which learners in processes of their own do, too, because each child imports its
parent's script again. Actors of Ray do not, so a Ray cluster is refused. Every process that
computes such values says so once on standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache

from torch import Tensor, nn

from benchmarks.altered import name_runs_apart
from lockstep import cli
from lockstep.config.loading import load_recipe
from lockstep.core import align
from lockstep.core.errors import InputError
from lockstep.losses.base import Outputs
from lockstep.models import heads
from lockstep.models.laid_out import LaidOut

_aligned = heads.value_outputs


def one_token_late(batch: LaidOut, at: Callable[[Tensor], Tensor], unit: nn.Module) -> Outputs:
    """V as if nothing were shifted: V(x_≤t) stands at t."""
    _say()
    outputs = _aligned(batch, at, unit)
    assert outputs.value is not None
    assert outputs.final_value is not None
    late = outputs.value.roll(-1).index_copy(0, align.state_after(batch), outputs.final_value)
    return Outputs(value=late, final_value=outputs.final_value)


@cache
def _say() -> None:
    print(f"values are read one token late in process {os.getpid()}", file=sys.stderr, flush=True)


heads.value_outputs = one_token_late
name_runs_apart("benchmarks.unshifted", ("ppo",))


def main(arguments: Sequence[str]) -> int:
    if len(arguments) < 2 or arguments[0] != "train":
        sys.exit("usage: python -m benchmarks.unshifted train RECIPE [key=value …]")
    with suppress(InputError):  # which the command tells below
        loaded = load_recipe(
            arguments[1], [word for word in arguments[2:] if not word.startswith("--")]
        )
        if not loaded.training_recipe.cluster.on_this_machine:
            sys.exit(
                "benchmarks.unshifted: actors of Ray would shift values; leave cluster.backend at "
                "local"
            )
    return cli.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
