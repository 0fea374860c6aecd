"""A model on Ray Serve, with OpenAI's routes: serve run serve_app:build model=ORG/REPO:Q4_K_M replicas=2 threads=4

An ingress takes requests and asks replicas, each of which holds a `wgslm.Engine`. README.md says how to use it.
"""

import hashlib
import json
import logging
import random
import time
import uuid
from typing import Any, AsyncIterator, Literal, Optional, Union

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict
from ray import serve
from ray.exceptions import NodeDiedError, ObjectLostError, RayActorError, WorkerCrashedError
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, ReplicaUnavailableError
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

logger = logging.getLogger("ray.serve")


class Options(BaseModel):
    """What can be set, by `serve run serve_app:build NAME=VALUE` or in the `args` of a Serve config file."""

    model_config = ConfigDict(extra="forbid")

    #: A path that all machines have, a reference to Hugging Face's hub, or nothing: a small model that is built in.
    model: Optional[str] = None
    #: `cpu`, `gpu`, `auto` or the number of an adapter.
    device: str = "cpu"
    #: Threads of a replica, and the CPUs that Ray reserves for it.
    threads: int = 1
    #: GPUs that Ray reserves for a replica.
    gpus: float = 0
    #: Positions of a sequence; nothing: as many as the model has.
    context: Optional[int] = None
    #: Answers that a replica generates together. More requests than these on each make Ray add replicas.
    parallel: int = 8
    #: Requests that a replica takes before they go to another one, those that wait in its engine with them.
    ongoing: int = 16
    #: Replicas at least.
    replicas: int = 1
    #: Replicas at most. More than `replicas`: Ray adds and removes some, by the requests that are ongoing.
    max_replicas: int = 0
    #: Seconds of load after which a replica is added, and of calm after which one is removed.
    upscale_delay: float = 10.0
    downscale_delay: float = 300.0
    #: Blocks of a prompt's start, of 64 characters each, that choose its replica.
    prefix_blocks: int = 4
    #: Replicas that may die over a request before it fails: a request that kills them all should not.
    attempts: int = 4


# --- which replica: the one that has the prompt's start in its cache --------------------------------------------------

#: Some 16 tokens, which is a block of the KV cache: less than that is not shared.
BLOCK = 64


def prefix_key(text: str, blocks: int) -> str:
    """The same for texts whose first `blocks` blocks are the same. Of shorter texts, blocks that are complete count."""
    complete = min(len(text) // BLOCK, blocks) * BLOCK
    return hashlib.blake2b((text[:complete] or text).encode(), digest_size=8).hexdigest()


class PrefixRouter(RequestRouter):
    """Sends a request to the replica that its key ranks first; to the next while that one is full or gone.

    Each replica has a hash with each key, and the highest one wins (rendezvous hashing). So a replica that comes or
    goes moves its own share of the keys only, and all ingresses agree without asking each other.
    """

    # Ray's 0.1 s is short for a replica whose cores are all busy: its prefixes would move to others.
    queue_len_response_deadline_s = 1.0

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: Optional[PendingRequest] = None
    ) -> list[list[RunningReplica]]:
        key = ""
        if pending_request is not None:
            key = pending_request.kwargs.get("key", "")
            # When all are full, it is worth waiting before they are asked again.
            pending_request.routing_context.should_backoff = True

        def rank(replica: RunningReplica) -> bytes:
            return hashlib.blake2b(f"{key} {replica.replica_id.unique_id}".encode(), digest_size=8).digest()

        return [[replica] for replica in sorted(candidate_replicas, key=rank, reverse=True)]


# --- a replica --------------------------------------------------------------------------------------------------------


