"""EmbeddingSelector."""

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


#: Seconds that the server has for its answer.
ANSWER_SECONDS = 8.0


#: Characters of a text that are sent: descriptions are shorter, and models take about 8,000 tokens.
MAX_TEXT_CHARS = 8_000


class HttpEmbedderError(Exception):
    """Raised when the server refuses, or answers something else than vectors. It never repeats the key."""


class HttpEmbedder:
    """An `Embedder` that asks `POST {base_url}/embeddings`: OpenAI, or a server of your own that is compatible.

    What the user said last is sent there with the descriptions of the tools. `api_key` goes into the Authorization
    header and nowhere else; redirects are not followed with it. `transport` is httpx's, for tests and proxies.
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
        """One vector per text. Raises HttpEmbedderError and httpx.HTTPError."""
        import httpx

        headers = {"Authorization": f"Bearer {self._api_key}"} if self._api_key else {}
        body = {"model": self.model, "input": [text[:MAX_TEXT_CHARS] for text in texts], "encoding_format": "float"}
        # A client per call: a worker may have several loops in its life, and a kept vector needs no call.
        async with httpx.AsyncClient(
            transport=self._transport, timeout=ANSWER_SECONDS, verify=tls(), headers=headers
        ) as client:
            answer = await client.post(f"{self.base_url}/embeddings", json=body)
        if answer.status_code != 200:
            raise HttpEmbedderError(f"{self.base_url} answered {answer.status_code}: check base_url, model and api_key")
        return _vectors(answer.json(), len(texts))


def _vectors(answer: Any, count: int) -> list[list[float]]:
    """The vectors in the order of the texts: each says its index."""
    try:
        by_index = {entry["index"]: entry["embedding"] for entry in answer["data"]}
        return [by_index[index] for index in range(count)]
    except (TypeError, KeyError) as exc:
        raise HttpEmbedderError("the answer has no vector for each text: is it an embeddings API?") from exc


#: Lengths of the runs of letters that are counted.
_SIZES = (2, 3, 4)


class NgramEmbedder:
    """An `Embedder` that counts runs of two to four letters, hashed into `dimensions` places.

    It finds texts that share words, parts of words and misspellings, in any script. It knows no meanings: "remove"
    is not near "delete", nor a French question near an English description. For that, use `HttpEmbedder`.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        self.dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """One vector of length 1 per text; all zeros for a text without letters."""
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> list[float]:
        vector = [0.0] * self.dimensions
        for gram, count in Counter(_grams(text)).items():
            code = zlib.crc32(gram.encode(errors="surrogatepass"))
            # One bit of the hash is the sign: what collides by chance cancels out as often as it adds up.
            weight = _weight(gram) * (1 + math.log(count))
            vector[(code >> 1) % self.dimensions] += weight if code & 1 else -weight
        length = math.hypot(*vector)
        return [number / length for number in vector] if length else vector


def _weight(gram: str) -> int:
    """Longer runs say more; in scripts without spaces two letters are a word already."""
    return _SIZES[-1] if any(map(needs_no_space, gram)) else len(gram) - 1


def _grams(text: str) -> Iterator[str]:
    for word in words_of(text):
        padded = f" {word} "
        for size in _SIZES:
            yield from (padded[at : at + size] for at in range(len(padded) - size + 1))


log = logging.getLogger(__name__)


#: Vectors that are kept at most: of tools, and of what was said last.
MAX_VECTORS = 1024


#: Seconds that an embedder may take, before all tools are shown.
EMBED_SECONDS = 10.0


#: Seconds for which one that failed is not asked again: people would wait for it in vain.
REST_SECONDS = 30.0


#: How much likeness in letters counts beside the words: it decides between tools that share the same words, and where
#: none are shared.
LETTERS_WEIGHT = 5.0


#: Packed: a thousand vectors of a thousand numbers are 8 MB so, and four times as much as tuples.
Vector: TypeAlias = "array[float]"


class EmbeddingError(Exception):
    """Raised when an embedder's answer cannot be compared: too few vectors, of several lengths, or not of numbers."""


