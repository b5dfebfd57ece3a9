"""Part 3: the log-probability library at a real model's vocabulary: against float64, plain PyTorch,
and NeMo RL.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from benchmarks.mission.programs import ROOT, MissionError, Program, run_all
from benchmarks.picture import STYLE, WIDTH

TITLE = "The log-probability library"

NAMES = (
    "_compute_distributed_log_softmax", "_compute_distributed_softmax", "DistributedLogprob", "DistributedCrossEntropy",
    "ChunkedDistributedLogprob", "DistributedLogprobWithSampling", "ChunkedDistributedLogprobWithSampling",
    "ChunkedDistributedGatherLogprob", "dtensor_from_parallel_logits_to_logprobs", "from_parallel_logits_to_logprobs",
    "from_parallel_logits_to_logprobs_packed_sequences", "_get_tokens_on_this_cp_rank", "allgather_cp_sharded_tensor",
    "AllGatherCPTensor", "get_logprobs_from_vocab_parallel_logits", "get_next_token_logprobs_from_logits",
    "distributed_vocab_topk", "gather_logits_at_global_indices", "get_distillation_topk_logprobs_from_logits",
    "ChunkedDistributedEntropy", "from_parallel_hidden_states_to_logprobs", "ChunkedDistributedHiddenStatesToLogprobs",
    "patch_gpt_model_forward_for_linear_ce_fusion", "_gpt_forward_with_linear_ce_fusion", "all_to_all_vp2sq",
    "all_to_all_sq2vp",
)  # fmt: skip
"""The names of the page, in its order."""
EXEMPT = ("patch_gpt_model_forward_for_linear_ce_fusion", "_gpt_forward_with_linear_ce_fusion")
"""Names that are not measured: they call another one after Megatron's layers."""
LAYOUTS = ("tp 1", "tp 2", "cp 2")

FETCH = "git clone --depth 1 https://github.com/NVIDIA-NeMo/RL"
PEER_TESTS = {
    "distributed": ("distributed/test_model_utils.py", "distributed/test_distributed_logprob.py"),
    "algorithms": ("algorithms/test_sequence_packing_fusion.py",),
}
"""NeMo RL's own tests of these functions, and of the losses that call them."""
REASONS = {
    "test_get_next_token_logprobs_chunking_reduces_memory": "asks that scoring without chunks "
    "takes more memory than "
    "in chunks, by a copy of the logits in fp32; Lockstep takes none in either"
}
"""Of tests that are known to fail, why."""


