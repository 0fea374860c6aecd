"""Large language models on any GPU, and on the CPU where there is none.

    >>> import wgslm
    >>> engine = wgslm.Engine("model.gguf")
    >>> print(engine.generate("Once upon a time", max_tokens=32).text)
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Generator, Iterable, Iterator, Mapping, Sequence, Union

from . import _wgslm
from ._wgslm import __version__

if TYPE_CHECKING:
    import asyncio

    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Answer",
    "ArgumentError",
    "Embedder",
    "Engine",
    "Error",
    "RefusedError",
    "Scorer",
    "Stream",
    "Token",
    "__version__",
]

logger = logging.getLogger("wgslm")

#: A path of a GGUF file or a folder, a reference to Hugging Face's hub (``ORG/REPO:Q4_K_M``), the bytes of a GGUF file, or
#: nothing: a small model that is built in.
Source = Union[str, "os.PathLike[str]", bytes, None]
#: Is called while a model is opened: with ``"download"``, ``"test"``, ``"load"`` or ``"compile"``, what is done, and all there is.
Progress = Callable[[str, int, int], Any]


class Error(Exception):
    """What went wrong. ``code`` is for programs: ``argument``, ``io``, ``not_found``, ``limit``, ``device``, …"""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[object, ...]:
        # What pickle takes by itself is the text alone; an error goes to other processes whole.
        return type(self), (self.code, str(self)), self.__dict__


class ArgumentError(Error, ValueError):
    """Something that was given does not work; the text says what does."""


class RefusedError(Error):
    """Too much waits. ``retry_after`` says in how many seconds it is worth asking again."""

    def __init__(self, code: str, message: str, retry_after: float) -> None:
        super().__init__(code, message)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.code, str(self), self.retry_after), self.__dict__


class _Errors:
    """Within it, what the library raises becomes an error of this package."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, _wgslm.WgslmError):
            return
        code, message, retry_after = error.args
        if code == "refused":
            raise RefusedError(code, message, retry_after or 0.0) from None
        raise (ArgumentError(code, message) if code == "argument" else Error(code, message)) from None


_errors = _Errors()


@dataclass(frozen=True)
class Token:
    """A token of an answer, and the text that is certain with it: whole characters, often none."""

    id: int
    text: str
    #: The token's own log probability and those of the most likely ones, where they were asked for.
    logprobs: list[tuple[int, float]] = field(default_factory=list)


@dataclass(frozen=True)
class Answer:
    """An answer that is complete."""

    text: str
    ids: list[int]
    #: ``stop``, ``length``, ``context``, ``cancelled`` or ``deadline``.
    finish: str
    prompt_tokens: int
    #: Tokens of the prompt that were in the cache already.
    reused_tokens: int
    generated_tokens: int
    #: Seconds that it waited, then to its first token, then to its end.
    seconds: tuple[float, float, float]


class Stream:
    """An answer in pieces of text, as they come: an iterator, an asynchronous iterator, and something to await for the whole.

    What is dropped or closed before its end is not computed any further.
    """

    def __init__(self, generation: _wgslm.Generation) -> None:
        self._generation = generation
        self._pieces: list[str] = []
        self._ready: list[Token] = []
        self._answer: Answer | None = None
        #: Called with every token, before its text is given.
        self.on_token: Callable[[Token], Any] | None = None

    def _take(self, event: tuple[Any, ...]) -> str:
        text: str = event[0]
        self._pieces.append(text)
        if len(event) == 3:
            if self.on_token is not None:
                self.on_token(Token(event[1], text, event[2]))
        else:
            _, finish, prompt, reused, generated, ids, seconds = event
            self._answer = Answer("".join(self._pieces), ids, finish, prompt, reused, generated, tuple(seconds))
        return text

    @property
    def answer(self) -> Answer:
        """The whole answer; waits for its end."""
        for _ in self:
            pass
        if self._answer is None:
            raise Error("argument", "the stream was closed before its end")
        return self._answer

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while self._answer is None:
            with _errors:
                event = self._generation.next()
            if event is None:
                break
            if text := self._take(event):
                return text
        raise StopIteration

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        import asyncio  # half of the time that an import of this package would take

        while self._answer is None:
            loop = asyncio.get_running_loop()
            ready = loop.create_future()
            with _errors:
                event = self._generation.poll(lambda: loop.call_soon_threadsafe(_set, ready))
            if event is None:
                await ready
            elif event is False:
                break
            elif text := self._take(event):
                return text
        raise StopAsyncIteration

    async def _whole(self) -> Answer:
        async for _ in self:
            pass
        return self.answer

    def __await__(self) -> Generator[Any, None, Answer]:
        return self._whole().__await__()

    def cancel(self) -> None:
        """Ends the answer; what is there already still comes, and ``answer`` is what was generated."""
        self._generation.cancel()

    def close(self) -> None:
        """Ends the answer; nothing comes any more."""
        self._generation.close()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _how(source: Source, options: dict[str, Any], progress: Progress | None) -> tuple[Any, dict[str, Any]]:
    said: set[str] = set()

    def report(what: str, done: int, total: int) -> None:
        if what not in said:
            said.add(what)
            logger.info("%s: %s", what, source if isinstance(source, (str, os.PathLike)) else "a model in memory")
        if progress is not None:
            progress(what, done, total)

    given = os.fspath(source) if isinstance(source, os.PathLike) else source
    return given, {**options, "progress": report}


