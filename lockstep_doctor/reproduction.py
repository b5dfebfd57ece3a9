"""A script that fails on a fault and passes where it is mended: one segment of one engine, given its inputs."""

from __future__ import annotations

from pathlib import Path

import safetensors.torch
from torch import Tensor

from lockstep_doctor.locate import Location
from lockstep_doctor.modules import ModuleTap

MOST_LINES = 30
"""Of a script, with what makes the model."""

_SCRIPT = '''"""{what}"""

import sys, torch, safetensors.torch

{builder}
saved, found = safetensors.torch.load_file(__file__[: -len("repro.py")] + "inputs.safetensors"), {{}}
goal = "{goal}"

def put(address, values):  # the segment gets its inputs, and its output is kept
    for place, value in enumerate(values if isinstance(values, tuple) else (values,)):
        name = f"{{address}}|{{place}}"
        if name == goal:
            found[name] = value.detach().double().clone()
        elif name in saved:
            value.copy_(saved[name].reshape(value.shape))

for path in {{name.split("|")[0] for name in saved if "|" in name}}:
    module = model.get_submodule(path)
    module.register_forward_pre_hook(lambda _, values, path=path: put(path + "|in", values))
    module.register_forward_hook(lambda _, inputs, values, path=path: put(path + "|out", values))
with torch.no_grad():
    found["output"] = read(saved["tokens"]).double()
right = saved[goal].double().flatten()
error = float((found[goal].flatten() - right).norm() / right.norm())
print(f"relative error {{error:.2g}}; rounding explains {tolerance:.2g}")
sys.exit(not error <= {tolerance:.2g})
'''


def write_reproduction(folder: Path, tap: ModuleTap, found: Location, tokens_T: Tensor) -> Path:
    """Writes `repro.py` and `inputs.safetensors` for the first segment of a location; returns the script.

    Args:
        folder: Where to.
        tap: The engine that is wrong; it says how it is built.
        found: From `locate`, with a segment.
        tokens_T: The ids that it was found with.
    """
    segment = found.segments[0]
    goal = tap.address(segment.end)
    names = {cut: tap.address(cut) for cut in found.seen if cut.layer in (None, segment.end.layer)}
    inputs = {name: found.seen[cut].contiguous().clone() for cut, name in names.items() if name is not None}
    folder.mkdir(parents=True, exist_ok=True)
    safetensors.torch.save_file(inputs | {"tokens": tokens_T.contiguous()}, folder / "inputs.safetensors")
    what = f"{tap.name}: {segment} gives other values than the reference, for the same inputs."
    script = _SCRIPT.format(what=what, builder=tap.builder.rstrip(), goal=goal, tolerance=found.tolerance)
    (folder / "repro.py").write_text(script, encoding="utf-8")
    return folder / "repro.py"
