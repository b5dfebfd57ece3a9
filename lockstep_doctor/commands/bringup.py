"""`lockstep doctor bringup`: checks of a new model that the grid does not cover, one row per check
and backend.

context      the longest accepted sequence has exactly the requested length
embeddings   untrained rows of embedding and head: not finite, near zero, or alike
decode       decoding against the same backend's prefill, by quarters of a long response
prefix cache the same prompts again, from the cache: finite and equal
experts      every expert is chosen by some token, and backends choose the same
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import orjson
import torch
from torch import Tensor, nn

from lockstep.config import DType
from lockstep.config.loading import LoadedRecipe
from lockstep.core import exit_codes
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.models.folder import read_config
from lockstep.report.progress import RunProgress
from lockstep.report.terminal import markdown_table
from lockstep.rollouts.rollout import build_requests
from lockstep.system.whole_files import write_whole
from lockstep_doctor.backends.hf import HFBackend
from lockstep_doctor.commands.session import open_session
from lockstep_doctor.table.base import Backend, BackendConditions
from lockstep_doctor.table.options import DoctorRecipe
from lockstep_doctor.table.plan import ROOM, PromptSource
from lockstep_doctor.table.verdict import DUST

BringUpOutcome = Literal["PASS", "LOOK", "FAIL", "SKIPPED"]
_SEQUENCES = 8
_CACHED = 70
"""Prompt tokens, enough to fill two blocks of a prefix cache."""
_CACHED_BF16 = 0.25
"""Largest difference of a log-probability from the cache in bf16 and fp16, nats."""
_FLIPS: Mapping[DType, float] = {"fp32": 0.01, "bf16": 0.2, "fp16": 0.2}
"""Largest share of tokens in a layer whose experts may differ: rounding decides near ties."""

_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts")
_ROUTERS = (".gate", ".router")
_NEAR_ZERO = 0.05
"""Share of the median norm below which a row is near zero."""


@dataclass(frozen=True)
class BringUpObservation:
    """One row of the report.

    Attributes:
        what: The backend or part of the model that was checked.
        outcome: LOOK needs a person's judgment; SKIPPED means that the backend does not support the
            check.
    """

    check: str
    what: str
    outcome: BringUpOutcome
    said: str


def bring_up(loaded: LoadedRecipe) -> int:
    """Runs all checks, prints their rows, and writes `bringup.json`. Returns the exit code."""
    found: list[BringUpObservation] = []
    with open_session(loaded) as (results, backends, shown):
        for one in list_observations(loaded.expect_recipe(DoctorRecipe), backends, shown):
            shown.show_note(f"{one.check} of {one.what}: {one.outcome}")
            found.append(one)
        content = orjson.dumps(list(map(asdict, found)), option=orjson.OPT_INDENT_2)
        write_whole(results.folder / "bringup.json", [content + b"\n"])
    rows = [[one.check, one.what, one.outcome, one.said] for one in found]
    print(markdown_table(["Check", "Of", "Outcome", ""], rows))
    outcomes = {one.outcome for one in found}
    if "FAIL" in outcomes:
        return exit_codes.BROKEN
    if "LOOK" in outcomes:
        return exit_codes.INCONCLUSIVE
    return 0


def list_observations(
    recipe: DoctorRecipe, backends: Mapping[str, Backend], shown: RunProgress
) -> Iterator[BringUpObservation]:
    """Runs the checks; yields a row for each."""
    witness = HFBackend(recipe.model.path, device=recipe.learner.device)
    source = PromptSource(recipe)
    with shown.phase("embeddings"):
        yield from check_embeddings(
            witness, None if source.tokenizer is None else len(source.tokenizer)
        )
    room = min(backend.context for backend in backends.values()) // 2
    prompts = source.read_prompts("real", max(1, min(recipe.data.max_prompt_tokens, room)))[
        :_SEQUENCES
    ]
    rounds = math.ceil(_SEQUENCES / len(prompts))
    requests = build_requests(prompts, 0, rounds, recipe.seed, "doctor bringup")[:_SEQUENCES]
    for name, backend in backends.items():
        if "generate" not in backend.capabilities:
            yield BringUpObservation("decode", name, "SKIPPED", "it cannot generate")
            continue
        with shown.phase(name):
            yield check_context(name, backend, recipe.sampler.context_limit)
            yield check_decode(name, backend, requests, recipe)
            yield check_prefix_cache(name, backend)
    with shown.phase("experts"):
        yield from check_experts(
            backends, requests, read_config(recipe.model.path).get_text_config().to_dict()
        )


def check_embeddings(witness: HFBackend, known: int | None) -> Iterator[BringUpObservation]:
    """Checks rows of embedding and head; rows without a token of the tokenizer are only padding."""
    model = witness.model_for()
    for name, module in (
        ("embedding", model.get_input_embeddings()),
        ("head", model.get_output_embeddings()),
    ):
        if module is None:
            continue
        rows = find_untrained(module.get_parameter("weight").detach())
        said = []
        inside = 0
        for kind, ids in rows.items():
            own = [i for i in ids if known is None or i < known]
            inside += len(own)
            if ids:
                said.append(
                    f"{len(ids)} {kind} ({len(own)} in the tokenizer): "
                    f"{', '.join(map(str, ids[:8]))}"
                )
        yield BringUpObservation(
            "embeddings", name, "LOOK" if inside else "PASS", "; ".join(said) or "none stands out"
        )


def find_untrained(weight_VC: Tensor) -> dict[str, list[int]]:
    """Returns ids of suspicious rows by kind: not finite, near zero, or alike.

    Args:
        weight_VC: One row for each token.
    """
    rows = weight_VC.float().cpu()
    finite = rows.isfinite().all(1)
    norm = rows.norm(dim=1)
    zero = norm <= _NEAR_ZERO * norm[finite].median()
    alike = torch.zeros_like(zero)
    if not bool(zero.all()):
        # the projections of alike rows on a random direction are bitwise equal
        generator = torch.Generator().manual_seed(0)
        direction = torch.randn(rows.shape[1], generator=generator, dtype=torch.float64)
        projection = (rows.double() * direction).sum(1)
        _, number, count = torch.unique(projection, return_inverse=True, return_counts=True)
        alike = (count[number] > 1) & finite & ~zero
    kinds = {"not finite": ~finite, "near zero": zero, "alike": alike}
    return {kind: found.nonzero()[:, 0].tolist() for kind, found in kinds.items()}


def check_context(name: str, backend: Backend, asked: int | None) -> BringUpObservation:
    """Checks that the longest sequence is computed, and a sequence one token longer is refused."""
    if asked is None or not name.startswith("vllm"):
        limit = backend.context
    else:
        limit = asked
    row = partial(BringUpObservation, "context", name)
    if name == "hf":
        return row("SKIPPED", f"transformers sets no limit; the model's is {limit}")
    full = _count_drawn(backend, limit - 2, 2)
    over = _count_drawn(backend, limit - 2, 3)
    if full != 2:
        return row("FAIL", f"takes fewer than {limit} tokens: {full}")
    if over == 3:
        return row("FAIL", f"takes more than {limit} tokens")
    if isinstance(over, int):
        end = f"response cut to {over}"
    else:
        end = f"refused: {over}"
    return row("PASS", f"{limit} tokens; one more: {end}")


def check_decode(
    name: str, backend: Backend, requests: Sequence[Request], recipe: DoctorRecipe
) -> BringUpObservation:
    """Compares decoding with prefill over a long response, by quarters."""
    longest = backend.context - max(len(request.tokens) for request in requests) - ROOM
    length = min(max(recipe.grid.lengths), longest)
    batch = backend.generate(requests, SamplingParams(length))
    # scored at temperature 1 over all tokens
    prefilled = backend.score(replace(batch, sampling=None))
    delta = (batch["sampler_logprob"].double() - prefilled.double()).abs()
    sizes = batch.lengths.tolist()
    generated = list[tuple[Tensor, ...]]()
    for own, mask in zip(delta.split(sizes), batch.mask.split(sizes), strict=True):
        generated.append(own[mask].chunk(4))
    quarters = [float(torch.cat(parts).exp().mean()) for parts in zip(*generated, strict=True)]
    grows = quarters[3] - 1 > 2 * (quarters[0] - 1) + DUST / 10
    if backend.list_settings()["dtype"] == "fp32":
        limit = 1 + DUST
    else:
        limit = recipe.limits.max_mult_prob_error
    broken = not all(quarter <= limit for quarter in quarters)
    said = (
        f"mean e^|Δ| by quarters of {length} tokens: "
        f"{', '.join(f'{quarter:.5f}' for quarter in quarters)}"
    )
    outcome: BringUpOutcome = "FAIL" if broken else "LOOK" if grows else "PASS"
    return BringUpObservation("decode", name, outcome, said + ("; it grows" if grows else ""))


def check_prefix_cache(name: str, backend: Backend) -> BringUpObservation:
    """Compares greedy answers to the same prompts with those from the prefix cache."""
    row = partial(BringUpObservation, "prefix cache", name)
    if backend.context < _CACHED + 4:
        return row("SKIPPED", "the context is too short")
    prompts = list[Request]()
    for i in range(_SEQUENCES):
        prompts.append(Request(tuple((7 * k + i) % 50 for k in range(_CACHED)), i))
    sampling = SamplingParams(4, temperature=0.0)
    first = backend.generate(prompts, sampling, BackendConditions(fresh=True))
    again = backend.generate(prompts, sampling, BackendConditions(fresh=False))
    hits = 0
    if "prefix_hits" in again.sample:
        hits = int(again["prefix_hits"].sum())
    if not hits:
        return row("SKIPPED", "no prompt was read from a cache")
    column = again["sampler_logprob"][again.mask]
    fresh = first["sampler_logprob"][first.mask]
    broken = not bool(column.isfinite().all() and fresh.isfinite().all())
    moved = not torch.equal(first.tokens, again.tokens)
    apart = math.nan
    if column.shape == fresh.shape:
        apart = float((column - fresh).abs().max())
    limit = _CACHED_BF16
    if moved or backend.list_settings()["dtype"] == "fp32":
        limit = DUST
    said = f"{hits} tokens from the cache, max |Δ| {apart:.2g}" + ("; not finite" if broken else "")
    passes = not broken and apart <= limit
    return row("PASS" if passes else "FAIL", said)


def check_experts(
    backends: Mapping[str, Backend], requests: Sequence[Request], config: Mapping[str, Any]
) -> Iterator[BringUpObservation]:
    """Checks the routers of a mixture of experts: experts never chosen, and choices that differ
    between backends.
    """
    experts = next((int(config[name]) for name in _COUNTS if config.get(name)), 0)
    if not experts:
        return
    each = int(config["num_experts_per_tok"])
    sequences = [torch.tensor(request.tokens) for request in requests]
    chosen: dict[str, Mapping[str, Tensor]] = {}
    for name, backend in backends.items():
        if backend.network is None:
            yield BringUpObservation(
                "experts", name, "SKIPPED", "its routers are in a different process"
            )
            continue
        chosen[name] = record_experts(backend, backend.network, sequences, each)
        never = list[str]()
        for layer, ids in chosen[name].items():
            idle = sorted(set(range(experts)) - set(ids.unique().tolist()))
            if idle:
                never.append(f"{layer}: {idle}")
        if never:
            said = f"never chosen: {'; '.join(never)}"
        else:
            said = f"all {experts} of {len(chosen[name])} layers are chosen"
        yield BringUpObservation("experts", name, "LOOK" if never else "PASS", said)
    for one, other in pairwise(chosen):
        flips = dict[str, float]()
        for layer, ids in chosen[one].items():
            theirs = chosen[other][layer].sort(-1).values
            differs = (ids.sort(-1).values != theirs).any(-1)
            flips[layer] = float(differs.double().mean())
        allowed = max(_FLIPS[backends[name].list_settings()["dtype"]] for name in (one, other))
        said = "tokens with different experts: " + ", ".join(
            f"{layer} {share:.2%}" for layer, share in flips.items()
        )
        yield BringUpObservation(
            "experts",
            f"{one} vs {other}",
            "FAIL" if max(flips.values()) > allowed else "PASS",
            said,
        )


def record_experts(
    backend: Backend, network: nn.Module, sequences: Sequence[Tensor], each: int
) -> dict[str, Tensor]:
    """Returns ids of the chosen experts by router name, for all tokens concatenated, [N, k].

    Args:
        backend: Backend that scores the sequences.
        network: Its model.
        sequences: Token ids [T], each scored alone.
        each: Experts per token, if a router returns only logits.
    """
    found: dict[str, list[Tensor]] = {}

    def note_output(name: str, output: Any) -> None:
        if isinstance(output, tuple):
            parts = output
        else:
            parts = (output,)
        ids = next((part for part in parts if not part.is_floating_point()), None)
        if ids is None:
            ids = parts[0].topk(each, -1).indices
        found.setdefault(name, []).append(ids.reshape(-1, ids.shape[-1]).cpu())

    with ExitStack() as hooks:
        for name, module in network.named_modules():
            if name.endswith(_ROUTERS):
                handle = module.register_forward_hook(
                    lambda _, inputs, output, *, name=name: note_output(name, output)
                )
                hooks.callback(handle.remove)
        for tokens_T in sequences:
            mask_T = torch.arange(len(tokens_T)) > 0
            backend.score(
                Batch(tokens_T, torch.tensor([len(tokens_T)]), {"mask": mask_T}),
                BackendConditions(batch_size=1),
            )
    return {name: torch.cat(ids) for name, ids in found.items()}


def _count_drawn(backend: Backend, prompt: int, tokens: int) -> int | str:
    """Returns the number of tokens drawn, or the error if the backend refuses."""
    request = Request(tuple(k % 50 for k in range(prompt)), 0)
    try:
        return int(backend.generate([request], SamplingParams(tokens, temperature=0.0)).mask.sum())
    except InputError as error:
        return str(error)
