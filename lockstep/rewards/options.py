"""The options of rewards: programs, functions, servers, judges, and sums of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt

from lockstep.config.address import require_address
from lockstep.config.hub_name import ModelPath
from lockstep.config.section import LocalPath, Section, rule
from lockstep.judge.options import JudgeSection

_CODE = "http://localhost:8080/run_code"
_SCORE = "http://localhost:8000/score"


class InstructionSection(Section):
    """Instructions in a row that a program can check; see docs/guides/rewards.md."""

    field: str = Field(description="field with a list of {id, ...}, one per instruction")
    all_or_nothing: bool = Field(
        default=False, description="reward 1 if all are followed, else 0, instead of the share"
    )


class CodeSection(Section):
    """Programs, run against the tests of their row in processes with limits."""

    tests: str = Field(description="field with a list of tests, see docs/guides/rewards.md")
    program: Literal["fenced", "text"] = Field(
        default="fenced",
        description="location of the program: the last ``` block of a response, or its full text",
    )
    all_or_nothing: bool = Field(
        default=False, description="reward 1 if all tests pass, else 0, instead of the share"
    )
    sandboxes: PositiveInt = Field(default=4, description="number of programs to run at a time")
    cpu_s: PositiveInt = Field(default=5, description="CPU time limit per process and test")
    wall_s: PositiveFloat = Field(default=20.0, description="wall-clock limit per test")
    memory_mb: Annotated[int, Field(ge=64)] = Field(
        default=512, description="memory limit of a program, over all its processes"
    )
    isolation: Literal["bubblewrap", "none"] = Field(
        default="bubblewrap",
        description=(
            "`bubblewrap`: no network, other processes or files of yours; `none`: only "
            "time, memory and file size are limited, and programs have this user's "
            "permissions"
        ),
    )
    url: Annotated[str, AfterValidator(partial(require_address, example=_CODE))] | None = Field(
        default=None,
        description=(
            "URL of a server that runs programs with the SandboxFusion protocol, such as "
            "http://localhost:8080/run_code; null: this machine"
        ),
    )

    @rule
    def _a_server_isolates_by_itself(self) -> None:
        if self.url is not None and self.isolation == "none":
            raise ValueError("isolation: none and url exclude each other; set one of them")


class RewardServer(Section):
    """Your server that scores responses by JSON POST requests; see docs/guides/rewards.md."""

    url: Annotated[str, AfterValidator(partial(require_address, example=_SCORE))] = Field(
        description="URL of the server, such as http://localhost:8000/score"
    )
    api_key_env: str = Field(
        default="REWARD_API_KEY",
        description="environment variable with the server's key; if it is unset, no key is sent",
    )
    batch_size: PositiveInt = Field(default=64, description="responses per request")
    max_concurrency: PositiveInt = Field(default=8, description="number of concurrent requests")
    max_retries: NonNegativeInt = Field(
        default=5,
        description=("number of retries after a lost connection, a timeout, 429 or 5xx"),
    )


class RewardJudge(JudgeSection):
    """An LLM judge that rewards responses with its mean score, mapped to 0 … 1."""

    path: ModelPath | None = Field(
        default=None,
        description=(
            "folder of the judge model, or hf:owner/name; null: the run's initial model, "
            "kept frozen; with a server: folder with its tokenizer, null: none, so "
            "lengths are not checked"
        ),
    )

    @property
    def is_policy(self) -> bool:
        return False

    @property
    def has_engine(self) -> bool:
        return not self.engine_section.is_server

    def with_model_folder(self, initial: str) -> RewardJudge:
        """The judge with its model's folder filled in, by default the initial model."""
        own = self.path is None and self.has_engine
        if own:
            return self.model_copy(update={"path": initial})
        return self


VerifierName = Literal["math", "instructions", "code", "python", "server", "judge"]
_SET_UP: dict[VerifierName, str] = {
    "instructions": "instructions",
    "code": "code",
    "python": "function",
    "server": "server",
    "judge": "judge",
}
"""The option that sets up a verifier."""
_TYPES_OF = {option: (name,) for name, option in _SET_UP.items()} | {
    "marker": ("math",),
    "batch": ("python",),
    "timeout_s": ("python", "server"),
}
"""The verifiers that read an option."""
_PART = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


