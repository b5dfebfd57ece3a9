"""The endpoint as an ASGI application: requests in, answers and turns out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, assert_never

import anyio.to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lockstep.core import keyed
from lockstep.core.batch import Batch
from lockstep.core.errors import LockstepError, first_line
from lockstep.core.types import Request as DrawRequest
from lockstep.environments.options import ToolFormat
from lockstep.models.source import ModelSource
from lockstep.rollouts.turns import Turn, TurnListener
from lockstep.serve.bodies import await_disconnect, read_json
from lockstep.serve.choices import DrawnChoice
from lockstep.serve.engine import EngineStopped, ResponseAborted, ServingEngine
from lockstep.serve.evidence import KeptResponse, ResponseArchive
from lockstep.serve.forms import AnswerForm
from lockstep.serve.options import EndpointSection
from lockstep.serve.prompts import (
    EndpointPrompt,
    find_tool_format,
    remember_reply,
    render_chat,
)
from lockstep.serve.protocol import (
    ChatBody,
    CompletionBody,
    DrawFields,
    GenerateBody,
    RequestBody,
    read_fields,
)
from lockstep.serve.refusals import RequestRefused
from lockstep.serve.sessions import ClientSession, SessionRegistry

_BODIES: dict[str, type[RequestBody]] = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/inference/v1/generate": GenerateBody,
}
"""Bodies of the paths that draw responses."""

Handler = Callable[[Request, ClientSession], Awaitable[Response]]
FieldsAdapter = Callable[[str, int, DrawFields], DrawFields]
"""Changes how a response is drawn, given its session's name and the number of its prompt's tokens;
may raise `RequestRefused`.
"""


@dataclass(frozen=True)
class EndpointApp:
    """Answers requests for responses of the policy.

    Attributes:
        engine: Draws responses.
        source: The model's tokenizer and template.
        options: Limits.
        sessions: Whose request it is.
        archive: Receives each response, for proofs.
        model: Name of the served model.
        on_turn: Receives each turn before its answer is sent; an error ends the engine.
        adapt: Changes how each response is drawn; None: as its request says.
    """

    engine: ServingEngine
    source: ModelSource
    options: EndpointSection
    sessions: SessionRegistry
    archive: ResponseArchive
    model: str
    on_turn: TurnListener | None
    adapt: FieldsAdapter | None

    def build_app(self, others: Sequence[Route]) -> Starlette:
        """The application; `others` are routes with handlers from `guard`."""
        routes = [Route("/v1/models", self.guard(self._list_models), methods=["GET"]), *others]
        for path, kind in _BODIES.items():
            draw = partial(self._draw, kind)
            routes.append(Route(path, self.guard(draw), methods=["POST"]))
        return Starlette(routes=routes)

    def guard(self, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """A handler that finds the session first, and turns refusals into answers."""

        async def answer(request: Request) -> Response:
            try:
                headers = request.headers
                session = self.sessions.find_session(
                    headers.get("Authorization", ""), headers.get("X-Session-ID")
                )
                return await handler(request, session)
            except RequestRefused as refused:
                return JSONResponse(refused.body, refused.status)

        return answer

    async def _list_models(self, request: Request, session: ClientSession) -> Response:
        model = {
            "id": self.model,
            "object": "model",
            "created": 0,
            "owned_by": "lockstep",
            "root": self.source.folder,
            "max_model_len": self.source.context,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def _draw(
        self, kind: type[RequestBody], request: Request, session: ClientSession
    ) -> Response:
        """Draws the responses to a prompt, and answers with them."""
        if self.engine.open_count >= self.options.max_requests:
            raise RequestRefused(
                429,
                f"{self.options.max_requests} responses run or wait already; send the request "
                "again later, or raise max_requests",
            )
        given = await read_json(request, self.options.max_body_mib)
        body = read_fields(kind, given)
        if body.model not in (None, self.model):
            raise RequestRefused(
                404, f"this server has the model {self.model}, not {body.model[:200]}", "model"
            )
        prompt = await anyio.to_thread.run_sync(self._read_prompt, body, session)
        room = self.source.context - len(prompt.tokens)
        fields = body.draw
        if self.adapt is not None:
            fields = self.adapt(session.name, len(prompt.tokens), fields)
        sampling = fields.build_sampling(self.source.stop_token_ids, room)
        request_id, own_key = session.begin_request(prompt.tokens)
        key = own_key if fields.seed is None else keyed.hash_key("serve", fields.seed)
        futures = list[Future[Batch]]()
        for index in range(fields.n or 1):
            own = keyed.hash_key(key, index) if index else key
            one = DrawRequest(prompt.tokens, own, continues=True)
            futures.append(self.engine.submit(one, sampling, request_id))
        batches = await self._await_responses(request, futures)
        choices = [
            DrawnChoice.from_batch(index, batch, sampling, self.source)
            for index, batch in enumerate(batches)
        ]
        form = AnswerForm(
            body,
            request_id,
            prompt,
            self.source,
            self.model,
            int(time.time()),
            self._find_tool_format(body),
        )
        built = self._record_turns(session, given, form, choices)
        if body.stream:
            events = form.stream_events(choices, built)
            return StreamingResponse(events, media_type="text/event-stream")
        return JSONResponse(form.wrap_choices(choices, built))

    def _read_prompt(self, body: RequestBody, session: ClientSession) -> EndpointPrompt:
        """The prompt of a request; raises RequestRefused if the policy cannot read it."""
        match body:
            case ChatBody():
                self._find_tool_format(body)
                prompt = render_chat(body, self.source, session.memory)
            case CompletionBody():
                given = body.prompt
                tokens = self.source.prompt_ids(given) if isinstance(given, str) else given
                prompt = EndpointPrompt("", tuple(tokens))
            case GenerateBody():
                prompt = EndpointPrompt("", tuple(body.token_ids))
            case _:
                assert_never(body)
        known = range(self.source.vocabulary)
        unknown = next((token for token in prompt.tokens if token not in known), None)
        if unknown is not None:
            raise RequestRefused(400, f"token {unknown} is not in the vocabulary of {len(known)}")
        if not 0 < len(prompt.tokens) < self.source.context:
            raise RequestRefused(
                400,
                f"the prompt has {len(prompt.tokens)} tokens; it needs 1 to "
                f"{self.source.context - 1}, so that a response fits the context",
            )
        return prompt

    def _find_tool_format(self, body: RequestBody) -> ToolFormat | None:
        """The format of a request's tool calls; None if it has no tools."""
        if not (isinstance(body, ChatBody) and body.tools):
            return None
        found = find_tool_format(self.source, self.options.tool_format)
        if found is None:
            raise RequestRefused(
                400,
                "the model's chat template writes no known tool calls; leave tools out",
                "tools",
            )
        return found

    async def _await_responses(
        self, request: Request, futures: Sequence[Future[Batch]]
    ) -> list[Batch]:
        """Waits for responses; ends them if the client leaves or the time is over."""
        drawn = asyncio.gather(*map(asyncio.wrap_future, futures))
        left = asyncio.ensure_future(await_disconnect(request))
        try:
            await asyncio.wait(
                (drawn, left), timeout=self.options.timeout_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not drawn.done():
                raise RequestRefused(
                    504,
                    f"no response within {self.options.timeout_s:g} s; lower max_tokens, or raise "
                    "timeout_s",
                )
            return drawn.result()
        except ResponseAborted as aborted:
            raise RequestRefused(410, f"{aborted}; send the request again") from None
        except EngineStopped as stopped:
            raise RequestRefused(503, str(stopped)) from None
        except LockstepError as error:
            raise RequestRefused(400, str(error)) from None
        finally:
            left.cancel()
            for future in futures:
                future.cancel()

    def _record_turns(
        self,
        session: ClientSession,
        given: Mapping[str, Any],
        form: AnswerForm,
        choices: Sequence[DrawnChoice],
    ) -> list[dict[str, Any]]:
        """Remembers responses, and hands their turns on. Returns the choices of the answer."""
        everything = list[dict[str, Any]]()
        for choice in choices:
            built = form.build_choice(choice)
            everything.append(built)
            if isinstance(form.body, ChatBody):
                remember_reply(
                    form.body, self.source, session.memory, form.prompt, choice, built["message"]
                )
            if self.on_turn is None:
                continue
            name = form.request_id if len(choices) == 1 else f"{form.request_id}-{choice.index}"
            turn = Turn(
                session.name,
                name,
                form.prompt.tokens,
                choice.token_ids,
                choice.logprobs,
                built["finish_reason"],
                choice.weight_version,
                given,
                form.wrap_choices([choice], [built]),
            )
            self._hand_on(self.on_turn, turn)
        self.archive.keep(form.request_id, KeptResponse(session.name, choices))
        return everything

    def _hand_on(self, listener: TurnListener, turn: Turn) -> None:
        try:
            listener(turn)
        except Exception as error:  # such as a full disk: what was not recorded is not sent
            self.engine.stop(error)
            raise RequestRefused(
                503, f"the turn could not be recorded ({first_line(error)}), so the server stopped"
            ) from error