@serve.deployment
class Replica:
    """An engine, in a process of its own."""

    def __init__(self, options: Options) -> None:
        import wgslm

        self.errors = wgslm.Error
        self.name = serve.get_replica_context().replica_id.unique_id
        self.engine = wgslm.Engine(
            options.model,
            device=options.device,
            context=options.context,
            parallel=options.parallel,
            threads=options.threads,
            queue=options.ongoing,
        )

    async def model(self) -> str:
        return self.engine.name

    async def metrics(self, key: str = "") -> dict[str, Any]:
        return {"replica": self.name, **self.engine.metrics}

    async def answer(self, request: dict[str, Any], key: str) -> AsyncIterator[dict[str, Any]]:
        """Pieces of text, then how it ended. `key` is for the router. What an engine refuses is an event: its replica did not fail."""
        try:
            if "messages" in request:
                stream = self.engine.stream_chat(request["messages"], **request["options"])
            else:
                stream = self.engine.stream(request["prompt"], **request["options"])
            # Closed when the caller goes away, so that nothing more is computed.
            with stream:
                if request["stream"]:
                    async for text in stream:
                        yield {"replica": self.name, "text": text}
                answer = await stream
        except self.errors as error:
            yield {"error": str(error), "code": error.code}
            return
        if not request["stream"]:
            yield {"replica": self.name, "text": answer.text}
        usage = {
            "prompt_tokens": answer.prompt_tokens,
            "completion_tokens": answer.generated_tokens,
            "total_tokens": answer.prompt_tokens + answer.generated_tokens,
            "prompt_tokens_details": {"cached_tokens": answer.reused_tokens},
        }
        finish = "stop" if answer.finish == "stop" else "length"
        yield {"replica": self.name, "finish": finish, "usage": usage}


# --- the ingress ------------------------------------------------------------------------------------------------------


class Wanted(BaseModel):
    """What both routes take. A field that is not here is refused by its name."""

    model_config = ConfigDict(extra="forbid")

    model: Optional[str] = None
    max_tokens: Optional[int] = None
    temperature: Optional[float] = None
    top_p: Optional[float] = None
    top_k: Optional[int] = None
    min_p: Optional[float] = None
    presence_penalty: Optional[float] = None
    frequency_penalty: Optional[float] = None
    seed: Optional[int] = None
    stop: Union[str, list[str], None] = None
    stream: bool = False
    user: Optional[str] = None


class Completion(Wanted):
    prompt: Union[str, list[int]]


class Message(BaseModel):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str


class Chat(Wanted):
    messages: list[Message]
    max_completion_tokens: Optional[int] = None


#: How the death of a replica, or of its machine, shows.
LOST = (RayActorError, NodeDiedError, ObjectLostError, WorkerCrashedError, ReplicaUnavailableError)
#: Ray refuses: too many requests wait, or the deployment is being replaced.
BUSY = (BackPressureError, DeploymentUnavailableError)
#: Fields that an engine takes as they are.
OPTIONS = ("max_tokens", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "stop")
STATUS = {"argument": 400, "limit": 400, "refused": 503, "lost": 503}

# `serve.ingress` pickles what it finds, so what the ingress uses comes before it.


def _other_answer() -> dict[str, Any]:
    """Machines whose devices sum in another order can give another text. Then nobody gets a mixture of two answers."""
    return {"error": "the replica died, and another one answers something else: ask again", "code": "lost"}


def _failure(event: dict[str, Any]) -> Response:
    status = STATUS.get(event["code"], 500)
    headers = {"retry-after": "1"} if status == 503 else {}
    return JSONResponse(_error(event), status_code=status, headers=headers)


def _error(event: dict[str, Any]) -> dict[str, Any]:
    return {"error": {"message": event["error"], "type": event["code"]}}


async def _sse(
    first: dict[str, Any], events: AsyncIterator[dict[str, Any]], common: dict[str, Any], chat: bool
) -> AsyncIterator[str]:
    """Server-sent events, as OpenAI's API has them. `replica` says who has computed a piece."""
    event: Optional[dict[str, Any]] = first
    kind = "chat.completion.chunk" if chat else "text_completion"
    role = {"role": "assistant"}
    try:
        while event is not None:
            if "error" in event:
                yield f"data: {json.dumps(_error(event))}\n\n"
                return
            choice: dict[str, Any] = {"index": 0, "finish_reason": event.get("finish")}
            if chat:
                choice["delta"] = {**role, **({"content": event["text"]} if "text" in event else {})}
                role = {}
            else:
                choice["text"] = event.get("text", "")
            chunk = {**common, "object": kind, "choices": [choice], "replica": event["replica"]}
            if "usage" in event:
                chunk["usage"] = event["usage"]
            yield f"data: {json.dumps(chunk)}\n\n"
            event = await anext(events, None)
        yield "data: [DONE]\n\n"
    finally:
        await events.aclose()


api = FastAPI(title="wgslm")