class SingleReward(Section):
    """The options of a reward that is one number for a response."""

    type: Literal["math", "instructions", "code", "python", "server", "judge", "by_row", "sum"] = (
        Field(
            description=(
                "`math`: correct or not by math-verify; `instructions`: share of "
                "instructions followed; `code`: share of tests passed; `python`: your "
                "function; `server`: your server; `judge`: a language model's score; "
                "`by_row`: each row names one of these; `sum`: weighted sum of several"
            )
        )
    )
    marker: str | None = Field(
        default=None,
        description="math: the answer follows the last of these; null: the full text is the answer",
    )
    instructions: InstructionSection | None = Field(
        default=None, description="for type: instructions, or by_row"
    )
    code: CodeSection | None = Field(default=None, description="for type: code, or by_row")
    function: LocalPath | None = Field(
        default=None,
        description="python: `file.py:name` or `package.module:name`, see docs/guides/rewards.md",
    )
    batch: bool = Field(
        default=False,
        description=(
            "python: call the function once per batch, as `f(prompts, responses, answers, "
            "rows)`, which returns a list; false: once per response"
        ),
    )
    server: RewardServer | None = Field(default=None, description="for type: server, or by_row")
    judge: RewardJudge | None = Field(default=None, description="for type: judge, or by_row")
    timeout_s: PositiveFloat = Field(
        default=60.0,
        description=("python: time limit of a call; server: time limit of a request"),
    )
    verifier: str | None = Field(
        default=None,
        description=(
            "by_row: field that names the row's verifier, one of those that this section "
            "configures, `none`, or `judge` if the recipe has a judge"
        ),
    )

    @property
    def verifier_names(self) -> tuple[VerifierName, ...]:
        """The verifiers that rows can name."""
        return (
            "math",
            *(name for name, option in _SET_UP.items() if getattr(self, option) is not None),
        )

    @rule
    def _type_has_what_it_needs(self) -> None:
        if self.type not in ("by_row", "sum") and self.type not in self.verifier_names:
            raise ValueError(f"type: {self.type} needs {_SET_UP[self.type]}")
        if (self.type == "by_row") != (self.verifier is not None):
            raise ValueError("verifier requires type: by_row, and type: by_row requires verifier")

    @rule
    def _options_belong_to_the_type(self) -> None:
        used = {self.type, *(self.verifier_names if self.type == "by_row" else ())}
        for name, types in _TYPES_OF.items():
            default = SingleReward.model_fields[name].default
            if getattr(self, name) != default and not used.intersection(types):
                raise ValueError(f"{name} requires type: {' or '.join(types)}, or by_row")


class RewardPart(SingleReward):
    """A part of a sum of rewards."""

    weight: float = Field(
        default=1.0, description="weight of this reward in the sum; 0: logged, not added"
    )

    @rule
    def _a_part_is_no_sum(self) -> None:
        if self.type == "sum":
            raise ValueError("a part of a sum cannot be a sum; list its parts with the others")


class RewardSection(SingleReward):
    """The options of a reward."""

    pass_score: float | None = Field(
        default=None,
        description=(
            "python, server, judge, sum: lowest reward that passes, for pass@k; null: no pass@k"
        ),
    )
    cut_off: float | Literal["as_is"] | None = Field(
        default=None,
        description=(
            "reward of a truncated response: a number, or `as_is`, the score of its text, "
            "for tasks that always reach their limit; null: as_is"
        ),
    )
    parts: dict[str, RewardPart] | None = Field(
        default=None,
        description="sum: rewards by name, each a section like this one with a `weight`",
    )

    @property
    def has_own_scale(self) -> bool:
        """True if rewards can be any numbers, so that only `pass_score` can define a pass."""
        return self.parts is not None or any(
            name in self.verifier_names for name in ("python", "server", "judge")
        )

    def leaf_sections(self, option: str) -> Iterator[tuple[str, SingleReward]]:
        """Yields rewards and their keys: the parts of a sum, else this section."""
        if self.parts is None:
            yield option, self
            return
        for name, part in self.parts.items():
            yield f"{option}.parts.{name}", part

    @rule
    def _a_sum_has_parts(self) -> None:
        if (self.type == "sum") != (self.parts is not None):
            raise ValueError("parts requires type: sum, and type: sum requires parts")
        if not self.has_own_scale and self.pass_score is not None:
            raise ValueError(
                "pass_score requires type: python, server, judge or sum; for other types, 1 passes"
            )

    @rule
    def _parts_have_names(self) -> None:
        if self.parts == {}:
            raise ValueError("a sum needs at least one part")
        if self.parts is not None and not any(part.weight for part in self.parts.values()):
            raise ValueError("all parts of the sum have weight 0; raise one")
        for name in self.parts or {}:
            if not _PART.fullmatch(name):
                raise ValueError(
                    f"{name!r} is an invalid part name for the metric reward/{name}; use letters, "
                    "digits and _"
                )