class Engine:
    """A model that answers, any number of callers at a time: use it from any thread or task.

    ``device`` is ``"auto"``, ``"gpu"``, ``"cpu"`` or the number of an adapter; ``context`` the positions of a sequence;
    ``parallel`` the answers that are generated together, while up to ``queue`` more wait; ``cache`` what the KV cache holds:
    ``"full"``, a number of positions, or bytes (``"512MB"``); ``exact`` sums in f32 everywhere.
    """

    def __init__(
        self,
        model: Source = None,
        *,
        device: str = "auto",
        context: int | None = None,
        parallel: int | None = None,
        cache: str | None = None,
        threads: int | None = None,
        exact: bool = False,
        queue: int | None = None,
        progress: Progress | None = None,
    ) -> None:
        options = {
            "device": str(device),
            "context": context,
            "parallel": parallel,
            "cache": None if cache is None else str(cache),
            "threads": threads,
            "exact": exact,
            "queue": queue,
        }
        with _errors:
            self._model = _wgslm.Model(*_how(model, options, progress))
        logger.info("%s on %s, %s tokens of context", self.name, self.device, self.context)

    def __repr__(self) -> str:
        return f"<wgslm.Engine {self.name!r} on {self.device!r}>"

    @property
    def name(self) -> str:
        """The model's name, as its files have it."""
        return self._model.name

    @property
    def architecture(self) -> str:
        """Its architecture."""
        return self._model.architecture

    @property
    def device(self) -> str:
        """The device that it was loaded on, in words."""
        return self._model.device

    @property
    def context(self) -> int:
        """Tokens of context, for prompt and answer together."""
        return self._model.context

    @property
    def vocab(self) -> int:
        """Tokens of the vocabulary."""
        return self._model.vocab

    @property
    def has_chat(self) -> bool:
        """Whether it has a chat template, and ``chat`` works."""
        return self._model.has_chat

    @property
    def metrics(self) -> dict[str, float]:
        """Numbers of what happened so far."""
        return self._model.metrics()

    def tokenize(self, text: str) -> list[int]:
        """The tokens of a text; texts of control tokens are text."""
        with _errors:
            return self._model.tokenize(text)

    def detokenize(self, ids: Iterable[int]) -> str:
        """The text of tokens."""
        with _errors:
            return self._model.detokenize(list(ids))

    def trim(self) -> None:
        """Forgets what no answer uses of the KV cache."""
        self._model.trim()

    def stream(self, prompt: str | Sequence[int], **options: Any) -> Stream:
        """Continues a text, or tokens, in pieces. For options see :meth:`generate`."""
        wanted = _wanted(options)
        with _errors:
            if isinstance(prompt, str):
                return Stream(self._model.generate(prompt, wanted))
            return Stream(self._model.generate_ids(list(prompt), wanted))

    def generate(self, prompt: str | Sequence[int], **options: Any) -> Answer:
        """Continues a text, or tokens.

        Options, each as the model's files recommend where it is not given: ``max_tokens``, ``temperature``, ``top_k``,
        ``top_p``, ``min_p``, ``typical_p``, ``repeat_penalty``, ``presence_penalty``, ``frequency_penalty``, ``last_n``,
        ``seed`` (the same seed gives the same text), ``stop`` (a text or several), ``logprobs`` (how many), ``logit_bias``
        (token to bias), ``salt`` (only requests of the same salt share what is in the cache), ``exact`` (the same bits
        whatever the cache holds), ``priority`` (``high``, ``normal``, ``low``, ``background``), ``deadline`` (seconds).
        """
        return self.stream(prompt, **options).answer

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Stream:
        """Answers messages, ``{"role": …, "content": …}``, in pieces, as the model's chat template writes them.

        ``tools`` and ``variables`` go to the template. For options see :meth:`generate`.
        """
        more = {**(variables or {}), **({"tools": list(tools)} if tools else {})}
        with _errors:
            return Stream(self._model.chat(json.dumps(list(messages)), json.dumps(more), _wanted(options)))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Answer:
        """Answers messages. Earlier turns that this engine answered are not computed again."""
        return self.stream_chat(messages, **options).answer


