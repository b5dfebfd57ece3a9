"""Runs environments of the package `verifiers`: their own program runs unmodified, and its model calls wait here.

An episode of verifiers calls a model, while an episode of Lockstep is asked for observations. So a model call blocks
until Lockstep brings the policy's response. Each call must continue the conversation unchanged, because what the policy
sampled is never re-tokenized.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
import weakref
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from lockstep.core.errors import InputError
from lockstep.system.verifiers_package import open_talk, open_tasks, require_verifiers

Messages = list[dict[str, str]]
HARNESS = "lockstep_chat"
"""The name of the harness, see `_offer_harness`."""
_CONNECTING = 64
"""Maximum of connections that are opened at the same time: the backlog of verifiers' server holds 128."""
_FILES = 8192
"""Open files of this process, if its limit allows: an episode has the two ends of a connection, both in it."""


class VerifiersEpisode:
    """An environment whose steps are awaited, for rows of the task `verifiers_tasks`."""

    cut_off_reward = None  # verifiers scores only episodes that it has ended

    async def reset(self, row: dict[str, Any], seed: int) -> None:
        """Begins the episode, up to its first call of the model."""
        served = await asyncio.shield(_serve(row["taskset"]))
        self._calls = _Calls()
        self._episode = served.begin(row["index"], self._calls)
        weakref.finalize(self, self._episode.cancel)  # one that a limit has ended is never continued
        self._said: Messages = []
        if await self._hear() != row["messages"]:
            raise RuntimeError("opened the conversation otherwise than its task says")

    async def step(self, response: str) -> tuple[str, dict[str, float | None], bool]:
        """Answers the call with a response; see `Environment`. Rewards have verifiers' names and weights."""
        self._said.append({"role": "assistant", "content": response})
        self._calls.responses.put_nowait(response)
        heard = await self._hear()
        if heard is None:
            return "", _rewards(self._episode.result()), True
        if len(heard) != 1 or heard[0]["role"] != "user":
            raise RuntimeError("continued the conversation by something else than one message of a user's")
        return heard[0]["content"], {}, False

    async def _hear(self) -> Messages | None:
        """Waits for the next call. Returns the messages that are new in it; None where the episode has ended."""
        call = asyncio.ensure_future(self._calls.requests.get())
        await asyncio.wait({call, self._episode}, return_when=asyncio.FIRST_COMPLETED)
        if not call.done():
            call.cancel()
            return None
        messages, known = call.result(), len(self._said)
        if messages[:known] != self._said:
            raise RuntimeError("changed what was said before, which was sampled and cannot be made anew")
        self._said = messages
        return messages[known:]


def _rewards(episode: Any) -> dict[str, float | None]:
    """Weighted rewards of a finished episode by name; None: not scored."""
    if not episode.ok or len(episode.traces) != 1:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        raise RuntimeError(f"failed: {errors[-1].message}" if errors else f"has {len(episode.traces)} traces, not one")
    return {name: None if one is None else one.value for name, one in episode.traces[0].rewards.items()}


@dataclass
class _Calls:
    """The calls of one episode, and the responses to them."""

    requests: asyncio.Queue[Messages] = field(default_factory=asyncio.Queue)
    responses: asyncio.Queue[str] = field(default_factory=asyncio.Queue)