def measure(
    model: Path,
    work: Path,
    jobs: int,
    nemo_rl: Path | None = None,
    earlier: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Measures what is missing. Returns differences by name, speed, and NeMo RL's tests and speed.

    Args:
        model: Folder of the real model.
        work: Folder of results and logs.
        jobs: Programs at a time.
        nemo_rl: A checkout of NeMo RL; None: what was found with one earlier is kept.
        earlier: What an earlier measurement returned.

    Raises:
        MissionError: If a program ends with an unexpected code, or the checkout is none.
    """
    work.mkdir(parents=True, exist_ok=True)
    if nemo_rl is not None and not (nemo_rl / "nemo_rl").is_dir():
        raise MissionError(f"{nemo_rl} is no checkout of NeMo RL; this fetches one: {FETCH}")
    given = () if nemo_rl is None else (str(nemo_rl.resolve()),)
    checks = work / f"checks_{_digest('logprob_[bcp]*.py')}.json"
    speed = work / f"speed_{_digest('logprob_speed.py')}{'_nemo_rl' if nemo_rl else ''}.json"
    tests = work / f"tests_{_digest('nemo_rl_plugin.py')}.xml"
    programs = [
        Program("checks", ("benchmarks.mission.logprob_checks", str(model), str(checks))),
        Program("speed", ("benchmarks.mission.logprob_speed", str(speed), *given)),
    ]
    if nemo_rl is not None:
        programs.append(_tests("lockstep_logprobs", nemo_rl.resolve(), tests))
    run_all(programs, work, jobs)
    found: dict[str, Any] = {
        "names": json.loads(checks.read_text()),
        "speed": json.loads(speed.read_text()),
    }
    found["nemo_rl"] = (earlier or {}).get("nemo_rl")
    if nemo_rl is not None:
        ours = read_tests(tests)
        commit = subprocess.run(
            ["git", "-C", str(nemo_rl), "rev-parse", "HEAD"],
            capture_output=True,
            text=True,
            check=False,
        )
        found["nemo_rl"] = {
            "commit": commit.stdout.strip()[:9] or "unknown",
            "date": datetime.date.today().isoformat(),
            "tests": ours,
            "failures_by_its_own": _run_failed(ours, nemo_rl.resolve(), work),
            "speed": found["speed"],
        }
    return found


def _digest(files: str) -> str:
    """Digest of the measured code and of the measuring files: results of other code are not
    taken.
    """
    whole = hashlib.sha256()
    for file in sorted(
        [*(ROOT / "lockstep_logprobs").rglob("*.py"), *Path(__file__).parent.glob(files)]
    ):
        whole.update(file.read_bytes())
    return whole.hexdigest()[:12]


def _tests(library: str, nemo_rl: Path, out: Path, *only: str) -> Program:
    files = [
        str(nemo_rl / "tests" / "unit" / file) for group in PEER_TESTS.values() for file in group
    ]
    alone = (
        "-q",
        "-c",
        os.devnull,
        "--rootdir",
        str(nemo_rl),
        "--noconftest",
        "-p",
        "no:cacheprovider",
    )
    plugin = (
        "-p",
        "benchmarks.mission.nemo_rl_plugin",
        "--checkout",
        str(nemo_rl),
        "--library",
        library,
    )
    more = ("--import-mode=importlib", f"--junitxml={out}", *only)
    return Program(f"tests_{library}", ("pytest", *alone, *plugin, *more, *files), codes=(0, 1))


def _run_failed(ours: dict[str, Any], nemo_rl: Path, work: Path) -> dict[str, str]:
    """Runs what failed with NeMo RL's own functions.

    Returns what fails with these too: then it is not Lockstep's.
    """
    if not ours["failures"]:
        return {}
    out = work / "tests_nemo_rl.xml"
    functions = sorted({name.partition("[")[0] for name in ours["failures"]})
    run_all([_tests("nemo_rl", nemo_rl, out, "-k", " or ".join(functions))], work, 1)
    return read_tests(out)["failures"]


def read_tests(file: Path) -> dict[str, Any]:
    """Passed and all tests of each group, and what failed."""
    counts: dict[str, list[int]] = {group: [0, 0] for group in PEER_TESTS}
    failures: dict[str, str] = {}
    for case in ElementTree.parse(file).iter("testcase"):
        group = next(group for group in PEER_TESTS if f".{group}." in f".{case.get('classname')}.")
        failed = [child for child in case if child.tag in ("failure", "error", "skipped")]
        counts[group][0] += not failed
        counts[group][1] += 1
        for child in failed:
            failures[str(case.get("name"))] = str(child.get("message"))[:200]
    return {"counts": counts, "failures": failures}


def describe(found: dict[str, Any]) -> list[str]:
    """The part's section of the page, in Markdown."""
    lines = [
        (
            "The 26 names of `lockstep.distributed.model_utils`, with this model's own logits (V = "
            "49,152) and hidden"
        ),
        (
            "states on 64 tokens of English text. Largest difference from float64, result / "
            "gradient; also where two"
        ),
        (
            "processes share the vocabulary (tp 2) or each sequence (cp 2). 0: equal. What "
            "rounding may do is derived in"
        ),
        (
            "`benchmarks/mission/logprob_bounds.py`; the last figure is the largest share of that "
            "which is used."
        ),
        "",
        "| name | fp32, tp 1 | tp 2 | cp 2 | bf16, largest | of the bound | |",
        "|---|---:|---:|---:|---:|---:|---|",
        *(_row(name, found["names"].get(name)) for name in NAMES),
        "",
        _verdict(found["names"]),
        *_describe_tests(found["nemo_rl"]),
        "",
        *_describe_speed(found["speed"], "beside plain autograd"),
    ]
    peer = found["nemo_rl"]
    if peer and peer["speed"] != found["speed"]:
        lines += [
            "",
            *_describe_speed(peer["speed"], f"beside NeMo RL {peer['commit']}, on {peer['date']}"),
        ]
    return lines


def _row(name: str, layouts: dict[str, Any] | None) -> str:
    if name in EXEMPT:
        return f"| `{name}` | – | – | – | – | – | exempt |"
    if not layouts:
        return f"| `{name}` | – | – | – | – | – | **not measured** |"
    cells = [_pair(layouts[layout]["fp32"]) if layout in layouts else "–" for layout in LAYOUTS]
    of_bf16 = [kinds["bf16"] for kinds in layouts.values()]
    worst = {key: _largest(figures[key] for figures in of_bf16) for key in ("value", "gradient")}
    word = "holds" if _holds(layouts) else "**does not hold**"
    return f"| `{name}` | {' | '.join(cells)} | {_pair(worst)} | {_share(layouts):.0%} | {word} |"


def _pair(figures: dict[str, float | None]) -> str:
    value = figures["value"]
    gradient = figures["gradient"]
    return _number(value) if gradient is None else f"{_number(value)} / {_number(gradient)}"


def _number(value: float | None) -> str:
    return f"{value:.0e}" if value else "0"


def _largest(values: Any) -> float | None:
    return max((value for value in values if value is not None), default=None)


def _share(layouts: dict[str, Any]) -> float:
    """Largest share of a bound, over layouts and types."""
    return max(figures["share"] for kinds in layouts.values() for figures in kinds.values())


def _holds(layouts: dict[str, Any] | None) -> bool:
    return bool(layouts) and _share(layouts or {}) <= 1.0


def _verdict(names: dict[str, Any]) -> str:
    measured = [name for name in NAMES if name not in EXEMPT]
    wrong = [f"`{name}`" for name in measured if not _holds(names.get(name))]
    claim = (
        f"{len(measured)} of the 26 names are within their bounds in every layout that they "
        "know, in fp32 and bf16"
    )
    if wrong:
        return f"- **Does not hold**: {claim}. Not within them: {', '.join(wrong)}."
    return (
        f"- **Holds**: {claim}; {len(EXEMPT)} are exempt: they put "
        "`from_parallel_hidden_states_to_logprobs` "
        "after Megatron's layers (`tests/dist/test_linear_ce.py`)."
    )


def _describe_tests(peer: dict[str, Any] | None) -> list[str]:
    if peer is None:
        return [
            "- **Not measured**: NeMo RL's own tests of these functions, and its speed. "
            f"`{FETCH}`, then `python -m benchmarks.mission logprobs --nemo-rl RL`."
        ]
    ours = peer["tests"]
    by_its_own = peer["failures_by_its_own"]
    known = [name for name in ours["failures"] if name.partition("[")[0] in REASONS]
    whole = all(total for _, total in ours["counts"].values())
    word = "Holds" if whole and len(known) == len(ours["failures"]) else "Does not hold"
    figures = ", ".join(
        f"{passed} of {total} ({group})" for group, (passed, total) in ours["counts"].items()
    )
    lines = [
        f"- **{word}**: NeMo RL's own tests pass with Lockstep's functions in place of its own, "
        f"but for those with a reason: {figures}. Commit {peer['commit']}, unchanged, on "
        f"{peer['date']}, with gloo for NCCL (`benchmarks/mission/nemo_rl_plugin.py`)."
    ]
    for name, said in ours["failures"].items():
        reason = REASONS.get(name.partition("[")[0], f"has no known reason: {said}")
        other = "fails too" if name in by_its_own else "passes"
        lines.append(
            f"    - `{name.partition('[')[0]}` fails: it {reason}. With NeMo RL's own functions "
            f"it {other}."
        )
    return list(dict.fromkeys(lines))


SIDES = {"naive": "plain autograd", "NeMo RL": "NeMo RL", "NeMo RL, chunked": "NeMo RL, in chunks"}


def _describe_speed(figures: dict[str, Any], title: str) -> list[str]:
    sides = {
        key: side for key, side in SIDES.items() if any(key in ways for ways in figures.values())
    }
    head = ["Lockstep", *(f"{side} ÷ Lockstep" for side in sides.values())]
    rows = []
    for kernel, ways in figures.items():
        ours = ways["Lockstep"]
        cells = [_cost(ours), *(_times(ways.get(key), ours) for key in sides)]
        rows.append(f"| {kernel} | {' | '.join(cells)} |")
    return [
        f"CPU ms; MiB at the peak above the inputs, forward and backward, {title}: 512 positions "
        "of 49,152 logits, two processes that share the vocabulary or one, one thread each.",
        "",
        f"| | {' | '.join(head)} |",
        f"|---|{'---:|' * len(head)}",
        *rows,
    ]


def _seconds(ways: dict[str, Any]) -> float:
    return ways["forward_s"] + ways["backward_s"]


def _cost(ways: dict[str, Any]) -> str:
    return f"{1e3 * _seconds(ways):.0f}; {ways['total_bytes'] / 2**20:.0f}"


def _times(ways: dict[str, Any] | None, ours: dict[str, Any]) -> str:
    if ways is None:
        return "–"
    return (
        f"{_seconds(ways) / _seconds(ours):.1f}×; "
        f"{ways['total_bytes'] / max(ours['total_bytes'], 2**20):.1f}×"
    )


def draw(found: dict[str, Any]) -> str:
    """The part's picture: CPU time of plain autograd and of NeMo RL over Lockstep's, by function,
    as an SVG.
    """
    peer = found["nemo_rl"]
    figures = peer["speed"] if peer else found["speed"]
    left = 250
    right = 700
    top = 44
    kernels = {name: ways for name, ways in figures.items() if "naive" in ways}
    ratios = {
        name: {
            key: _seconds(ways[key]) / _seconds(ways["Lockstep"]) for key in SIDES if key in ways
        }
        for name, ways in kernels.items()
    }
    most = max(ratio for own in ratios.values() for ratio in own.values())
    place: Callable[[float], float] = lambda ratio: left + (right - left) * ratio / most  # noqa: E731
    bottom = top + 30 * len(kernels)
    parts = [
        (
            '<text class="title" x="20" y="20">CPU time of a function, as a multiple of '
            "Lockstep's; "
            "V = 49,152</text>"
        )
    ]
    parts.append(
        f'<line class="grid" x1="{place(1):.1f}" x2="{place(1):.1f}" y1="{top - 8}" y2="{bottom}"/>'
    )
    parts.append(
        f'<text class="small" x="{place(1):.1f}" y="{bottom + 16}" text-anchor="middle">Lockstep '
        "= 1</text>"
    )
    for number, (name, own) in enumerate(ratios.items()):
        y = top + 30 * number
        parts.append(
            f'<text class="small" x="{left - 8}" y="{y + 15}" '
            f'text-anchor="end">{escape(name)}</text>'
        )
        sides = {
            "sampledfill": own.get("naive"),
            "heldfill": own.get("NeMo RL", own.get("NeMo RL, chunked")),
        }
        for row, (style, ratio) in enumerate(sides.items()):
            if ratio is not None:
                parts.append(
                    f'<rect class="{style}" x="{left}" y="{y + 12 * row}" '
                    f'width="{place(ratio) - left:.1f}" height="11"/>'
                    f'<text class="small" x="{place(ratio) + 4:.1f}" '
                    f'y="{y + 12 * row + 10}">{ratio:.1f}</text>'
                )
    parts.append(f'<text class="sampledfill" x="20" y="{bottom + 36}">plain autograd</text>')
    if peer:
        parts.append(f'<text class="heldfill" x="140" y="{bottom + 36}">NeMo RL</text>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom + 48}" role="img" '
        'aria-label="Speed of the log-probability '
        f'library">\n<style>{STYLE}</style>\n{body}\n</svg>\n'
    )
