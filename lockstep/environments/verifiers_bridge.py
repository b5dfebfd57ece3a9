"""Environments of `verifiers` as an environment of Lockstep's: their own program runs, and its model calls wait here.

An episode of verifiers calls a model, and an episode of Lockstep is asked for observations. So the call of the one is
held until the other brings the policy's response. Each call has to continue the conversation as it was: what the policy
sampled is never rendered again.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from lockstep.errors import InputError
from lockstep.foreign.verifiers_package import open_talk, open_tasks, require_verifiers

Messages = list[dict[str, str]]
HARNESS = "lockstep_chat"
"""The name of the harness, see `_offer_harness`."""
_HOST = "127.0.0.1"
_MOST_EPISODES = 1000
"""Episodes in one process, each with one connection: verifiers' client has no more, and others would wait for them."""


class VerifiersEpisode:
    """Implements `environment.AsyncEnvironment` for rows of the task `verifiers_tasks`."""

    async def reset(self, row: dict[str, Any], seed: int) -> None:
        """Begins the episode, up to its first call of the model."""
        self._served = await asyncio.shield(_serve(row["taskset"]))
        self._calls = _Calls()
        self._episode = self._served.begin(row["index"], self._calls)
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
    """A taskset that is served in this process: verifiers' environment, and the endpoint that it calls for the policy.

    Attributes:
        calls: Those of each episode, by the id of its trace, which verifiers sends along.
    """

    def __init__(self, env: Any, tasks: Sequence[Any], context: Any, calls: dict[str, _Calls]) -> None:
        self._env, self._tasks, self._context, self._calls = env, tasks, context, calls
        self._under_way = 0

    def begin(self, index: int, calls: _Calls) -> asyncio.Task[Any]:
        if self._under_way == _MOST_EPISODES:
            raise RuntimeError(
                f"verifiers plays at most {_MOST_EPISODES} episodes at once in one process; raise "
                "environment.max_concurrency, the number of processes"
            )

        def note(trace: Any) -> None:
            self._calls[trace.id] = calls
            episode.add_done_callback(lambda done: self._calls.pop(trace.id))

        episode = asyncio.ensure_future(self._env.run_episode(self._tasks[index], self._context, on_trace=note))
        self._under_way += 1
        episode.add_done_callback(self._end)
        return episode

    def _end(self, episode: asyncio.Task[Any]) -> None:
        self._under_way -= 1


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


def _bypass_proxies() -> None:
    """Has verifiers' client call this process itself, where the environment names a proxy for HTTP."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join([*filter(None, [os.environ.get(name)]), _HOST])


async def _open(taskset: str) -> _Served:
    require_verifiers()
    from verifiers.v1 import EvalClientConfig, ModelContext  # pyright: ignore[reportMissingImports]

    _offer_harness()
    _bypass_proxies()
    tasks = open_tasks(taskset)
    calls: dict[str, _Calls] = {}
    client = EvalClientConfig(base_url=await _listen(calls), api_key_var="LOCKSTEP_NO_KEY")
    env = _open_environment(taskset)
    await env.serving().__aenter__()  # until the process ends
    return _Served(env, tasks, ModelContext("policy", client), calls)


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


async def _listen(calls: dict[str, _Calls]) -> str:
    """Starts an endpoint of chat completions whose replies are the policy's responses. Returns its address."""
    from aiohttp import web
    from verifiers.v1.clients.client import SESSION_ID_HEADER  # pyright: ignore[reportMissingImports]

    async def complete(request: web.Request) -> web.Response:
        own = calls[request.headers[SESSION_ID_HEADER]]
        own.requests.put_nowait([_plain(message) for message in (await request.json())["messages"]])
        message = {"role": "assistant", "content": await own.responses.get()}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        head = {"id": "policy", "object": "chat.completion", "created": int(time.time()), "model": "policy"}
        return web.json_response(dict(head, choices=[choice]))

    app = web.Application(client_max_size=1 << 30)
    app.router.add_post("/v1/chat/completions", complete)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, _HOST, 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    return f"http://{host}:{port}/v1"


def _plain(message: dict[str, Any]) -> dict[str, str]:
    content = message.get("content")
    if not isinstance(content, str) or message.get("tool_calls"):
        raise RuntimeError("sent a message that is no text")
    return {"role": message["role"], "content": content}


def _offer_harness() -> None:
    """Offers a harness to verifiers, which finds them by the names of modules: a conversation without tools, in this
    process. Its own harnesses run programs, for which they install packages."""
    import httpx
    from verifiers.v1 import Harness, HarnessConfig, ProgramResult  # pyright: ignore[reportMissingImports]

    # One for all, since each reads certificates; as many connections as there are episodes.
    client = httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None), verify=False, trust_env=False)

    class LockstepChat(Harness[HarnessConfig]):
        APPENDS_SYSTEM_PROMPT, SUPPORTS_RESUME = True, True
        EXECUTES_CODE, NEEDS_CONTAINER = False, False

        async def launch(
            self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: dict[str, str], data: Any
        ) -> ProgramResult:
            body = {"model": ctx.model, "messages": open_talk(data)}
            head = {"Authorization": f"Bearer {secret}"}
            reply = await client.post(f"{endpoint}/chat/completions", json=body, headers=head)
            return ProgramResult(0 if reply.is_success else 1, "", reply.text)

    module = ModuleType(HARNESS)
    vars(module).update(LockstepChat=LockstepChat, __all__=["LockstepChat"])
    sys.modules[HARNESS] = module
