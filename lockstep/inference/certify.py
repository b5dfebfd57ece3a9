"""`lockstep certify`: tests how exactly the torch sampler and learner agree on this machine.

Responses are sampled in fp32 and bf16, at temperature 1 and with temperature, top-k and top-p. The
learner's head scores them in micro-batches of several sizes, with and without gradients, on one
thread and on several; some are sampled again, in different batch sizes and orders. On request,
learners over ranks score them, too. As a negative control, one weight is changed by one unit in
the last place.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lockstep.algorithms.exactness import explain_inexact_sampler
from lockstep.cluster.self_check import require_proof
from lockstep.config import Computation, Parallel, SamplerSection
from lockstep.config.hub import fetch_model
from lockstep.config.machinery import DType
from lockstep.core import exit_codes, keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import InputError
from lockstep.core.types import Request, SamplingParams
from lockstep.inference.certify_layouts import LayoutFindings, compare_layout, parse_layouts
from lockstep.learners.packing import pack_bins
from lockstep.learners.rank import restore_order
from lockstep.models.device import load_on_device
from lockstep.models.digests import model_files
from lockstep.models.exact.probe import use_threads
from lockstep.models.heads import LogitsHead
from lockstep.models.precision import TORCH_TYPES, open_autocast
from lockstep.models.source import ModelSource, open_source
from lockstep.monitor.agreement import AgreementPromise, ExactnessCertificate
from lockstep.monitor.options import AgreementSection
from lockstep.objectives.tally import MismatchTally
from lockstep.report.certificate import ReadCertificate
from lockstep.report.progress import RunProgress, show_progress
from lockstep.run.folder.certificate import write_certificate
from lockstep.run.folder.files import find_standing
from lockstep.samplers.backend import find_backend
from lockstep.system.printable import print_text

_DTYPES: tuple[DType, ...] = ("fp32", "bf16")
_SHAPES = (SamplingParams(1), SamplingParams(1, temperature=0.8, top_k=20, top_p=0.9))
_LENGTHS = (1, 17, 130, 5, 64, 2, 31, 200, 16, 9, 128, 65, 3, 15, 100, 33)
"""Lengths of random prompts, in a cycle: values around each block size of keys and rows."""
_ALL_TOKENS = 1 << 20
_SEED = 0


@dataclass(frozen=True)
class TrialSize:
    """The size of the test.

    Attributes:
        count: Number of prompts of random tokens.
        max_tokens: Maximum response length, tokens.
        layouts: Layouts of learners that score the samples, too, such as dp=2,tp=2.
    """

    count: int
    max_tokens: int
    layouts: tuple[str, ...] = ()


@dataclass
class TypeFindings:
    """The findings for one dtype.

    Attributes:
        tally: Compares sampled log-probabilities with those of the learner's head.
        layouts: Compares them with learners over ranks, by layout.
        again: Number of `tokens` sampled again in different batches, and number that `changed` in
            id or log-probability.
        control: The negative control: the `weight` that was changed, the number of `tokens` scored
            with it, and the number `seen` to differ; None if it was not run.
    """

    dtype: DType
    tally: MismatchTally = field(default_factory=MismatchTally)
    layouts: dict[str, LayoutFindings] = field(default_factory=dict)
    again: Counter[str] = field(default_factory=Counter)
    control: dict[str, Any] | None = None


def certify_model(model: str, size: TrialSize, out: Path | None) -> int:
    """Certifies a model: writes the certificate and prints a line.

    Args:
        model: A Hugging Face folder, or the folder of a finished run.
        size: The size of the test.
        out: Path of the certificate; None: `certificates/<model>.json`.

    Returns:
        The exit code: 0 if the model is exact, 4 if not, 3 if the negative control was not
            detected.

    Raises:
        InputError: The model cannot be found, or the certificate cannot be written.
    """
    folder = str(fetch_model(model))
    if out is None:
        file = Path("certificates", f"{Path(model).resolve().name}.json")
    else:
        file = out
    existing = find_standing(file.parent)
    if not (existing.is_dir() and os.access(existing, os.W_OK)):
        raise InputError(f"{file} cannot be written: {existing} is not a writable folder")
    source = open_source(folder)
    layouts = parse_layouts(size.layouts, folder)
    reasons = [
        explain_inexact_sampler(folder, SamplerSection(), Computation(device="cpu", dtype=d))
        for d in _DTYPES
    ]
    reason = next((reason for reason in reasons if reason is not None), None)
    with show_progress(f"{model} → {file}") as progress:
        if reason is not None:
            progress.show_remark(f"not exact: {reason}")
        found = _run_trials(folder, source, size, layouts if reason is None else None, progress)
    again = {
        "tokens": sum(own.again["tokens"] for own in found),
        "changed": sum(own.again["changed"] for own in found),
    }
    certificate = _judge_exactness(found, again, reason)
    file.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "model": model,
        "files": model_files(Path(folder)),
        "asked": asdict(size),
        "sampled_again": again,
        "controls": [
            {"dtype": own.dtype, **own.control} for own in found if own.control is not None
        ],
        "layouts": {
            name: [{"dtype": own.dtype, **asdict(own.layouts[name])} for own in found]
            for name in layouts
            if reason is None
        },
        "types": {
            own.dtype: {"tokens": int(own.tally.tokens), "mismatches": own.tally.mismatches}
            for own in found
        },
    }
    write_certificate(file, certificate, about)
    return _print_verdict(file, found, again)


def _run_trials(
    folder: str,
    source: ModelSource,
    size: TrialSize,
    layouts: Mapping[str, Parallel] | None,
    progress: RunProgress,
) -> list[TypeFindings]:
    """Runs all trials, without exact kernels if `layouts` is None; returns findings by dtype."""
    exact = layouts is not None
    usual = Computation(device="cpu")
    with progress.phase("self-check"):
        for dtype in _DTYPES:
            require_proof(
                folder, usual.model_copy(update={"dtype": dtype}), SamplingParams(size.max_tokens)
            )
    with progress.phase("open"):
        lm = load_on_device(folder, usual.compute_exactly() if exact else usual)
        requests = _build_requests(source, size)
    sizes = f"{size.count} prompts of random tokens, responses of up to {size.max_tokens} tokens"
    progress.set_total(len(_DTYPES), f"{sizes}, in {' and '.join(_DTYPES)}", unit="type")
    found = []
    for step, dtype in enumerate(_DTYPES, start=1):
        own = TypeFindings(dtype)
        trials = list[_CertifyTrial]()
        for shape in _SHAPES:
            sampling = replace(
                shape, max_tokens=size.max_tokens, stop_token_ids=source.stop_token_ids
            )
            trial = _CertifyTrial(lm, dtype, sampling, requests)
            trial.compare_all(own, progress)
            trials.append(trial)
            if exact and sampling.divisor == 1.0:
                own.control = trial.count_control(progress)
        if layouts:
            own.layouts = _compare_layouts(folder, dtype, layouts, trials, progress)
        found.append(own)
        tokens = int(own.tally.tokens)
        progress.show_note(f"{dtype}: {tokens:,} tokens compared, {own.tally.mismatches:,} differ")
        progress.end_step(step, {}, tokens)
    return found


def _compare_layouts(
    folder: str,
    dtype: DType,
    layouts: Mapping[str, Parallel],
    trials: Sequence[_CertifyTrial],
    progress: RunProgress,
) -> dict[str, LayoutFindings]:
    """Scores the samples of all trials with each layout."""
    samples = [trial.batch for trial in trials]
    with progress.phase("control"):
        nudged = [trial.nudged[0] for trial in trials]
    found = dict[str, LayoutFindings]()
    for name, parallel in layouts.items():
        with progress.phase(name):
            found[name] = compare_layout(folder, dtype, parallel, samples, nudged)
    return found


class _CertifyTrial:
    """The comparisons for one dtype and distribution; the constructor samples on one thread.

    Attributes:
        batch: The samples.
    """

    def __init__(
        self,
        lm: PreTrainedModel,
        dtype: DType,
        sampling: SamplingParams,
        requests: Sequence[Request],
    ) -> None:
        self._lm = lm
        self._sampling = sampling
        self._requests = requests
        self._computation = Computation(device="cpu", dtype=dtype)
        self.batch = self._sample_rows(range(len(requests)), len(requests), 1)

    def compare_all(self, found: TypeFindings, progress: RunProgress) -> None:
        """Adds all comparisons to `found`: several micro-batch sizes, batch sizes and orders."""
        many = max(2, torch.get_num_threads())
        for budget, threads, gradient in (
            (1, 1, False),
            (300, many, True),
            (_ALL_TOKENS, many, False),
        ):
            with progress.phase("score"):
                found.tally += self._tally_scores(self._score_samples(budget, threads, gradient))
        last = len(self._requests) - 1
        for size, count, threads in ((1, 4, many), (5, 15, 1)):
            rows = [
                round(place * last / max(count - 1, 1))
                for place in reversed(range(min(count, last + 1)))
            ]
            with progress.phase("sample again"):
                found.again += _count_changed(
                    self.batch.select(rows), self._sample_rows(rows, size, threads)
                )

    def count_control(self, progress: RunProgress) -> dict[str, Any]:
        """Compares the samples with the scores of a changed weight."""
        with progress.phase("control"):
            scored, weight = self.nudged
            tally = self._tally_scores(scored)
        return {"weight": weight, "tokens": int(tally.tokens), "seen": tally.mismatches}

    @cached_property
    def nudged(self) -> tuple[Tensor, str]:
        """Log-probabilities with one weight changed by one unit in the last place, and its name."""
        with _nudge_weight(self._lm, self._computation.dtype) as weight:
            return self._score_samples(_ALL_TOKENS, 1, gradient=False), weight

    def _sample_rows(self, rows: Sequence[int], size: int, threads: int) -> Batch:
        with use_threads(threads):
            section = SamplerSection(max_batch_size=size)
            backend = find_backend(section)
            assert backend is not None, "the sampler of this library is no server"
            sampler = backend.wrap_model(self._lm, section, self._computation)
            return sampler.generate([self._requests[row] for row in rows], self._sampling)

    def _score_samples(self, budget: int, threads: int, gradient: bool) -> Tensor:
        """The learner's log-probabilities of the samples, for a micro-batch size in tokens."""
        batch = self.batch
        head = LogitsHead(self._lm)
        parts = list[Tensor]()
        order = list[int]()
        with (
            use_threads(threads),
            open_autocast(torch.device("cpu"), self._computation.dtype),
            torch.set_grad_enabled(gradient),
        ):
            for rows in pack_bins(batch.lengths.tolist(), budget):
                logprob = head(batch.select(rows)).logprob
                assert logprob is not None, "a head of logits scores tokens"
                parts.append(logprob.detach())
                order += rows
        return restore_order(torch.cat(parts), torch.tensor(order), batch.lengths)

    def _tally_scores(self, scored: Tensor) -> MismatchTally:
        """Compares the samples with their scores."""
        batch = self.batch
        return MismatchTally.from_logprobs(
            scored, batch["sampler_logprob"], batch.mask, batch.lengths
        )