@serve.deployment
@serve.ingress(api)
class Ingress:
    def __init__(self, replicas: DeploymentHandle, options: Options) -> None:
        self.replicas = replicas
        self.options = options

    @api.get("/v1/models")
    async def models(self) -> dict[str, Any]:
        name = await self.replicas.model.remote()
        return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "wgslm"}]}

    @api.post("/v1/completions")
    async def completions(self, body: Completion) -> Response:
        start = body.prompt if isinstance(body.prompt, str) else " ".join(map(str, body.prompt))
        return await self.respond(body, {"prompt": body.prompt}, start, chat=False)

    @api.post("/v1/chat/completions")
    async def chat(self, body: Chat) -> Response:
        if body.max_completion_tokens is not None:
            body.max_tokens = body.max_completion_tokens
        messages = [message.model_dump() for message in body.messages]
        # Up to the first question: a conversation stays where it began, however long it grows.
        first = next((i for i, message in enumerate(messages) if message["role"] == "user"), len(messages))
        start = json.dumps(messages[: first + 1])
        return await self.respond(body, {"messages": messages}, start, chat=True)

    async def events(self, request: dict[str, Any], key: str) -> AsyncIterator[dict[str, Any]]:
        """The events of an answer. Where its replica dies it is asked again; what was delivered already is skipped."""
        delivered = ""
        for attempt in range(self.options.attempts):
            at = 0  # how much of the text this replica has given
            events = self.replicas.options(stream=True).answer.remote(request, key=key)
            try:
                async for event in events:
                    if (text := event.get("text")) is None:
                        if at < len(delivered) and "finish" in event:
                            yield _other_answer()
                        else:
                            yield event
                        return
                    known = delivered[at : at + len(text)]
                    if not text.startswith(known):
                        yield _other_answer()
                        return
                    at += len(text)
                    if rest := text[len(known) :]:
                        delivered += rest
                        yield {**event, "text": rest}
            except LOST as error:
                logger.warning("attempt %s, after %s characters: %s", attempt + 1, len(delivered), type(error).__name__)
            except BUSY as error:
                yield {"error": str(error), "code": "refused"}
                return
            finally:
                events.cancel()  # ends what a caller who went away has asked for
        yield {"error": f"{self.options.attempts} replicas died over this request", "code": "lost"}

    async def respond(self, body: Wanted, source: dict[str, Any], start: str, chat: bool) -> Response:
        options = {name: getattr(body, name) for name in OPTIONS if getattr(body, name) is not None}
        # With a seed, and with the same bits whatever a cache holds, an answer can be asked for again.
        options["seed"] = random.getrandbits(63) if body.seed is None else body.seed
        options["exact"] = True
        request = {**source, "options": options, "stream": body.stream}
        events = self.events(request, prefix_key(start, self.options.prefix_blocks))
        common = {"id": f"cmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": body.model or "wgslm"}
        if body.stream:
            # Errors before the first piece have a status.
            first = await anext(events)
            if "error" in first:
                return _failure(first)
            return StreamingResponse(_sse(first, events, common, chat), media_type="text/event-stream")
        text, last = "", {}
        async for last in events:
            if "error" in last:
                return _failure(last)
            text += last.get("text", "")
        choice: dict[str, Any] = {"index": 0, "finish_reason": last["finish"]}
        if chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        kind = "chat.completion" if chat else "text_completion"
        return JSONResponse(
            {**common, "object": kind, "choices": [choice], "usage": last["usage"], "replica": last["replica"]}
        )


# --- the application --------------------------------------------------------------------------------------------------


def build(options: Options) -> serve.Application:
    """What `serve run serve_app:build` and `serve.run(build(Options(…)))` start."""
    if options.ongoing < options.parallel:
        raise ValueError(f"ongoing={options.ongoing} is less than parallel={options.parallel}")
    scale: dict[str, Any] = {"num_replicas": options.replicas}
    if options.max_replicas > options.replicas:
        scale = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=options.replicas,
                max_replicas=options.max_replicas,
                target_ongoing_requests=options.parallel,
                upscale_delay_s=options.upscale_delay,
                downscale_delay_s=options.downscale_delay,
            )
        }
    replicas = Replica.options(
        ray_actor_options={"num_cpus": options.threads, "num_gpus": options.gpus},
        max_ongoing_requests=options.ongoing,
        request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
        # A dead replica is replaced after some seconds; a request that meets one does not wait for this.
        health_check_period_s=2,
        graceful_shutdown_timeout_s=60,
        **scale,
    )
    # It only passes texts on. Where its own CPU is full, `num_replicas` of the ingress is what to raise.
    ingress = Ingress.options(ray_actor_options={"num_cpus": 0}, max_ongoing_requests=1000)
    return ingress.bind(replicas.bind(options), options)
