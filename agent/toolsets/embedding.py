"""EmbeddingSelector: shows a model the tools nearest to the user's message, by words and vectors.

An Embedder turns a text into a vector, a list of numbers. Two texts of similar meaning have near
vectors, which is measured by their cosine. NgramEmbedder works offline, by letters; HttpEmbedder
calls a server, which knows meanings.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import time
import unicodedata
import zlib
from array import array
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

from sayso.agent.messages import Message, Role
from sayso.agent.providers.offline_words import words_of
from sayso.agent.tools.tool import Tool
from sayso.agent.toolsets.word_ranking import WordRanking
from sayso.infra.http import tls
from sayso.infra.urls import redacted_url, server_address
from sayso.pending.error_texts import error_text

if TYPE_CHECKING:
    import httpx

log = logging.getLogger(__name__)
#: Most vectors that are cached: of tools, and of recent messages.
MAX_VECTORS = 1024
#: Most rankings that are cached. Without the cache each step of a turn would make one, which takes
#: 8 ms with 240 tools.
MAX_RANKINGS = 16
#: Time limit of an embedder, in seconds. After it, all tools are shown.
EMBED_SECONDS = 10.0
#: How long an embedder that failed is not called again, in seconds. Otherwise every user would wait
#: for it in vain.
RETRY_SECONDS = 30.0
#: The weight of the similarity in letters, from 0 to 1, when it is added to the score by words,
#: which is about 5 to 20 for the right tool. It decides between tools that share the same words
#: with a text, and where no words are shared.
LETTERS_WEIGHT = 1.0
#: Most lists of tools whose words are cached: each role may have its own.
MAX_WORD_RANKINGS = 4
#: All tools are shown if their schemas have at most this many tokens. To choose among them would
#: save less than it costs, because it breaks the prompt cache of the vendor.
SHOW_ALL_TOKENS = 10_000
#: The share of the best score that a tool needs to be added to those that a conversation is shown.
#: On the part `open` of `benchmarks/selection` it adds three tools instead of five, and
#: misses 3 of 162 that `find_tools` then finds. With a higher share tools are added later, each
#: time with a new prefix: eight requests with 240 tools cost 19.5k units, with 0.8 they cost 24.2k.
NEEDED_SHARE = 0.4
#: Time limit of an embeddings server's answer, in seconds.
ANSWER_SECONDS = 8.0
#: Longest text that is sent, in characters. Descriptions are shorter, and models accept about 8,000
#: tokens.
MAX_TEXT_CHARS = 8_000
#: A vector as packed numbers. A thousand vectors of a thousand numbers take 8 MB, a fourth of what
#: tuples take.
Vector: TypeAlias = "array[float]"


@runtime_checkable
class Embedder(Protocol):
    """Turns texts into vectors that are near each other if the texts mean the same."""

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector per text, in their order, all of one length. May raise anything."""
        ...


class EmbeddingError(Exception):
    """Raised when a server gives no vectors, or an embedder's vectors cannot be compared.

    The message has no key.
    """


class _RankedTool(NamedTuple):
    """A tool with its score for a text, and whether it shares a word with that text."""

    tool: Tool
    score: float
    shares_words: bool


