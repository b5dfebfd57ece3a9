"""Proofs, and the verbs with which a trainer drives the endpoint, in the manner of vLLM 0.33."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, TypeVar, assert_never

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from lockstep.learners.base import Learner
from lockstep.samplers.base import Sampler
from lockstep.serve.app import EndpointApp, Handler
from lockstep.serve.bodies import read_json
from lockstep.serve.engine import PauseMode
from lockstep.serve.evidence import compute_checksums, prove_response
from lockstep.serve.protocol import RequestWords, read_fields
from lockstep.serve.refusals import RequestRefused
from lockstep.serve.sessions import ClientSession

T = TypeVar("T")


class ProveBody(RequestWords):
    """The response to prove."""

    request_id: Annotated[str, Field(max_length=256)]


class PauseQuery(RequestWords):
    """Treatment of open responses; caches are always cleared when weights change."""

    mode: PauseMode = "abort"
    clear_cache: str = "true"


class AbortBody(RequestWords):
    """The requests to end; without any, all."""

    request_ids: tuple[str, ...] = ()


class CheckerBody(RequestWords):
    """An action on the weights."""

    action: Literal["checksum", "reset", "compare"]
    baseline: dict[str, str] | None = None


@dataclass(frozen=True)
class EndpointVerbs:
    """Handlers of the verbs.

    Attributes:
        app: The endpoint.
        sampler: Its sampler, whose weights are checked.
        learner: Recomputes responses; None: nothing can be proven.
    """

    app: EndpointApp
    sampler: Sampler
    learner: Learner | None

    def list_routes(self) -> list[Route]:
        """All verbs; those that concern every session are for the server's key only."""
        found = [Route("/prove", self.app.guard(self._prove), methods=["POST"])]
        for path, (method, handler) in self._owners_verbs.items():
            guarded = self.app.guard(partial(_require_owner, handler))
            found.append(Route(path, guarded, methods=[method]))
        return found

    @property
    def _owners_verbs(self) -> dict[str, tuple[str, Handler]]:
        return {
            "/pause": ("POST", self._pause),
            "/resume": ("POST", self._resume),
            "/is_paused": ("GET", self._is_paused),
            "/abort_requests": ("POST", self._abort),
            "/weight_info": ("GET", self._weight_info),
            "/weight_checker": ("POST", self._check),
        }

    async def _prove(self, request: Request, session: ClientSession) -> Response:
        given = await read_json(request, self.app.options.max_body_mib)
        body = read_fields(ProveBody, given)
        learner = self._require_learner()
        kept = self.app.archive.find(body.request_id, session.name, session.is_owner)

        def prove() -> object:
            version = self.app.engine.weight_version
            return prove_response(body.request_id, kept, learner, version)

        return JSONResponse(await _await(self.app.engine.call(prove)))

    async def _pause(self, request: Request, session: ClientSession) -> Response:
        query = read_fields(PauseQuery, dict(request.query_params))
        await _await(self.app.engine.pause(query.mode))
        return JSONResponse({"status": "paused"})

    async def _resume(self, request: Request, session: ClientSession) -> Response:
        await _await(self.app.engine.resume())
        return JSONResponse({"status": "resumed"})

    async def _is_paused(self, request: Request, session: ClientSession) -> Response:
        return JSONResponse({"is_paused": self.app.engine.paused})

    async def _abort(self, request: Request, session: ClientSession) -> Response:
        given = await read_json(request, self.app.options.max_body_mib)
        chosen = set(read_fields(AbortBody, given).request_ids)
        count = await _await(self.app.engine.abort(chosen))
        return JSONResponse({"status": "aborted", "aborted": count})

    async def _weight_info(self, request: Request, session: ClientSession) -> Response:
        return JSONResponse({"weight_version": str(self.app.engine.weight_version)})

    async def _check(self, request: Request, session: ClientSession) -> Response:
        given = await read_json(request, self.app.options.max_body_mib)
        body = read_fields(CheckerBody, given)
        learner = self._require_learner()
        found = dict[str, str]()
        if body.action != "reset":
            compute = partial(compute_checksums, learner, self.sampler)
            found = await _await(self.app.engine.call(compute))
        match body.action:
            case "checksum":
                return JSONResponse({"checksums": found})
            case "compare":
                if body.baseline is None:
                    raise RequestRefused(400, "compare needs a baseline", "baseline")
                names = found.keys() | body.baseline.keys()
                differ = sorted(n for n in names if found.get(n) != body.baseline.get(n))
                return JSONResponse({"match": not differ, "mismatches": differ})
            case "reset":
                raise RequestRefused(
                    400,
                    "this server gets its weights from its learner, not over HTTP, so they "
                    "cannot be reset",
                    "action",
                )
            case _:
                assert_never(body.action)

    def _require_learner(self) -> Learner:
        if self.learner is None:
            raise RequestRefused(501, "this server has no learner that recomputes responses")
        return self.learner


async def _require_owner(handler: Handler, request: Request, session: ClientSession) -> Response:
    if not session.is_owner:
        raise RequestRefused(403, "only the server's key may use this")
    return await handler(request, session)


async def _await(future: Future[T]) -> T:
    return await asyncio.wrap_future(future)