class EmbeddingSelector:
    """The `top_k` tools nearest to the user's latest message, by the cosine of their vectors (seed).

    Without an `embedder` it ranks offline: by the words of names, descriptions and parameters (BM25 over stems) before
    letters (`NgramEmbedder`); `model` then only names it. The vectors of tools are kept by a hash of model, name and
    description: what changes is embedded again. All that is missing goes into one call. Where the embedder fails,
    takes more than EMBED_SECONDS or answers nonsense, all tools are shown, it is left alone for REST_SECONDS, and one
    warning is logged until it works again: that may cost tokens, and never an answer. Without messages no tool is
    shown; without words, or where nothing resembles them, all are. Raises ValueError for a `top_k` below 1.
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
        """The nearest tools, in the order given; of two equally near the first."""
        said, given = list(messages), list(tools)
        query = _query(said)
        if not said or not given:
            return []
        if not query or len(given) <= self.top_k or self._rests:
            return given
        try:
            scores = await self._scores(query, [f"{tool.name}: {tool.description}" for tool in given])
            if self._ranks_by_words:
                by_words = bm25_scores(query, [_all_words(tool) for tool in given])
                scores = [words + LETTERS_WEIGHT * letters for words, letters in zip(by_words, scores, strict=True)]
        except Exception as exc:  # noqa: BLE001  # an embedder may be anybody's code, or anybody's server
            self._warn(exc)
            return given
        self._failed_at = None
        if not any(scores):  # nothing in common with any of them
            return given
        nearest = sorted(range(len(given)), key=lambda at: (-scores[at], at))[: self.top_k]
        return [given[at] for at in sorted(nearest)]

    @property
    def _rests(self) -> bool:
        return self._failed_at is not None and self._clock() - self._failed_at < REST_SECONDS

    async def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        vectors = await self._vectors_of([query, *texts])
        if len({len(vector) for vector in vectors.values()}) > 1:
            self._vectors.clear()  # what was kept may be of another model by the same name
            raise EmbeddingError("vectors of different lengths cannot be compared: use one model for all")
        return [_product(vectors[query], vectors[text]) for text in texts]

    async def _vectors_of(self, texts: Sequence[str]) -> Mapping[str, Vector]:
        """The vector of each text: kept, or embedded with all others that are missing."""
        keys = {text: self._key(text) for text in texts}
        found = {text: self._vectors.get(key) for text, key in keys.items()}
        known = {text: vector for text, vector in found.items() if vector is not None}
        missing = [text for text in keys if text not in known]
        if missing:
            async with asyncio.timeout(self._embed_seconds):
                known |= dict(zip(missing, _checked(await self.embedder.embed(missing), len(missing)), strict=True))
        for text, key in keys.items():
            self._keep(key, known[text])
        return known

    def _key(self, text: str) -> str:
        return hashlib.sha256(f"{self.model}\0{text}".encode(errors="surrogatepass")).hexdigest()

    def _keep(self, key: str, vector: Vector) -> None:
        """Keep a vector as the newest; the oldest make room."""
        self._vectors.pop(key, None)
        self._vectors[key] = vector
        while len(self._vectors) > self._max_vectors:
            self._vectors.popitem(last=False)

    def _warn(self, exc: Exception) -> None:
        if self._failed_at is None:
            advice = f"all tools are shown until it works: {type(exc).__name__}: {exc}"
            log.warning("selector.embedder_failed", extra={"model": self.model, "advice": advice})
        self._failed_at = self._clock()


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    """How near two vectors are: 1 for the same direction, 0 for nothing in common, or where one is all zeros."""
    return _product(_unit(one), _unit(other))


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum((left * right for left, right in zip(one, other, strict=True)), 0.0)


def _unit(vector: Sequence[float]) -> Vector:
    """Return the vector with length 1. It is scaled first: squares of very small and very large numbers are lost."""
    largest = max(map(abs, vector), default=0.0) or 1.0
    scaled = [number / largest for number in vector]
    length = math.hypot(*scaled) or 1.0
    return array("d", (number / length for number in scaled))


def _all_words(tool: Tool) -> str:
    """Return what a tool says of itself: its name, its description, and the names and descriptions of parameters."""
    parameters = (f"{parameter.name} {parameter.description}" for parameter in tool.parameters)
    return " ".join([tool.name, tool.description, *parameters])


def _query(said: Sequence[Message]) -> str:
    """What the user said last; where nobody did, the last message."""
    users = [message for message in said if message.role == Role.USER]
    return (users or list(said) or [Message(Role.USER)])[-1].content.strip()


def _checked(vectors: Sequence[Sequence[float]], count: int) -> list[Vector]:
    """Return the vectors, each of length 1. Raises EmbeddingError."""
    checked = [array("d", vector) for vector in vectors]
    if len(checked) != count:
        raise EmbeddingError(f"{len(checked)} vectors for {count} texts: an embedder returns one per text")
    if not all(vector and all(map(math.isfinite, vector)) for vector in checked):
        raise EmbeddingError("a vector is empty or has a number that is not finite")
    return [_unit(vector) for vector in checked]
