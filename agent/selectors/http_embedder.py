"""HttpEmbedder: vectors from a server that speaks OpenAI's embeddings API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sayso.channels.fetch import tls

if TYPE_CHECKING:  # a process that embeds nothing does not load it
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
