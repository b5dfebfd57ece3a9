"""The options of the endpoint."""

from __future__ import annotations

from pydantic import Field, PositiveFloat, PositiveInt

from lockstep.config import Computation, SamplerSection, Section
from lockstep.environments.options import ToolFormat


class EndpointSection(Section):
    """The limits of the endpoint, and what it serves."""

    model_name: str | None = Field(
        default=None, description="name that requests give the model; null: its folder's"
    )
    tool_format: ToolFormat | None = Field(
        default=None,
        description="format of the model's tool calls; null: the one that its chat template writes",
    )
    max_requests: PositiveInt = Field(
        default=1024, description="responses that run or wait; further requests get 429"
    )
    max_sessions: PositiveInt = Field(
        default=1024,
        description="sessions that are remembered; the one that rested longest is forgotten",
    )
    max_body_mib: PositiveFloat = Field(
        default=8.0, description="longest body of a request; longer ones get 413"
    )
    timeout_s: PositiveFloat = Field(
        default=600.0, description="longest wait for a response; then its request gets 504"
    )
    max_proofs: PositiveInt = Field(
        default=1024, description="newest responses that /prove can recompute"
    )


class ServeOptions(Section):
    """The options of `lockstep serve`."""

    sampler: SamplerSection = SamplerSection()
    learner: Computation = Computation()
    endpoint: EndpointSection = EndpointSection()