def _build_requests(source: ModelSource, size: TrialSize) -> list[Request]:
    """Builds random prompts of uneven lengths that leave room for a response."""
    source.require_room({"--max-tokens": size.max_tokens + 1})
    room = source.context - size.max_tokens
    lengths = [min(_LENGTHS[number % len(_LENGTHS)], room) for number in range(size.count)]
    keys = torch.tensor([keyed.hash_key("certify", _SEED, number) for number in range(size.count)])
    tokens = keyed.draw_bits(keys, torch.arange(max(lengths))).remainder(source.vocabulary)
    return [
        Request(tuple(row[:length].tolist()), keyed.hash_key("certify response", _SEED, number))
        for number, (row, length) in enumerate(zip(tokens, lengths, strict=True))
    ]


def _count_changed(one: Batch, other: Batch) -> Counter[str]:
    """Compares responses to the same requests, token by token; see `TypeFindings.again`."""
    total = Counter[str]()
    for (mine, own), (others, theirs) in zip(
        _split_responses(one), _split_responses(other), strict=True
    ):
        most = max(len(mine), len(others))
        both = min(len(mine), len(others))
        same = (mine[:both] == others[:both]) & (own[:both] == theirs[:both])
        total.update(tokens=most, changed=most - int(same.sum()))
    return total