_DEFAULTS: dict[str, Any] = {
    "max_tokens": None,
    "temperature": None,
    "top_k": None,
    "top_p": None,
    "min_p": None,
    "typical_p": None,
    "repeat_penalty": None,
    "presence_penalty": None,
    "frequency_penalty": None,
    "last_n": None,
    "seed": None,
    "stop": (),
    "logprobs": None,
    "logit_bias": (),
    "salt": None,
    "exact": False,
    "priority": "normal",
    "deadline": None,
}


def _wanted(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name not in _DEFAULTS:
            raise TypeError(f"unexpected option {name!r}: {', '.join(_DEFAULTS)} work")
    wanted = {**_DEFAULTS, **options}
    stop, bias = wanted["stop"], wanted["logit_bias"]
    wanted["stop"] = [stop] if isinstance(stop, str) else list(stop or ())
    wanted["logit_bias"] = list(bias.items()) if isinstance(bias, Mapping) else list(bias or ())
    return wanted


class Embedder:
    """A model that turns texts into vectors of length 1: an encoder, or any other. Texts that are too long are truncated."""

    def __init__(
        self,
        model: Source = None,
        *,
        device: str = "auto",
        context: int | None = None,
        threads: int | None = None,
        exact: bool = False,
        truncate: bool = True,
        progress: Progress | None = None,
    ) -> None:
        options = {**_NOTHING, "device": str(device), "context": context, "threads": threads, "exact": exact}
        source, how = _how(model, options, progress)
        with _errors:
            self._embedder = _wgslm.Embedder(source, truncate, how)

    @property
    def width(self) -> int:
        """Numbers in a vector."""
        return self._embedder.width

    @property
    def device(self) -> str:
        """The device that it was loaded on, in words."""
        return self._embedder.device

    def embed(self, texts: str | Iterable[str]) -> NDArray[np.float32]:
        """The vector of each text: (texts, width). Of a single text, its vector."""
        if isinstance(texts, str):
            vector: NDArray[np.float32] = self.embed([texts])[0]
            return vector
        with _errors:
            return self._embedder.embed(list(texts))


class Scorer:
    """A model that gives the logits after every token of a text."""

    def __init__(
        self,
        model: Source = None,
        *,
        device: str = "auto",
        context: int | None = None,
        threads: int | None = None,
        exact: bool = False,
        progress: Progress | None = None,
    ) -> None:
        options = {**_NOTHING, "device": str(device), "context": context, "threads": threads, "exact": exact}
        with _errors:
            self._scorer = _wgslm.Scorer(*_how(model, options, progress))

    def logits(self, text: str | Sequence[int]) -> NDArray[np.float32]:
        """The logits after each token of a text, or after each of some tokens: (tokens, vocabulary). Nothing is copied."""
        with _errors:
            ids = self._scorer.tokenize(text) if isinstance(text, str) else list(text)
            return self._scorer.logits(ids)


_NOTHING: dict[str, Any] = {"parallel": 1, "cache": None, "queue": None}
