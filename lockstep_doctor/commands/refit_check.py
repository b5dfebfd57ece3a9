"""`lockstep doctor refit`: checks that every weight sync replaces all of an engine's weights.

noise    the engine receives random tensors, so that no initial weight is left; fingerprints must
         match, and log-probabilities must differ from the learner's
refit    the engine receives the learner's weights; all tensors, caches and a probe are compared
step     the learner takes one large optimizer step; the engine's weights must now differ, which
         proves that the comparison notices differences
again    as refit
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from lockstep.cluster.sampler_pool import SamplerPool, start_sampler_pool
from lockstep.cluster.specs import LearnerSpec, SamplerSpec
from lockstep.cluster.workers import open_worker_pool
from lockstep.config import Computation, LearnerSection, Optimizer
from lockstep.config.loading import LoadedRecipe
from lockstep.core import keyed
from lockstep.core.errors import InputError
from lockstep.learners.base import train
from lockstep.learners.rank import RankLearner
from lockstep.losses.cross_entropy import CrossEntropyLoss
from lockstep.models.folder import find_context_length, read_config
from lockstep.report.progress import RunProgress, show_progress
from lockstep.report.terminal import summary_table
from lockstep.system.whole_files import write_whole
from lockstep.weight_sync.attestation import WeightAttestation
from lockstep.weight_sync.sync import (
    OutgoingWeights,
    SentFingerprint,
    SyncProbe,
    find_differences,
    random_probe,
)
from lockstep_doctor.table.options import DoctorRecipe

REPORT = "refit.json"
STAGES = ("noise", "refit", "step", "again")
_STEP = Optimizer(lr=1e-3)
"""AdamW's first step moves every weight by about the learning rate; this one is visible in any
type.
"""


@dataclass(frozen=True)
class RefitFinding:
    """A fault after a refit.

    Attributes:
        what: Name of the tensor, cache or other object.
        why: What is wrong with it.
    """

    what: str
    why: str


@dataclass(frozen=True)
class RefitStage:
    """One stage of the check.

    Attributes:
        tensors: Number of tensors sent or compared.
        received_only: Number of these that the engine transforms, so that only their arrival can be
            checked.
        gap: Mean |Δ log π| between learner and engine over the probe, nats.
        largest_gap: Largest |Δ log π|.
        seconds: Duration of the refit or step.
    """

    name: str
    tensors: int
    received_only: int
    gap: float
    largest_gap: float
    seconds: float
    findings: tuple[RefitFinding, ...]

    @property
    def verdict(self) -> str:
        if self.findings:
            return "FAIL"
        return "PASS"


def check_model(loaded: LoadedRecipe) -> dict[str, list[RefitStage]]:
    """Checks every backend after the first that receives weights, prints the results, and returns
    them by backend.

    Raises:
        ValueError: There is nothing to check, or it cannot start.
    """
    recipe = loaded.expect_recipe(DoctorRecipe)
    checked = [backend for backend in recipe.backends[1:] if backend != "hf"]
    if not checked:
        raise InputError(
            f"backends is {list(recipe.backends)}: the first one trains, and no other can receive "
            "weights; add torch or vllm, as in backends=[hf,vllm]"
        )
    results: dict[str, list[RefitStage]] = {}
    for backend in checked:
        section = recipe.sampler.model_copy(update={"backend": backend})
        with (
            show_progress(f"refit: {recipe.model.path} → {backend}") as shown,
            open_worker_pool(
                recipe.cluster, recipe.learner, shown, sampler=recipe.sampler
            ) as workers,
        ):
            own = LearnerSection.from_computation(recipe.learner)
            learner = LearnerSpec(recipe.model.path, "logits", own, _STEP, recipe.seed).build()
            engine = start_sampler_pool(
                SamplerSpec(recipe.model.path, section, recipe.learner), shown, workers
            )
            results[backend] = list(
                check_refits(learner, engine, probe_of(recipe.model.path, own), shown)
            )
    print(render_refits(results))
    if recipe.run.folder is not None:
        folder = Path(recipe.run.folder)
        folder.mkdir(parents=True, exist_ok=True)
        engines = {backend: list(map(asdict, stages)) for backend, stages in results.items()}
        report = {
            "version": 2,
            "model": recipe.model.path,
            "learner": recipe.learner.model_dump(),
            "engines": engines,
        }
        write_whole(folder / REPORT, [json.dumps(report, indent=1).encode(), b"\n"])
    return results


def check_refits(
    learner: RankLearner, engine: SamplerPool, probe: SyncProbe, shown: RunProgress
) -> Iterator[RefitStage]:
    """Runs the stages.

    Args:
        learner: Learner with an optimizer; the check changes its weights.
        engine: Engine to check.
        probe: Sequences that both score, and that the step trains on.
    """
    check = _RefitCheck(learner, engine, probe)
    for name in STAGES:
        with shown.phase(name):
            if name == "noise":
                source = NoiseWeights(learner)
            else:
                source = learner
            if name == "step":
                stage = check.take_step(name)
            else:
                stage = check.check_refit(name, source)
        shown.show_note(f"{name}: {stage.verdict}")
        yield stage


class _RefitCheck:
    """State of the check: learner, engine, the engine's attestation, and the fingerprints sent in
    each stage, newest first.
    """

    def __init__(self, learner: RankLearner, engine: SamplerPool, probe: SyncProbe) -> None:
        self._learner = learner
        self._engine = engine
        self._probe = probe.batch
        self._bound = probe.bound
        self._sent = {"the model's folder": _fingerprint_all(learner, engine.dtype)}
        self._held = WeightAttestation(0, {})
        self._answers = engine.logprobs(probe.batch)

    def check_refit(self, name: str, source: RankLearner | NoiseWeights) -> RefitStage:
        """Sends the weights of a source, and compares the engine's weights with them."""
        outgoing = OutgoingWeights(source.weights, self._engine.dtype)
        start = time.perf_counter()
        self._held = self._engine.load_weights(outgoing, version=len(self._sent))[0]
        seconds = time.perf_counter() - start
        found = list(self._find_faults(source, outgoing.sent_fingerprints))
        self._sent = {name: outgoing.sent_fingerprints, **self._sent}
        before = self._answers
        self._answers = self._engine.logprobs(self._probe)
        if torch.equal(self._answers, before):
            why = "returned the same numbers as before the refit; a cache is stale"
            found.append(RefitFinding("the engine", why))
        return self._build_stage(
            name, self._held.fingerprints, seconds, found, source is self._learner
        )

    def take_step(self, name: str) -> RefitStage:
        """Takes one optimizer step on the learner only."""
        start = time.perf_counter()
        train(self._learner, self._probe, CrossEntropyLoss())
        seconds = time.perf_counter() - start
        new = _fingerprint_all(self._learner, self._engine.dtype)
        sent = next(iter(self._sent.values()))
        moved = [tensor for tensor in new if new[tensor] != sent[tensor]]
        found = list[RefitFinding]()
        why = "changed in the step, but the engine's old tensor passes as the new one"
        for tensor in moved:
            if tensor in self._held.fingerprints and self._holds_tensor(tensor, new[tensor]):
                found.append(RefitFinding(tensor, why))
        if not moved:
            found.append(
                RefitFinding("the learner", "took a step that changed none of its tensors")
            )
        return self._build_stage(name, moved, seconds, found, equal=False)

    def _build_stage(
        self,
        name: str,
        tensors: Iterable[str],
        seconds: float,
        found: list[RefitFinding],
        equal: bool,
    ) -> RefitStage:
        """Builds the stage, and also compares log-probabilities: they must be equal or must differ,
        unless faults were already found.
        """
        gap = (self._learner.logprobs(self._probe) - self._engine.logprobs(self._probe))[
            self._probe.mask
        ].abs()
        if bool(gap.mean() <= self._bound) != equal and not found:
            what = "returns equal log-probabilities with different weights"
            if equal:
                what = (
                    "returns different log-probabilities with equal weights: its positions, masks "
                    "or tables differ"
                )
            what = f"{what} (mean |Δ| {gap.mean():.2g} nats, the limit is {self._bound:g})"
            found.append(RefitFinding("the engine", what))
        names = set(tensors)
        received = len(self._held.received & names)
        return RefitStage(
            name, len(names), received, float(gap.mean()), float(gap.max()), seconds, tuple(found)
        )

    def _holds_tensor(self, name: str, one: SentFingerprint) -> bool:
        """True if the engine's attestation matches a sent tensor."""
        if name in self._held.columns:
            return self._held.columns[name] == one.columns
        return self._held.fingerprints[name] == one.whole

    def _find_faults(
        self, source: RankLearner | NoiseWeights, sent: Mapping[str, SentFingerprint]
    ) -> Iterator[RefitFinding]:
        """Yields differences between the engine's tensors and those sent by a source."""
        tensors = {name: tensor.cpu() for name, tensor in source.weights()}
        faults: dict[str, str] = {}
        for name in self._held.columns:  # attested by some columns only: compare them whole
            held = self._engine.show(name).cpu()
            if not torch.equal(held, tensors[self._held.tied.get(name, name)].to(held.dtype)):
                faults[name] = "arrived, but the engine computes with different values"
        for name, why in (faults | find_differences(sent, self._held)).items():
            own = self._held.tied.get(name, name)
            is_known = name in self._held.fingerprints and own in sent
            yield RefitFinding(
                name, self._describe_fault(name, own, tensors[own], sent, why) if is_known else why
            )

    def _describe_fault(
        self, name: str, own: str, tensor: Tensor, sent: Mapping[str, SentFingerprint], why: str
    ) -> str:
        """Describes the tensor that the engine holds in place of `own`, the sent one."""
        for state, earlier in self._sent.items():
            if self._holds_tensor(name, earlier[own]):
                return f"still has the weights of {state}"
        for other, one in sent.items():
            if other != own and self._holds_tensor(name, one):
                return f"holds {other}"
        held = self._engine.show(name).cpu()
        if tensor.is_floating_point():
            tensor = tensor.to(self._engine.dtype)
        if tensor.shape != held.shape:
            return f"has the shape {tuple(held.shape)} instead of {tuple(tensor.shape)}"
        gap = (tensor.double() - held.double()).abs()
        return f"{why}: {int((gap > 0).sum())} of {gap.numel()} numbers, by up to {gap.max():.2g}"