def _split_responses(batch: Batch) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields tokens and log-probabilities of each response."""
    columns = batch.sequences(), batch.sequences("sampler_logprob"), batch.sequences("mask")
    for tokens, logprob, mask in zip(*columns, strict=True):
        yield tokens[mask], logprob[mask]


@contextmanager
def _nudge_weight(lm: PreTrainedModel, dtype: DType) -> Iterator[str]:
    """Changes the last norm's largest weight by one ulp inside the block; yields its name."""
    vectors = [(name, weight) for name, weight in lm.named_parameters() if weight.dim() == 1]
    name, weight = vectors[-1]
    index = int(weight.detach().abs().argmax())
    with torch.no_grad():
        true = weight[index].clone()
        near = true.to(TORCH_TYPES[dtype])
        weight[index] = true + (torch.nextafter(near, near + 1) - near)
        try:
            yield f"{name}[{index}]"
        finally:
            weight[index] = true


def _judge_exactness(
    found: Sequence[TypeFindings], again: dict[str, int], reason: str | None
) -> ExactnessCertificate:
    """Determines the exactness level from all comparisons."""
    section = AgreementSection()
    bounds = [section.choose_bound(own.dtype) for own in found]
    keeps = not any(
        own.tally.exceeds_bound(bound) for own, bound in zip(found, bounds, strict=True)
    )
    promise = AgreementPromise(max(bounds), keeps, "", reason is None, inexact=reason)
    certificate = ExactnessCertificate.from_tally(
        sum((own.tally for own in found), MismatchTally()), promise
    )
    if certificate.level != "E2":
        return certificate
    if again["changed"]:
        return replace(
            certificate,
            reason=(
                f"{again['changed']:,} of {again['tokens']:,} tokens change with batch composition"
            ),
        )
    for name in found[0].layouts:
        tokens = sum(own.layouts[name].tokens for own in found)
        differ = sum(own.layouts[name].mismatches for own in found)
        if differ:
            reason = f"{differ:,} of {tokens:,} tokens differ on ranks of {name}"
            return replace(certificate, level="E3", reason=reason)
    return replace(certificate, level="E4" if found[0].layouts else "E3")


