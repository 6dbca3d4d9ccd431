"""EmbeddingSelector: the tools nearest in meaning to the user's message, and the embedders it can use."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
import zlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from sayso.agent.messages import Message, Role
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.selectors import Embedder, bm25_scores, needs_no_space, words_of
from sayso.channels.http import tls

if TYPE_CHECKING:
    import httpx


log = logging.getLogger(__name__)
#: Most vectors that are cached: of tools, and of recent messages.
MAX_VECTORS = 1024
#: Time limit of an embedder, in seconds. After it, all tools are shown.
EMBED_SECONDS = 10.0
#: How long an embedder that failed is not called again, in seconds: every user would wait for it in vain.
RETRY_SECONDS = 30.0
#: The weight of similarity in letters beside BM25's score. It decides between tools that share the same words, and
#: where no words are shared.
LETTERS_WEIGHT = 5.0
#: Time limit of an embeddings server's answer, in seconds.
ANSWER_SECONDS = 8.0
#: Longest text that is sent, in characters: descriptions are shorter, and models accept about 8,000 tokens.
MAX_TEXT_CHARS = 8_000
#: Packed numbers: a thousand vectors of a thousand numbers take 8 MB, a fourth of what tuples take.
Vector: TypeAlias = "array[float]"


class EmbeddingError(Exception):
    """Raised when an embedder's answer cannot be compared: too few vectors, of several lengths, or not of numbers."""


class EmbeddingSelector:
    """Selects the `top_k` tools nearest to the user's latest message, by the cosine of their vectors (seed).

    Without an `embedder` it ranks offline: first by the words of names, descriptions and parameters (BM25 over stems),
    then by letters (`NgramEmbedder`); `model` is then only a name. Vectors of tools are cached by a hash of model, name
    and description, so a changed tool is embedded again. All missing vectors are fetched in one call.

    If the embedder fails, takes longer than EMBED_SECONDS or returns invalid vectors, all tools are shown, it is not
    called for RETRY_SECONDS, and one warning is logged until it works again: a failure may cost tokens, but never an
    answer. Without messages no tool is shown; without text, or if nothing resembles it, all are. Raises ValueError for
    a `top_k` below 1.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        top_k: int = 5,
        embedder: Embedder | None = None,
        *,
        max_vectors: int = MAX_VECTORS,
        embed_seconds: float = EMBED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if top_k < 1:
            raise ValueError(f"top_k is {top_k!r}: show at least 1 tool")
        self.model = model
        self.top_k = top_k
        self.embedder: Embedder = embedder or NgramEmbedder()
        self._ranks_by_words = embedder is None
        self._vectors: OrderedDict[str, Vector] = OrderedDict()
        self._max_vectors = max_vectors
        self._embed_seconds = embed_seconds
        self._clock = clock
        self._failed_at: float | None = None

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the nearest tools, in the order given; of two equally near, the first."""
        history, given = list(messages), list(tools)
        query = _query(history)
        if not history or not given:
            return []
        if not query or len(given) <= self.top_k or self._is_paused:
            return given
        try:
            scores = await self._scores(query, [f"{tool.name}: {tool.description}" for tool in given])
            if self._ranks_by_words:
                by_words = bm25_scores(query, [_searchable_text(tool) for tool in given])
                scores = [words + LETTERS_WEIGHT * letters for words, letters in zip(by_words, scores, strict=True)]
        except Exception as exc:  # an embedder may be third-party code, or a remote server
            self._on_failure(exc)
            return given
        self._failed_at = None
        if not any(scores):  # nothing resembles the message
            return given
        nearest = sorted(range(len(given)), key=lambda index: (-scores[index], index))[: self.top_k]
        return [given[index] for index in sorted(nearest)]

    @property
    def _is_paused(self) -> bool:
        return self._failed_at is not None and self._clock() - self._failed_at < RETRY_SECONDS

    async def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        vectors = await self._vectors_of([query, *texts])
        if len({len(vector) for vector in vectors.values()}) > 1:
            self._vectors.clear()  # cached ones may be of another model with the same name
            raise EmbeddingError("vectors of different lengths cannot be compared: use one model for all")
        return [_dot_product(vectors[query], vectors[text]) for text in texts]

    async def _vectors_of(self, texts: Sequence[str]) -> Mapping[str, Vector]:
        """Return the vector of each text, cached or embedded now together with all missing ones."""
        keys = {text: self._key(text) for text in texts}
        known = {text: self._vectors[key] for text, key in keys.items() if key in self._vectors}
        missing = [text for text in keys if text not in known]
        if missing:
            async with asyncio.timeout(self._embed_seconds):
                vectors = await self.embedder.embed(missing)
            known |= dict(zip(missing, _normalized(vectors, len(missing)), strict=True))
        for text, key in keys.items():
            self._cache(key, known[text])
        return known

    def _key(self, text: str) -> str:
        return hashlib.sha256(f"{self.model}\0{text}".encode(errors="surrogatepass")).hexdigest()

    def _cache(self, key: str, vector: Vector) -> None:
        """Cache a vector as the newest, and drop the oldest ones above the limit."""
        self._vectors.pop(key, None)
        self._vectors[key] = vector
        while len(self._vectors) > self._max_vectors:
            self._vectors.popitem(last=False)

    def _on_failure(self, exc: Exception) -> None:
        if self._failed_at is None:
            advice = f"all tools are shown until it works: {type(exc).__name__}: {exc}"
            log.warning("selector.embedder_failed", extra={"model": self.model, "advice": advice})
        self._failed_at = self._clock()


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the similarity of two vectors: 1 for the same direction, 0 for none, and where one is all zeros."""
    return _dot_product(_unit(one), _unit(other))


def _dot_product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum((left * right for left, right in zip(one, other, strict=True)), 0.0)


def _unit(vector: Sequence[float]) -> Vector:
    """Return the vector with length 1. It is scaled first, since squares of very small or large numbers are inexact."""
    largest = max(map(abs, vector), default=0.0) or 1.0
    scaled = [number / largest for number in vector]
    length = math.hypot(*scaled) or 1.0
    return array("d", (number / length for number in scaled))


def _searchable_text(tool: Tool) -> str:
    """Return a tool's name, its description, and the names and descriptions of its parameters."""
    parameters = (f"{parameter.name} {parameter.description}" for parameter in tool.parameters)
    return " ".join([tool.name, tool.description, *parameters])