@dataclass(frozen=True)
class NoiseWeights:
    """Random tensors with the shapes, types, means and deviations of a learner's; non-float tensors
    are unchanged.
    """

    like: RankLearner

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self.like.weights():
            if tensor.is_floating_point():
                draws = torch.randn(tensor.shape, generator=keyed.build_generator("noise", name))
                center = tensor.float().mean().cpu()
                spread = tensor.float().std(correction=0).cpu()
                tensor = (center + draws * (spread if spread > 0 else 1.0)).to(tensor)
            yield name, tensor


def _fingerprint_all(
    source: RankLearner | NoiseWeights, dtype: torch.dtype
) -> dict[str, SentFingerprint]:
    """Returns fingerprints of the weights that would be sent."""
    outgoing = OutgoingWeights(source.weights, dtype)
    for _ in outgoing:
        pass
    return outgoing.sent_fingerprints


def probe_of(folder: str, computation: Computation) -> SyncProbe:
    """Random tokens of a model's vocabulary."""
    config = read_config(folder).get_text_config()
    return random_probe(int(config.vocab_size), find_context_length(config), computation.dtype)


def render_refits(results: Mapping[str, Sequence[RefitStage]]) -> str:
    """Renders a table with findings below it."""
    head = ("engine", "stage", "tensors", "received only", "mean |Δ|", "seconds", "verdict")
    rows: list[tuple[str, ...]] = [head]
    found: list[str] = []
    for backend, stages in results.items():
        for one in stages:
            counts = str(one.tensors), str(one.received_only)
            rows.append(
                (backend, one.name, *counts, f"{one.gap:.2g}", f"{one.seconds:.2f}", one.verdict)
            )
            for finding in one.findings:
                found.append(f"{backend}, {one.name}: {finding.what} {finding.why}")
    return "\n".join([summary_table(rows), *found])