def _print_verdict(file: Path, found: Sequence[TypeFindings], again: dict[str, int]) -> int:
    """Prints the result in one line. Returns the exit code."""
    read = ReadCertificate.from_file(file)
    assert read is not None, "it was just written"
    counts = f"{again['tokens']:,} sampled again in other batches, {again['changed']:,} changed"
    for name in found[0].layouts:
        counts += f"; {sum(own.layouts[name].tokens for own in found):,} scored on ranks of {name}"
        counts += f", {sum(own.layouts[name].mismatches for own in found):,} different"
    print_text(f"{read.sentence}; {counts} ({file})")
    unseen = [own for own in found if own.control is not None and not own.control["seen"]]
    for own in unseen:
        print_text(
            f"negative control failed in {own.dtype}: changing one weight by one unit in the last "
            "place changed no token; raise --count"
        )
    unseen_on = [name for own in found for name, at in own.layouts.items() if not at.seen]
    for name in unseen_on:
        print_text(f"negative control failed on ranks of {name}; raise --count")
    differ = any(at.mismatches for own in found for at in own.layouts.values())
    if differ or read.level not in ("E2", "E3", "E4"):
        return exit_codes.BROKEN
    if unseen or unseen_on:
        return exit_codes.INCONCLUSIVE
    return exit_codes.OK
