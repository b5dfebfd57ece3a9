"""Score of `lockstep_doctor.locate` on faults without an author: random edits of models' code in `transformers`.

    python -m benchmarks.doctor_mutations --count 40 --seed 1

An edit changes a constant, an operator, the order of two arguments or the end of a slice, or drops a call. Kept are
those after which the model runs with the same weights, and is farther from the original than three times what rounding
makes. The truth is the line that was edited. `--seed` draws others: draw anew after a change of the doctor.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import io
import runpy
import sys
import tempfile
import time
import types
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, PretrainedConfig, PreTrainedModel

from benchmarks.mutate_code import Edit, apply, draw, edits_of, lines_of
from lockstep_doctor import Location, ModuleTap, compare_builds, locate, write_reproduction
from lockstep_doctor.locate import nats

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
}
FAMILIES = ("llama", "gemma2", "qwen3", "qwen3_moe", "phi3")
_TOKENS, _GAP = 24, 3e-4


@dataclass(frozen=True)
class Score:
    """What `locate` said about a fault.

    Attributes:
        removed: Share of the gap that undoing the segments removes.
        segment: True if the segment that was opened ran the function of the edit.
        line: True if the line is among the first three places.
        function: True if its function is.
        reproduces: True if the script fails on the fault and passes without it.
        cpu_s: Seconds of CPU.
    """

    removed: float
    segment: bool
    line: bool
    function: bool
    reproduces: bool
    cpu_s: float


class Original:
    """A model of one family, small and random, whose code can be edited."""

    def __init__(self, family: str) -> None:
        usual = AutoConfig.for_model(family)
        self.config: PretrainedConfig = AutoConfig.for_model(
            family,
            **{name: size for name, size in SIZES.items() if hasattr(usual, name)},
            attn_implementation="sdpa",
            pad_token_id=None,
        )
        self.experts = hasattr(usual, "num_experts")
        self.module = importlib.import_module(f"transformers.models.{family}.modeling_{family}")
        self.name = next(name for name in vars(self.module) if name.endswith("ForCausalLM"))
        self.path = str(self.module.__file__)
        self.tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        torch.manual_seed(0)
        self.model = self.build(self.module)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(0.15 * torch.randn_like(parameter) + float(parameter.ndim == 1))
        self.tokens = torch.randint(0, self.config.vocab_size, (_TOKENS,))

    def edited(self, edit: Edit) -> types.ModuleType:
        """The family's module after an edit."""
        made = types.ModuleType(f"{self.module.__name__}_edited")
        made.__file__, made.__package__ = self.path, self.module.__package__
        sys.modules[made.__name__] = made
        exec(compile(apply(self.tree, edit), self.path, "exec"), made.__dict__)
        return made

    def build(self, module: types.ModuleType) -> PreTrainedModel:
        model: PreTrainedModel = getattr(module, self.name)(self.config).eval()
        if self.experts:
            model.set_experts_implementation("eager")  # the others compute in no float64
        return model

    def mutant(self, edit: Edit) -> ModuleTap | None:
        """The model after an edit; None where it does not run, or computes the same."""
        try:
            model = self.build(self.edited(edit))
            model.load_state_dict(self.model.state_dict())
            tap = ModuleTap(model, "edited")
            logits = tap.run(self.tokens, {}).logits
        except Exception:  # an edit may break anything
            return None
        right = ModuleTap(self.model, "original").run(self.tokens, {}).logits
        return tap if logits.shape == right.shape and nats(right, logits, self.tokens) > _GAP else None


def score(original: Original, edit: Edit, tap: ModuleTap, folder: Path) -> Score:
    """Locates one fault."""
    begun = time.process_time()
    reference = ModuleTap(original.model, "original")
    witness = ModuleTap(copy.deepcopy(original.model).double(), "float64")
    found = locate(reference, tap, original.tokens, witness)
    module = sys.modules[f"{original.module.__name__}_edited"]
    built = compare_builds(lambda: original.build(module), lambda: original.build(original.module))
    cpu_s = time.process_time() - begun
    where = [] if built is None else [built[0]]
    first = [frame for suspect in found.suspects[:3] for frame in suspect.operator.stack[:2]] + where
    ran = [frame for operator in found.operators for frame in operator.stack] + where
    lines = lines_of(original.tree, edit)
    return Score(
        found.removed,
        any(frame.line in lines for frame in ran),
        any(frame.line in lines for frame in first),
        any(frame.function == edit.function for frame in first),
        bool(found.segments) and reproduces(original, tap, found, folder),
        cpu_s,
    )


HELD: dict[str, torch.nn.Module] = {}
"""The models of the reproduction that is being run, by name."""


def reproduces(original: Original, tap: ModuleTap, found: Location, folder: Path) -> bool:
    """True if the script of a location fails with the edited model, and passes with the original."""
    HELD.update(edited=tap.model, original=original.model)
    codes: dict[str, int] = {}
    for name in HELD:
        held = ModuleTap(tap.model, name, _BUILDER.format(name=name))
        script = write_reproduction(folder, held, found, original.tokens)
        with contextlib.redirect_stdout(io.StringIO()):
            try:
                runpy.run_path(str(script))
            except SystemExit as end:
                codes[name] = int(end.code or 0)
    return codes == {"edited": 1, "original": 0}


_BUILDER = """import copy
from benchmarks.doctor_mutations import HELD
model = copy.deepcopy(HELD["{name}"])
def read(tokens):
    return model(input_ids=tokens[None], use_cache=False).logits[0]"""


def main() -> None:
    parser = argparse.ArgumentParser(description="locate random edits of models' code")
    parser.add_argument("--count", type=int, default=25, help="faults of each family (default: 25)")
    parser.add_argument("--seed", type=int, default=0, help="which edits are drawn (default: 0)")
    parser.add_argument("--families", nargs="*", default=FAMILIES)
    options = parser.parse_args()
    print(f"{'family':12} kept of drawn  segment  line  function  reproduction  CPU s (median, worst)")
    for family in options.families:
        original = Original(family)
        edits = draw(edits_of(original.tree), f"{family} {options.seed}")
        scores, drawn = list[Score](), 0
        for edit in edits:
            if len(scores) == options.count:
                break
            drawn += 1
            tap = original.mutant(edit)
            if tap is None:
                continue
            with tempfile.TemporaryDirectory() as folder:
                scores.append(score(original, edit, tap, Path(folder)))
            if not (scores[-1].segment and scores[-1].function and scores[-1].reproduces):
                print(
                    f"  {edit.line} {edit.function}: {edit.kind} of {edit.text[:60]!r}: {scores[-1]}", file=sys.stderr
                )
        seconds = sorted(one.cpu_s for one in scores)
        shares = [sum(getattr(one, name) for one in scores) for name in ("segment", "line", "function", "reproduces")]
        print(
            f"{family:12} {len(scores):4} of {drawn:5} {shares[0]:8} {shares[1]:5} {shares[2]:9} {shares[3]:13}  "
            f"{seconds[len(seconds) // 2]:.1f}, {seconds[-1]:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    sys.modules["benchmarks.doctor_mutations"] = sys.modules["__main__"]
    main()
