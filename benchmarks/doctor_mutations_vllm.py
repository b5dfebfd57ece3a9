"""Score of `lockstep_doctor.locate` on random edits of vLLM's code, inside vLLM, against `transformers`.

    python -m benchmarks.doctor_mutations_vllm --count 50 --seed 1

An edit is made in the functions of vLLM that are alive, an engine is built with it, and located. Drawn are lines that
run when a model is built, loaded and read. Each result is a line of a file, and what is there is not done again: the
command resumes where it was stopped, and an edit during which the process died is one that crashed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import gc
import io
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.lines import lines_that_run, watch_lines
from benchmarks.mutate_code import Edit, Swap, draw, edits_of, find_functions, lines_of
from lockstep.samplers.vllm.environment import prepare

prepare()  # before vLLM is imported

import vllm.distributed.parallel_state as parallel  # noqa: E402
from vllm.config import set_current_vllm_config  # noqa: E402
from vllm.model_executor.layers import rotary_embedding  # noqa: E402
from vllm.model_executor.model_loader import get_model  # noqa: E402

from lockstep.samplers.vllm import tapped_worker  # noqa: E402
from lockstep.samplers.vllm.loading import watch_loading  # noqa: E402
from lockstep.samplers.vllm.reproduction import write_vllm_reproduction  # noqa: E402
from lockstep.samplers.vllm.tap import open_vllm  # noqa: E402
from lockstep_doctor import ModuleTap, locate, modules  # noqa: E402
from lockstep_doctor.builds import watch_build  # noqa: E402
from lockstep_doctor.engines import EngineOptions  # noqa: E402
from lockstep_doctor.locate import nats  # noqa: E402
from lockstep_doctor.operators import Frame  # noqa: E402

FAMILIES = ("llama", "qwen3", "gemma2", "phi3", "qwen3_moe")
SIZES = {
    "vocab_size": 97,
    "hidden_size": 128,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 48,
    "max_position_embeddings": 64,
    "sliding_window": 16,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
TOKENS = torch.arange(24) * 7 % 97
MOST_CPU_S = 120
_LEAST = 5e-5
"""Nats below which a gap is rounding in any program."""

_MODELS = {"phi3": ("llama", "phi3")}
_LAYERS = (
    "layers/layernorm.py",
    "layers/rotary_embedding/__init__.py",
    "layers/rotary_embedding/base.py",
    "layers/activation.py",
    "layers/attention/attention.py",
    "layers/linear.py",
    "layers/vocab_parallel_embedding.py",
    "layers/logits_processor.py",
    "layers/utils.py",
    "../ir/ops/layernorm.py",
    "../v1/attention/backends/cpu_attn.py",
)
_EXPERTS = ("router/cpu_router.py", "experts/cpu_moe.py", "routed_experts.py", "runner/moe_runner.py")
_LOADING = (
    "models/utils.py",
    "model_loader/weight_utils.py",
    "model_loader/utils.py",
    "model_loader/default_loader.py",
)


@dataclass(frozen=True)
class Score:
    """What was said about an edit.

    Attributes:
        outcome: `kept`, `equivalent`, or `crashed`: by an exception, with the process, or for want of time.
        gap: Nats.
        segment: True if the segment that was opened ran the line, or what built a value that is measured wrong did.
        named: True if its function is among those of the first three suspects.
        reproduces: True if the script fails with the edit and passes without it.
        removed: Share of the gap that undoing removes.
        cpu_s: Of building and locating.
        said: The first places.
    """

    outcome: str
    gap: float = 0.0
    segment: bool = False
    named: bool = False
    reproduces: bool = False
    removed: float = 0.0
    cpu_s: float = 0.0
    said: tuple[str, ...] = ()


def build(family: str) -> PreTrainedModel:
    """A small random model as `transformers` has it."""
    usual = AutoConfig.for_model(family)
    sizes = {name: size for name, size in SIZES.items() if getattr(usual, name, None) is not None}
    config = AutoConfig.for_model(family, **sizes, pad_token_id=None, eos_token_id=None, bos_token_id=None)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(0.1 * torch.randn(tensor.shape, generator=chance) + float(tensor.ndim == 1))
    return model


def _kernel(family: str) -> str:
    """The attention of `transformers`: its sdpa leaves out the cap on gemma2's scores."""
    return "eager" if family == "gemma2" else "sdpa"