class EmbeddingSelector:
    """Selects the `top_k` tools nearest to the user's latest message.

    Without an `embedder` tools are ranked offline: first by the words of names, descriptions and
    parameters (`WordRanking`), then by letters (`NgramEmbedder`). With an embedder they are ranked
    by the cosine of vectors. The vectors of tools are cached by a hash of model, name and
    description, so a changed tool is embedded again. All missing vectors are fetched in one call.

    A failure may cost tokens, but never an answer. So if the embedder fails, takes longer than
    `embed_seconds` or returns invalid vectors, all tools are shown, it is not called again for
    RETRY_SECONDS, and one warning is logged until it works again. Without messages no tool is
    shown. Without text, or if no tool resembles it, all are.

    This selector does not restrict who may use a tool. An agent keeps showing what a conversation
    was shown once (`agent/run/shown_tools.py`).

    * `model`: the name of the embedder's model, for the cache and for logs.
    * `top_k`: how many tools are shown, from 1.
    * `show_all_tokens`: an agent uses the selector only if the schemas of all tools have more
      tokens than this.
    * `max_vectors`: how many vectors are cached at most.
    * `embed_seconds`: the time limit of the embedder.
    * `clock`: returns seconds.

    Raises ValueError for a `top_k` below 1.
    """

    def __init__(
        self,
        model: str = "text-embedding-3-small",
        top_k: int = 5,
        embedder: Embedder | None = None,
        *,
        show_all_tokens: int = SHOW_ALL_TOKENS,
        max_vectors: int = MAX_VECTORS,
        embed_seconds: float = EMBED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if top_k < 1:
            raise ValueError(f"top_k is {top_k!r}: show at least 1 tool")
        self.model = model
        self.top_k = top_k
        self.show_all_tokens = show_all_tokens
        self.embedder: Embedder = embedder or NgramEmbedder()
        self._ranks_by_words = embedder is None
        self._vectors: OrderedDict[str, Vector] = OrderedDict()
        #: The last rankings, by query and tools: each step of a turn asks for the same one.
        self._rankings: OrderedDict[tuple[str, tuple[Tool, ...]], list[_RankedTool]] = OrderedDict()
        #: The words of lists of tools, the last used last.
        self._word_rankings: OrderedDict[tuple[Tool, ...], WordRanking] = OrderedDict()
        self._max_vectors = max_vectors
        self._embed_seconds = embed_seconds
        self._clock = clock
        #: The time of `clock` when the embedder failed; None while it works.
        self._failed_at: float | None = None

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """Return the nearest tools, in the order of `tools`; of two equally near, the first."""
        history = list(messages)
        all_tools = list(tools)
        if not history or not all_tools:
            return []
        if len(all_tools) <= self.top_k:
            return all_tools

        user_messages = [message for message in history if message.role == Role.USER]
        latest = user_messages[-1] if user_messages else history[-1]
        nearest = await self.nearest(latest.content.strip(), all_tools)
        if not nearest:
            return all_tools
        return [tool for tool in all_tools if tool in nearest]

    async def nearest(
        self, query: str, tools: Sequence[Tool], count: int | None = None
    ) -> list[Tool]:
        """Return the `count` tools nearest to a text, by default `top_k`, the nearest first.

        There are none for an empty text, if no tool resembles it, and while the embedder fails.
        """
        ranked = await self._ranked(query, tools, count or self.top_k)
        return [each.tool for each in ranked]

    async def needed(self, query: str, tools: Sequence[Tool]) -> list[Tool]:
        """Return those of the `top_k` nearest tools that a text clearly asks for, nearest first.

        These are the tools with at least NEEDED_SHARE of the best score. Without an embedder there
        are none for a text that shares no word with any tool.
        """
        ranked = await self._ranked(query, tools, self.top_k)
        if not ranked or not any(each.shares_words for each in ranked):
            return []
        return [each.tool for each in ranked if each.score >= NEEDED_SHARE * ranked[0].score]

    async def _ranked(self, query: str, tools: Sequence[Tool], count: int) -> list[_RankedTool]:
        """Return the `count` tools nearest to a text, the nearest first.

        There are none if the text is empty or resembles no tool, and while the embedder fails.
        """
        all_tools = tuple(tools)
        key = (query, all_tools)
        if key in self._rankings:
            return self._rankings[key][:count]
        is_paused = self._failed_at is not None and self._clock() - self._failed_at < RETRY_SECONDS
        if not query or not tools or is_paused:
            return []

        texts = [f"{tool.name}: {tool.description}" for tool in tools]
        try:
            scores = await self._scores(query, texts)
            # With an embedder words do not count: each tool counts as if it shared one.
            word_scores = [1.0] * len(tools)
            if self._ranks_by_words:
                word_scores = self._word_ranking(all_tools).scores(query)
                letter_scores = scores
                scores = [
                    words + LETTERS_WEIGHT * letters
                    for words, letters in zip(word_scores, letter_scores, strict=True)
                ]
        except Exception as exc:  # an embedder may be third-party code, or a remote server
            if self._failed_at is None:
                advice = (
                    f"all tools are shown until it works: {type(exc).__name__}: {error_text(exc)}"
                )
                log.warning(
                    "selector.embedder_failed", extra={"model": self.model, "advice": advice}
                )
            self._failed_at = self._clock()
            return []

        self._failed_at = None
        if not any(scores):  # no tool resembles the message
            return []

        order = sorted(range(len(tools)), key=lambda index: (-scores[index], index))
        ranking = [
            _RankedTool(tools[index], scores[index], shares_words=word_scores[index] > 0)
            for index in order
        ]
        self._rankings[key] = ranking
        while len(self._rankings) > MAX_RANKINGS:
            self._rankings.popitem(last=False)
        return ranking[:count]

    def _word_ranking(self, tools: tuple[Tool, ...]) -> WordRanking:
        """Return the WordRanking of these tools, which is made once for each list of tools."""
        ranking = self._word_rankings.get(tools)
        if ranking is None:
            ranking = WordRanking(tools)
            self._word_rankings[tools] = ranking
        self._word_rankings.move_to_end(tools)
        while len(self._word_rankings) > MAX_WORD_RANKINGS:
            self._word_rankings.popitem(last=False)
        return ranking

    async def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return the cosine of the vectors of the query and each text.

        All missing vectors are fetched in one call. Raises EmbeddingError, TimeoutError, and what
        the embedder raises.
        """
        keys: dict[str, str] = {}
        for text in [query, *texts]:
            name = f"{self.model}\0{text}".encode(errors="surrogatepass")
            keys[text] = hashlib.sha256(name).hexdigest()
        vectors = {text: self._vectors[key] for text, key in keys.items() if key in self._vectors}

        missing = [text for text in keys if text not in vectors]
        if missing:
            async with asyncio.timeout(self._embed_seconds):
                embedded = await self.embedder.embed(missing)
            packed = [array("d", vector) for vector in embedded]
            if len(packed) != len(missing):
                reason = f"{len(packed)} vectors for {len(missing)} texts"
                raise EmbeddingError(f"{reason}: an embedder returns one per text")
            if not all(vector and all(map(math.isfinite, vector)) for vector in packed):
                raise EmbeddingError("a vector is empty or has a number that is not finite")
            vectors |= dict(zip(missing, map(_unit, packed), strict=True))

        for text, key in keys.items():
            self._vectors[key] = vectors[text]
            self._vectors.move_to_end(key)
        while len(self._vectors) > self._max_vectors:
            self._vectors.popitem(last=False)
        if len({len(vector) for vector in vectors.values()}) > 1:
            # Cached vectors may be those of another model with the same name.
            self._vectors.clear()
            raise EmbeddingError(
                "vectors of different lengths cannot be compared: use one model for all"
            )

        # All vectors have the length 1, so their product is their cosine.
        query_vector = vectors[query]
        return [sum(map(mul, query_vector, vectors[text]), 0.0) for text in texts]


def _unit(vector: Sequence[float]) -> Vector:
    """Return the vector scaled to length 1. A vector of zeros is returned unchanged."""
    length = math.hypot(*vector) or 1.0
    return array("d", (number / length for number in vector))


class HttpEmbedder:
    """An `Embedder` that calls `POST {base_url}/embeddings` of OpenAI or of a compatible server.

    The user's last message and the descriptions of the tools are sent there. `api_key` is sent in
    the Authorization header only, "" for no header; redirects are not followed. `transport` is that
    of httpx, for tests and proxies. Raises ValueError for a `base_url` that is no address, and for
    one with a user or password, which would be logged with it.
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
        try:
            self.base_url = server_address(base_url)
        except ValueError as exc:
            raise ValueError(f"base_url {redacted_url(base_url)!r} {exc}") from None
        self._api_key = api_key
        self._transport = transport

    def __repr__(self) -> str:
        return f"HttpEmbedder({self.model!r}, base_url={self.base_url!r})"

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector per text. Raises EmbeddingError and httpx.HTTPError."""
        import httpx

        headers: dict[str, str] = {}
        if self._api_key:
            headers["Authorization"] = f"Bearer {self._api_key}"
        body = {
            "model": self.model,
            "input": [text[:MAX_TEXT_CHARS] for text in texts],
            "encoding_format": "float",
        }
        # A client per call: a worker may use several event loops in its life,
        # and cached vectors need no call.
        async with httpx.AsyncClient(
            transport=self._transport, timeout=ANSWER_SECONDS, verify=tls(), headers=headers
        ) as client:
            answer = await client.post(f"{self.base_url}/embeddings", json=body)
        if answer.status_code != 200:
            raise EmbeddingError(
                f"{self.base_url} answered {answer.status_code}: check base_url, model and api_key"
            )
        return _vectors(answer.json(), len(texts))


def _vectors(answer: Any, count: int) -> list[list[float]]:
    """Return the vectors in an answer, in the order of the texts. Raises EmbeddingError."""
    try:
        by_index = {entry["index"]: entry["embedding"] for entry in answer["data"]}
        return [by_index[index] for index in range(count)]
    except (TypeError, KeyError) as exc:
        raise EmbeddingError(
            "the answer has no vector for each text: is it an embeddings API?"
        ) from exc


#: Lengths of the n-grams, in characters.
_GRAM_SIZES = (2, 3, 4)


class NgramEmbedder:
    """An `Embedder` that counts n-grams of two to four letters, hashed into `dimensions` numbers.

    An n-gram is a run of n characters. Texts are near if they share words or parts of words, also
    misspelled, in any script. Meanings do not count: "remove" is not near "delete", nor a French
    question near an English description. For that, use `HttpEmbedder`.
    """

    def __init__(self, dimensions: int = 1024) -> None:
        self.dimensions = dimensions

    async def embed(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector of length 1 per text; all zeros for a text without letters."""
        vectors = []
        for text in texts:
            grams = Counter[str]()
            for word in words_of(text):
                grams.update(_grams_of(f" {word} "))
            vector = [0.0] * self.dimensions
            for gram, count in grams.items():
                code = zlib.crc32(gram.encode(errors="surrogatepass"))
                # Longer n-grams mean more. In scripts without spaces, two letters are a word.
                length_weight = len(gram) - 1
                if any(map(needs_no_space, gram)):
                    length_weight = _GRAM_SIZES[-1]
                weight = length_weight * (1 + math.log(count))
                # One bit of the hash is the sign, so that chance collisions cancel out as often as
                # they add up.
                sign = 1 if code & 1 else -1
                vector[(code >> 1) % self.dimensions] += sign * weight
            vectors.append(list(_unit(vector)))
        return vectors


def _grams_of(text: str) -> Iterator[str]:
    """Yield the n-grams of a word with a space on both sides, so that its ends count too."""
    for size in _GRAM_SIZES:
        for start in range(len(text) - size + 1):
            yield text[start : start + size]


#: How the Unicode names of letters begin in scripts without spaces between words. In these, any
#: character may end a word.
_UNSPACED_SCRIPTS = (
    "CJK",
    "HIRAGANA",
    "KATAKANA",
    "THAI",
    "LAO",
    "KHMER",
    "MYANMAR",
    "TIBETAN",
    "HALFWIDTH KATAKANA",
)


def has_word(text: str, word: str) -> bool:
    """Return whether a text contains a word as a whole word, in any script."""
    start = text.find(word)
    while start >= 0:
        end = start + len(word)
        begins_inside_word = _joins(text[start - 1 : start], word[0])
        ends_inside_word = _joins(word[-1], text[end : end + 1])
        if not begins_inside_word and not ends_inside_word:
            return True
        start = text.find(word, start + 1)
    return False


def needs_no_space(char: str) -> bool:
    """Return whether this letter's script has no spaces between words."""
    return not char.isascii() and unicodedata.name(char, "").startswith(_UNSPACED_SCRIPTS)


def _joins(left: str, right: str) -> bool:
    """Return whether two adjacent characters belong to one word. Either may be "".

    A word has letters, digits, and signs that combine with them, such as vowels in Devanagari.
    """
    for char in (left, right):
        if not char or needs_no_space(char):
            return False
        if char != "_" and unicodedata.category(char)[0] not in "LNM":
            return False
    return True