class _Served:
    """A taskset that is served in this process: verifiers' environment, whose calls of the policy wait here.

    Args:
        serving: Context of the running server; kept here, because it ends when it is garbage-collected.
    """

    def __init__(
        self, env: Any, serving: AbstractAsyncContextManager[None], tasks: Sequence[Any], context: Any
    ) -> None:
        self._env, self._serving, self._tasks, self._context = env, serving, tasks, context
        self._calls: dict[str, _Calls] = {}

    def begin(self, index: int, calls: _Calls) -> asyncio.Task[Any]:
        def note(trace: Any) -> None:
            self._calls[trace.id] = calls
            episode.add_done_callback(lambda done: self._calls.pop(trace.id))

        episode = asyncio.ensure_future(self._env.run_episode(self._tasks[index], self._context, on_trace=note))
        return episode

    async def answer(self, trace: str, messages: Sequence[dict[str, Any]]) -> str:
        """Waits for the policy's response to a call of the episode with this trace."""
        own = self._calls[trace]
        own.requests.put_nowait([_plain(message) for message in messages])
        return await own.responses.get()


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _FILES:
        files = _FILES if hard == resource.RLIM_INFINITY else min(hard, _FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


_SERVED: dict[str, asyncio.Future[_Served]] = {}


def _serve(taskset: str) -> asyncio.Future[_Served]:
    """Serves a taskset once; where that fails, the next episode tries again."""
    if taskset not in _SERVED:
        _SERVED[taskset] = asyncio.ensure_future(_open(taskset))
        _SERVED[taskset].add_done_callback(lambda served: _drop_failed(taskset, served))
    return _SERVED[taskset]


def _drop_failed(taskset: str, served: asyncio.Future[_Served]) -> None:
    if served.cancelled() or served.exception() is not None:
        del _SERVED[taskset]


async def _open(taskset: str) -> _Served:
    require_verifiers()
    from verifiers.v1 import EvalClientConfig, ModelContext  # pyright: ignore[reportMissingImports]

    _raise_file_limit()
    _offer_harness()
    tasks, env = open_tasks(taskset), _open_environment(taskset)
    config = EvalClientConfig(base_url="http://policy.invalid/v1", api_key_var="LOCKSTEP_NO_KEY")
    serving = env.serving()
    await serving.__aenter__()
    served = _Served(env, serving, tasks, ModelContext("policy", config))
    # Verifiers keeps a client for each configuration, and would make one that asks a server.
    env._interception.clients[config.model_dump_json()] = _policy_client(served.answer)
    return served


def _open_environment(taskset: str) -> Any:
    from verifiers.v1 import AgentConfig  # pyright: ignore[reportMissingImports]
    from verifiers.v1.utils.loaders import env_config_type, load_environment, resolve_env_config  # pyright: ignore[reportMissingImports]

    fields = env_config_type(taskset).model_fields
    roles = [name for name, info in fields.items() if isinstance(info.default, AgentConfig)]
    if len(roles) != 1:
        raise InputError(f"the environment {taskset} of verifiers has {len(roles)} agents; those with one are played")
    role = {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}}
    config = {"taskset": {"id": taskset}, "interception": {"type": "server"}, roles[0]: role}
    return load_environment(resolve_env_config(config))


def _policy_client(answer: Callable[[str, Sequence[dict[str, Any]]], Awaitable[str]]) -> Any:
    """A model for verifiers, whose responses are the policy's."""
    from verifiers.v1.clients import Client  # pyright: ignore[reportMissingImports]

    class PolicyClient(Client):
        async def get_response(
            self, dialect: Any, body: Any, sampling: Any, session_id: Any = None, turn: Any = None, headers: Any = None
        ) -> Any:
            message = {"role": "assistant", "content": await answer(session_id, body["messages"])}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            head = {"id": "policy", "object": "chat.completion", "created": int(time.time()), "model": "policy"}
            raw = dict(head, choices=[choice])
            response = dialect.parse_response(dialect.validate_response(raw))
            response.raw = raw
            return response

    return PolicyClient()


def _plain(message: dict[str, Any]) -> dict[str, str]:
    content = message.get("content")
    if not isinstance(content, str) or message.get("tool_calls"):
        raise RuntimeError("sent a message that is no text")
    return {"role": message["role"], "content": content}


def _offer_harness() -> None:
    """Offers a harness to verifiers, which finds them by the names of modules: a conversation without tools, in this
    process. Its own harnesses run programs, for which they install packages."""
    from aiohttp import ClientSession, ClientTimeout, TCPConnector
    from verifiers.v1 import Harness, HarnessConfig, ProgramResult  # pyright: ignore[reportMissingImports]

    class PatientConnector(TCPConnector):
        may_connect = asyncio.Semaphore(_CONNECTING)

        async def connect(self, req: Any, traces: Any, timeout: Any) -> Any:
            async with self.may_connect:
                return await super().connect(req, traces, timeout)

    # httpx, which verifiers uses, takes time quadratic in the number of concurrent requests.
    client = ClientSession(connector=PatientConnector(limit=0), timeout=ClientTimeout(total=None))

    class LockstepChat(Harness[HarnessConfig]):
        APPENDS_SYSTEM_PROMPT, SUPPORTS_RESUME = True, True
        EXECUTES_CODE, NEEDS_CONTAINER = False, False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
        ) -> ProgramResult:
            body = {"model": ctx.model, "messages": open_talk(data)}
            head = {"Authorization": f"Bearer {secret}"}
            async with client.post(f"{endpoint}/chat/completions", json=body, headers=head) as reply:
                return ProgramResult(0 if reply.ok else 1, "", await reply.text())

    module = ModuleType(HARNESS)
    vars(module).update(LockstepChat=LockstepChat, __all__=["LockstepChat"])
    sys.modules[HARNESS] = module
