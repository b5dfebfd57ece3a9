"""From a disagreement to its causes.

Probes look in order. A probe that suspects a cause brings a counter-setting: what would have to be otherwise for the
cause not to act. It is applied and the gap measured again; so a second cause shows behind the first. In the end each
cause has to hold its own: without its counter-setting, all others applied, the gap must come back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce

from torch import Tensor

from lockstep.doctor.backends.hf import HFBackend
from lockstep.doctor.backends.variants import flat
from lockstep.doctor.base import Backend
from lockstep.doctor.case import Case, View
from lockstep.doctor.causes import Named
from lockstep.doctor.probes.base import Clean, Finding, Probe, Skipped
from lockstep.doctor.probes.company import COMPANY
from lockstep.doctor.probes.execution import CACHES, DECODING, KERNEL, PRECISION, REPEATS, TYPES
from lockstep.doctor.probes.layers import LAYERS
from lockstep.doctor.probes.proof import denied
from lockstep.doctor.probes.semantics import SEMANTICS
from lockstep.doctor.probes.tokens import FIRST_TOKEN, LAG, TOKEN_IDS
from lockstep.doctor.probes.weights import CONFIGURATION, WEIGHTS, equal, likeness, with_tied_head
from lockstep.models.folder import ModelError, read_config
from lockstep.types import Request, SamplingParams

PROBES: tuple[Probe, ...] = (
    TOKEN_IDS,
    CACHES,
    CONFIGURATION,
    TYPES,
    REPEATS,
    LAG,
    WEIGHTS,
    FIRST_TOKEN,
    SEMANTICS,
    COMPANY,
    DECODING,
    REPEATS,
    LAYERS,
    PRECISION,
    KERNEL,
)
"""In order: what is cheap comes first; caches before what builds a side anew; weights before numerics; what the logits
become before how they are made. Noise is looked for a second time, behind what hid it."""

AT_FLOOR = 1.5
"""A gap of up to so many times the floor is what rounding makes."""

_CONTRIBUTES, _CONFIRMED = 0.2, 0.7
"""Share of the gap that a counter-setting takes away: for its cause to be named in the end, and to be sure."""
_EXACT = 5e-4
"""What a fitted counter-setting may leave, of the gap at the beginning."""
_ROUGH = 0.3
"""The same for a rough one; its square is a tenth."""
_MOST_CAUSES = 5


@dataclass(frozen=True)
class Looked:
    """What a probe said.

    Attributes:
        name: Of the probe.
        status: Whether it found something.
        said: In a sentence.
        seconds: It took.
        gap: Before it looked, nats.
    """

    name: str
    status: str
    said: str
    seconds: float
    gap: float


@dataclass(frozen=True)
class Diagnosis:
    """What was found.

    Attributes:
        causes: By name, the largest share first.
        gap: Size of the disagreement at the beginning, nats.
        left: Of what no cause explains.
        floor: Of what rounding alone makes.
        floor_left: The same with all counter-settings, and with what is left of noise.
        log: What each probe said, in order.
        case: The disagreement as it was.
    """

    causes: tuple[Named, ...]
    gap: float
    left: float
    floor: float
    floor_left: float
    log: tuple[Looked, ...]
    case: Case

    @property
    def disagrees(self) -> bool:
        """Whether there is anything to explain."""
        return self.gap > AT_FLOOR * self.floor

    @property
    def explained(self) -> bool:
        """Whether the causes leave no more than rounding makes, or than a tenth of the squares."""
        return bool(self.causes) and self.left <= max(AT_FLOOR * self.floor_left, _ROUGH * self.gap)


def examine(
    train: Backend,
    infer: Backend,
    folder: str,
    requests: Sequence[Request],
    sampling: SamplingParams,
    heard: Callable[[Looked], None] = lambda looked: None,
) -> Diagnosis:
    """Finds out why two backends disagree about what one of them drew.

    Args:
        train: The side that trains.
        infer: The side that draws.
        folder: Of the model; plain `transformers` on it, in fp32, is the witness.
        requests: What to draw.
        sampling: How.
        heard: Is told what each probe said.
    """
    first = Case(View(train), View(infer), _witness(folder, train, infer), requests, sampling)
    search = _Search(first, heard)
    for probe in PROBES:
        search.ask(probe)
    return search.diagnosis()


def _witness(folder: str, train: Backend, infer: Backend) -> Backend:
    """Plain `transformers` with the configuration and the weights that should be on both sides.

    Weights are the folder's, unless neither side has these, or the training side has moved most of its own: then that
    side's. What holds the same in fewer bits was not moved.
    """
    own_config, sampled_config = flat(read_config(folder)), infer.config()
    agreed = {name: value for name, value in train.config().items() if sampled_config.get(name) == value}
    witness = HFBackend(folder, config={n: value for n, value in agreed.items() if own_config.get(n) != value})
    if "weights" not in train.capabilities:
        return witness
    own, held = dict(witness.weights()), dict(train.weights())
    trained = [name for name, tensor in held.items() if name in own and _moved(tensor, own[name])]
    sampled = with_tied_head(dict(infer.weights()), own) if "weights" in infer.capabilities else {}
    if len(trained) <= len(own) / 2:
        trained = [name for name in trained if name in sampled and not equal(sampled[name], own[name])]
    witness.load((name, _finer(held[name], sampled.get(name))) for name in trained)
    return witness


def _moved(tensor: Tensor, own: Tensor) -> bool:
    """Whether it is another tensor, and not the same in fewer bits."""
    return not equal(tensor, own) and likeness(tensor, own)[0] != "quantised_weights"


def _finer(tensor: Tensor, same: Tensor | None) -> Tensor:
    """A tensor, or another one that is the same in a type that holds more."""
    if same is None or not equal(tensor, same):
        return tensor
    return max((tensor, same), key=lambda one: one.element_size())


def _countered(case: Case, suspects: Iterable[Finding]) -> Case:
    """A case with the counter-settings of some suspects."""
    counters = (suspect.counter for suspect in suspects if suspect.counter is not None)
    return reduce(lambda case, counter: counter(case), counters, case)


class _Search:
    """The state of an examination: the case as it is now, and what was found on the way."""

    def __init__(self, first: Case, heard: Callable[[Looked], None]) -> None:
        self._first, self._now, self._heard = first, first, heard
        self._suspects: list[Finding] = []
        self._refused: dict[str, list[str]] = {}
        self._log: list[Looked] = []

    def ask(self, probe: Probe) -> None:
        """Lets a probe look, and look again behind what it found."""
        for _ in range(_MOST_CAUSES):
            if not self._asked(probe):
                return

    def _asked(self, probe: Probe) -> bool:
        """Whether the probe found something, so that it may find more."""
        start, gap = time.monotonic(), self._now.gap
        rough = not probe.small and any(suspect.rough for suspect in self._suspects)
        nothing = max(AT_FLOOR * self._now.floor, (_ROUGH if rough else _EXACT) * self._first.gap)
        if gap <= nothing and not probe.facts:
            self._note(probe, "skipped", "nothing is left to explain", start)
            return False
        refused = self._refused.setdefault(probe.name, [])
        outcome = probe.examine(self._now, refused)
        if isinstance(outcome, Clean | Skipped):
            self._note(probe, "clean" if isinstance(outcome, Clean) else "skipped", outcome.why, start)
            return False
        said = f"{outcome.cause}: {'; '.join(outcome.evidence)}"
        if outcome.cause in refused:
            self._note(probe, "clean", f"nothing but what was refused, {said}", start)
            return False
        if outcome.counter is None:
            self._suspects.append(outcome)
            refused.append(outcome.cause)
            self._note(probe, "found", f"{said}; no counter-setting can be tried", start)
            return True
        try:
            changed = outcome.counter(self._now)
            denial = denied(self._now, changed)
        except ModelError as error:
            changed, denial = self._now, str(error)
        if denial is not None:
            refused.append(outcome.cause)
            self._note(probe, "refused", f"{said}; but the counter-setting took no effect: {denial}", start)
            return True
        share = 1 - changed.gap**2 / gap**2 if gap else 0.0
        if share < outcome.least:
            refused.append(outcome.cause)
            self._note(probe, "refused", f"{said}; but with {outcome.setting} {1 - share:.0%} of the gap stay", start)
            return True
        self._suspects.append(outcome)
        self._now = changed
        self._note(probe, "found", f"{said}; {outcome.setting} takes {share:.0%} of the gap away", start)
        return True

    def _note(self, probe: Probe, status: str, said: str, start: float) -> None:
        looked = Looked(probe.name, status, said, time.monotonic() - start, self._now.gap)
        self._log.append(looked)
        self._heard(looked)

    def diagnosis(self) -> Diagnosis:
        """What was found, each cause with the share that it holds when all others are countered."""
        held = self._held()
        causes = [self._named(suspect, share) for suspect, share in held]
        causes.sort(key=lambda named: -named.share)
        first, now = self._first, self._now
        return Diagnosis(tuple(causes), first.gap, now.gap, first.floor, now.floor, tuple(self._log), first)

    def _held(self) -> list[tuple[Finding, float]]:
        """Suspects that the gap comes back without, and by how much of it."""
        held = [(suspect, self._comes_back(suspect)) for suspect in self._suspects]
        return [(suspect, share) for suspect, share in held if suspect.counter is None or share > _CONTRIBUTES]

    def _comes_back(self, suspect: Finding) -> float:
        """Share of the gap that is there again with all counter-settings but this one."""
        if suspect.counter is None:
            return 0.0
        if suspect.moved is not None:
            return suspect.moved**2 / (suspect.moved**2 + self._now.gap**2)
        others = [other for other in self._suspects if other is not suspect]
        if suspect.covers:
            rest = _countered(self._first, others)
            return (rest.gap**2 - self._now.gap**2) / self._first.gap**2
        narrow = [other for other in others if not other.covers]
        left = self._now if narrow == others else _countered(self._first, [*narrow, suspect])
        rest = _countered(self._first, narrow)
        return 1 - left.gap**2 / rest.gap**2 if rest.gap else 0.0

    def _named(self, suspect: Finding, share: float) -> Named:
        confidence = "confirmed" if share >= _CONFIRMED else "consistent"
        return Named(suspect.cause, suspect.side, confidence, share, suspect.evidence, suspect.setting)