class Judge:
    """A family, and a running vLLM whose model is built anew with one edit after another."""

    def __init__(self, family: str, folder: Path) -> None:
        self.folder = folder
        build(family).save_pretrained(folder)
        with watch_build() as models:  # as the engine hf is opened
            model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation=_kernel(family)).eval()
            models.append(model)
        if hasattr(model.config, "num_experts"):
            model.set_experts_implementation("eager")
        self.reference = ModuleTap(model, "transformers")
        self.witness = ModuleTap(copy.deepcopy(model).double(), "float64")
        self.right = self.reference.run(TOKENS, {})
        root = Path(str(rotary_embedding.__file__)).parents[2]
        own = [f"models/{name}.py" for name in _MODELS.get(family, (family,))]
        experts = [f"layers/fused_moe/{name}" for name in _EXPERTS if family.endswith("moe")]
        files = [os.path.normpath(root / name) for name in (*own, *_LAYERS, *experts, *_LOADING)]
        self.open()
        self.least = max(3 * self._gap(), _LEAST)
        with lines_that_run(files) as ran:
            self._install(self._build())
            self._gap()
        assert ran, "the lines of these files are watched by their names"
        self.edits = [edit for file in files for edit in edits_of(file) if (file, edit.line) in ran]
        gc.unfreeze()  # vLLM hides its functions from those who look for them
        for file in files:
            find_functions(file)
        gc.freeze()  # or each build would look through all of them for garbage

    def open(self) -> None:
        """Starts an engine."""
        self._opened = contextlib.ExitStack()
        self.tap = self._opened.enter_context(open_vllm(self.folder, EngineOptions()))
        engine: Any = self.tap.engine
        self._runner = engine.model_executor.driver_worker.worker.model_runner
        self._config = engine.vllm_config

    def close(self) -> None:
        """Ends the engine."""
        self._opened.close()
        parallel.cleanup_dist_env_and_memory()

    def _gap(self) -> float:
        return nats(self.right.logits, self.tap.run(TOKENS, {}).logits, TOKENS)

    def _build(self) -> Any:
        """Builds and loads vLLM's model; returns it, and the layers that the engine is to know by name."""
        fresh = copy.copy(self._config)
        fresh.compilation_config = copy.copy(self._config.compilation_config)
        fresh.compilation_config.static_forward_context = {}
        fresh.compilation_config.static_all_moe_layers = []
        rotary_embedding._ROPE_DICT.clear()
        with set_current_vllm_config(fresh):
            return get_model(vllm_config=fresh), fresh.compilation_config.static_forward_context

    def _install(self, built: Any) -> None:
        """Puts a model in the place of the engine's."""
        model, layers = built
        known = self._config.compilation_config.static_forward_context
        for name, layer in layers.items():
            if hasattr(layer, "kv_cache"):
                layer.kv_cache, layer.isa = known[name].kv_cache, known[name].isa
        known.update(layers)
        self._runner.model = model

    def score(self, edit: Edit) -> Score:
        """Makes one edit, and scores what is said about it."""
        begun = time.process_time()
        try:
            swap = Swap.of(edit)
            built = self._build_with(swap, swap.after)
        except Exception as error:  # an edit may break anything
            return _crash(error)
        try:
            self._install(built)
            with swap.running(swap.after):
                gap = self._gap()
            if gap <= self.least:
                return Score("equivalent", gap)
            located = self._locate(edit, swap, gap, begun)
        except Exception as error:  # the engine, too
            self._recover()
            return _crash(error)
        return located.score(self._reproduces(swap, located))

    def _recover(self) -> None:
        """Builds the model as it is; starts another engine if this one does not read as it did."""
        try:
            self._install(self._build())
            if self._gap() <= self.least:
                return
        except Exception:  # so it is broken
            pass
        self.close()
        self.open()

    def _locate(self, edit: Edit, swap: Swap, gap: float, begun: float) -> Located:
        with swap.running(swap.after), watch_lines(modules, tapped_worker) as traced:
            found = locate(self.reference, self.tap, TOKENS, self.witness)
        steps = [suspect.operator for place in found.places[:1] for suspect in place.suspects]
        first = [frame for step in steps[:3] for frame in step.stack[:2]]
        ran = chain(*(chain(step.stack, step.lines) for step in steps), *traced[:2])
        return Located(
            found,
            gap,
            any(_is_at(frame, edit) for frame in ran),
            _has_function(first, edit),
            time.process_time() - begun,
            (*map(str, found.segments[:2]), *(f"{Path(f.file).name}:{f.line} {f.function}" for f in first)),
        )

    def _build_with(self, swap: Swap, codes: Any) -> Any:
        with swap.running(codes), watch_loading():
            return self._build()

    def _reproduces(self, swap: Swap, located: Located) -> bool:
        """True if the script fails with the edit and passes without it."""
        if not located.found.segments:
            return False
        codes: list[int] = []
        with tempfile.TemporaryDirectory() as folder:
            script = write_vllm_reproduction(Path(folder), self.tap, located.found, TOKENS)
            for code in (swap.after, swap.before):
                with swap.running(code):
                    codes.append(_run(script))
        return codes == [1, 0]