def _query(history: Sequence[Message]) -> str:
    """Return the user's last message; without one, the last message of all."""
    from_user = [message for message in history if message.role == Role.USER]
    return (from_user or list(history) or [Message(Role.USER)])[-1].content.strip()


def _normalized(vectors: Sequence[Sequence[float]], count: int) -> list[Vector]:
    """Return the vectors, each of length 1. Raises EmbeddingError for invalid ones."""
    packed = [array("d", vector) for vector in vectors]
    if len(packed) != count:
        raise EmbeddingError(f"{len(packed)} vectors for {count} texts: an embedder returns one per text")
    if not all(vector and all(map(math.isfinite, vector)) for vector in packed):
        raise EmbeddingError("a vector is empty or has a number that is not finite")
    return [_unit(vector) for vector in packed]


class HttpEmbedderError(Exception):
    """Raised when the server refuses, or its answer holds no vectors. The message never contains the key."""


class HttpEmbedder:
    """An `Embedder` that calls `POST {base_url}/embeddings`: OpenAI, or a compatible server of your own.

    It sends the user's last message and the descriptions of the tools. `api_key` is sent in the Authorization header
    only; redirects are not followed. `transport` is httpx's, for tests and proxies.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        *,
        base_url: str = "https://api.openai.com/v1",
        api_key: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.model = model
        self.base_url = base_url.rstrip("/")
        self._api_key = api_key
        self._transport = transport

    def __repr__(self) -> str:
        return f"HttpEmbedder({self.model!r}, base_url={self.base_url!r})"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector per text. Raises HttpEmbedderError and httpx.HTTPError."""
        import httpx

        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        body = {"model": self.model, "input": [text[:MAX_TEXT_CHARS] for text in texts], "encoding_format": "float"}
        # A client per call: a worker may use several event loops in its life, and cached vectors need no call.
        async with httpx.AsyncClient(
            transport=self._transport, timeout=ANSWER_SECONDS, verify=tls(), headers=headers
        ) as client:
            answer = await client.post(f"{self.base_url}/embeddings", json=body)
        if answer.status_code != 200:
            raise HttpEmbedderError(f"{self.base_url} answered {answer.status_code}: check base_url, model and api_key")
        return _vectors(answer.json(), len(texts))


def _vectors(answer: Any, count: int) -> list[list[float]]:
    """Return the vectors in the order of the texts. The server gives the index of each."""
    try:
        by_index = {entry["index"]: entry["embedding"] for entry in answer["data"]}
        return [by_index[index] for index in range(count)]
    except (TypeError, KeyError) as exc:
        raise HttpEmbedderError("the answer has no vector for each text: is it an embeddings API?") from exc


#: Lengths of the n-grams, in characters.
_SIZES = (2, 3, 4)


class NgramEmbedder:
    """An `Embedder` that counts n-grams of two to four letters, hashed into `dimensions` numbers.

    It finds texts that share words, parts of words and misspellings, in any script. It knows no meanings: "remove" is
    not near "delete", nor a French question near an English description. For that, use `HttpEmbedder`.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        self.dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector of length 1 per text; all zeros for a text without letters."""
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for gram, count in Counter(_grams(text)).items():
            code = zlib.crc32(gram.encode(errors="surrogatepass"))
            # One bit of the hash is the sign: chance collisions cancel out as often as they add up.
            weight = _weight(gram) * (1 + math.log(count))
            vector[(code >> 1) % self.dimensions] += weight if code & 1 else -weight
        length = math.hypot(*vector)
        return [number / length for number in vector] if length else vector


def _weight(gram: str) -> int:
    """Return the weight of an n-gram: longer ones mean more; in scripts without spaces, two letters are a word."""
    return _SIZES[-1] if any(map(needs_no_space, gram)) else len(gram) - 1


def _grams(text: str) -> Iterator[str]:
    for word in words_of(text):
        padded = f" {word} "
        for size in _SIZES:
            yield from (padded[start : start + size] for start in range(len(padded) - size + 1))
