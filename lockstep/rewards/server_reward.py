"""Rewards by a user's server with a JSON API.

    POST {"prompts": […], "responses": […], "answers": […], "rows": […]}
    →    {"rewards": [1.0, null, …]}

The lists have equal lengths; null means no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict

from lockstep.config import user_code
from lockstep.core.types import Prompt
from lockstep.rewards.base import RewardError
from lockstep.rewards.options import RewardServer
from lockstep.system.printable import print_note


class RewardReply(BaseModel):
    """A server's answer; other fields are ignored."""

    model_config = ConfigDict(strict=True)

    rewards: list[float | None]


@dataclass(frozen=True)
class ServerReward:
    """Rewards by a user's server, with several responses per request.

    Attributes:
        section: The server's address and request options.
        timeout_s: Time limit of a request, seconds.
        note: Shows a line.
        option: Key of the section in the recipe, for messages.
    """

    section: RewardServer
    timeout_s: float
    note: Callable[[str], object] = field(default=print_note, repr=False, compare=False)
    option: str = "reward.server"

    def __call__(
        self, prompts: Sequence[Prompt], responses: Sequence[str], answers: Sequence[str]
    ) -> list[float | None]:
        """See `Reward`.

        Raises:
            ServerError: After all retries the server is unreachable, refuses, or violates the
                protocol.
            RewardError: The server returns an invalid reward.
        """
        # imports the openai client
        from lockstep.servers.json_server import JsonServer, ServerAddress

        own = self.section
        address = ServerAddress(
            own.url, f"{self.option}.url", own.api_key_env, own.max_concurrency, own.max_retries
        )
        parts = [
            slice(start, start + own.batch_size) for start in range(0, len(prompts), own.batch_size)
        ]
        bodies = list[dict[str, object]]()
        for part in parts:
            bodies.append(
                {
                    "prompts": [prompt.text for prompt in prompts[part]],
                    "responses": list(responses[part]),
                    "answers": list(answers[part]),
                    "rows": [dict(prompt.row) for prompt in prompts[part]],
                }
            )

        def describe_fault(index: int, reply: RewardReply) -> str | None:
            asked = len(prompts[parts[index]])
            if len(reply.rewards) == asked:
                return None
            return f"it returned {len(reply.rewards)} rewards for {asked} responses"

        found: list[float | None] = [None] * len(prompts)
        for index, reply in JsonServer(address, self.timeout_s, self.note).request_all(
            RewardReply, own.url, bodies, describe_fault
        ):
            found[parts[index]] = reply.rewards
        for prompt, reward in zip(prompts, found, strict=True):
            if reward is not None and not abs(reward) <= user_code.LARGEST_REWARD:
                raise RewardError(
                    f"{prompt.id}: {self.option} {own.url} returned {reward}; return a finite "
                    "number, or null for no verdict"
                )
        return found