@dataclass
class Located:
    """A location before its script was run."""

    found: Any
    gap: float
    segment: bool
    named: bool
    cpu_s: float
    said: tuple[str, ...]

    def score(self, reproduces: bool) -> Score:
        return Score(
            "kept",
            self.gap,
            self.segment,
            self.named,
            reproduces,
            self.found.removed,
            self.cpu_s,
            self.said,
        )


def _crash(error: Exception) -> Score:
    return Score("crashed", said=(f"{type(error).__name__}: {error}"[:100],))


def _is_at(frame: Frame, edit: Edit) -> bool:
    return frame.file == edit.file and frame.line in lines_of(edit)


def _has_function(frames: list[Frame], edit: Edit) -> bool:
    return any(
        frame.file == edit.file and frame.function.split(".<locals>.<", 1)[0] == edit.function for frame in frames
    )


def _run(script: Path) -> int:
    rotary_embedding._ROPE_DICT.clear()
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            runpy.run_path(str(script))
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # the edit breaks the script, which says nothing of the fault
        return 2
    return 0


def _work(family: str, seed: int, count: int, results: Path) -> None:
    """Scores edits until so many are kept; a line begins before an edit is made and ends with its score."""
    text = results.read_text() if results.exists() else ""
    if text and not text.endswith("\n"):
        text += json.dumps(asdict(Score("crashed", said=("the process died",))))[1:] + "\n"
        results.write_text(text)
    done = list(map(json.loads, text.splitlines()))
    kept = sum(one["outcome"] == "kept" for one in done)
    if kept >= count:
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(Judge(family, Path(folder))) as judge:
        for edit in list(draw(judge.edits, f"{family} {seed}"))[len(done) :]:
            if kept >= count:
                break
            with results.open("a") as file:
                about = {key: value for key, value in asdict(edit).items() if key != "node"}
                file.write(json.dumps(about)[:-1] + ", ")
                file.flush()
                signal.setitimer(signal.ITIMER_PROF, MOST_CPU_S)
                score = judge.score(edit)
                signal.setitimer(signal.ITIMER_PROF, 0)
                file.write(json.dumps(asdict(score))[1:] + "\n")
            kept += score.outcome == "kept"


def _stop(*_: Any) -> None:
    raise TimeoutError


def report(family: str, results: Path) -> None:
    """Prints one family's row."""
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    kept = [row for row in rows if row["outcome"] == "kept"]
    drawn = {outcome: sum(row["outcome"] == outcome for row in rows) for outcome in ("equivalent", "crashed")}
    shares = [sum(row[name] for row in kept) for name in ("segment", "named", "reproduces")]
    seconds = sorted(row["cpu_s"] for row in kept) or [0.0]
    print(
        f"{family:10} {len(kept):4} {drawn['equivalent']:10} {drawn['crashed']:7}  "
        f"{shares[0]:7} {shares[1]:8} {shares[2]:12}  "
        f"{seconds[len(seconds) // 2]:.1f}, {seconds[-1]:.1f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="locate random edits of vLLM's code")
    parser.add_argument("--count", type=int, default=10, help="faults of each family (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="which edits are drawn (default: 0)")
    parser.add_argument("--families", nargs="*", default=FAMILIES)
    parser.add_argument("--results", type=Path, default=Path("runs/doctor_mutations_vllm"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.results.mkdir(parents=True, exist_ok=True)
    paths = {family: options.results / f"{family}_{options.seed}.jsonl" for family in options.families}
    if options.worker:
        signal.signal(signal.SIGPROF, _stop)
        psutil.virtual_memory = cache(psutil.virtual_memory)  # free memory is no number of a model's
        for family, path in paths.items():
            _work(family, options.seed, options.count, path)
        return
    again = [sys.executable, "-m", "benchmarks.doctor_mutations_vllm", "--worker", "--families", *options.families]
    again += ["--count", str(options.count), "--seed", str(options.seed), "--results", str(options.results)]
    while subprocess.run(again, check=False).returncode and any(path.exists() for path in paths.values()):
        print("the process died; going on", file=sys.stderr)
    print("family     kept equivalent crashed  segment function reproduction  CPU s (median, worst)")
    for family, path in paths.items():
        report(family, path)


if __name__ == "__main__":
    main()
