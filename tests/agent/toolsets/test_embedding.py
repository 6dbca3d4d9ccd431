"""EmbeddingSelector: shows the nearest tools by cached vectors, and all tools if embedding fails."""

from __future__ import annotations

import asyncio
import json
import math

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.selection.__main__ import missed, read_requests, read_tools
from sayso.agent import EmbeddingSelector, Message, Tool
from sayso.agent.messages import Role
from sayso.agent.tools.parameter import ToolParameter
from sayso.agent.toolsets.embedding import (
    RETRY_SECONDS,
    Embedder,
    HttpEmbedder,
    NgramEmbedder,
    _unit,
)
from sayso.agent.toolsets.selectors import narrow
from sayso.agent.toolsets.word_ranking import WordRanking


def make(name: str, description: str) -> Tool:
    """Return a tool that does nothing."""
    return Tool(name, description, (), lambda: name)


TOOLS = [make("north", "N"), make("east", "E"), make("north_too", "N2"), make("south", "S")]
VECTORS = {
    "north: N": (0, 1),
    "east: E": (1, 0),
    "north_too: N2": (0, 5),
    "south: S": (0, -1),
    "up": (0.1, 1),
}


class Table:
    """An embedder with a table of vectors that records its requests."""

    def __init__(self, **changes) -> None:
        self.table, self.asked, self.error = {**VECTORS, **changes}, [], None

    async def embed(self, texts):
        """Return the vector of each text."""
        self.asked.append(list(texts))
        if self.error:
            raise self.error
        return [self.table.get(text, (1, 1)) for text in texts]


class Clock:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


def names(selector: EmbeddingSelector, text: str = "up", tools: list[Tool] = TOOLS) -> list[str]:
    """Return the names of the tools shown after this text."""
    return [tool.name for tool in asyncio.run(narrow(selector, [Message(Role.USER, text)], tools))]


@pytest.mark.parametrize("url", ["http://[::1/v1", "https://host/v1?key=s3cr3t"])
def test_wrong_address_of_a_server_is_refused_at_once(url):
    """The error shows the value without what may be secret, and says what is wrong."""
    with pytest.raises(ValueError, match=r"is not a URL: write it as|ends in a query") as caught:
        HttpEmbedder(base_url=url)
    assert f"base_url {url.partition('?')[0]!r}" in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_address_of_a_server_with_a_password_is_refused():
    """The address is logged when the server fails."""
    with pytest.raises(ValueError, match="base_url 'https://host/v1' holds a user") as caught:
        HttpEmbedder(base_url="https://bot:s3cr3t@host/v1")
    assert "s3cr3t" not in str(caught.value)


def test_nearest_tools_are_shown_in_the_given_order():
    """Direction counts and length does not; of two equally near tools the first is shown."""
    assert names(EmbeddingSelector(top_k=2, embedder=Table())) == ["north", "north_too"]
    assert names(EmbeddingSelector(top_k=1, embedder=Table())) == ["north"]
    assert names(EmbeddingSelector(top_k=3, embedder=Table())) == ["north", "east", "north_too"]


def test_texts_are_embedded_in_one_call_and_once():
    """Later calls embed new texts only, and the next step of a turn embeds none."""
    table = Table()
    selector = EmbeddingSelector(top_k=2, embedder=table)
    names(selector)
    names(selector)
    names(selector, "down")
    assert [len(texts) for texts in table.asked] == [5, 1]


def test_changed_description_is_embedded_again():
    """The cache key is a hash of the embedded text, not of the name."""
    table = Table(**{"south: to the north": (0, 9)})
    selector = EmbeddingSelector(top_k=2, embedder=table)
    names(selector)
    assert names(selector, tools=[*TOOLS[1:3], make("south", "to the north")]) == [
        "north_too",
        "south",
    ]
    assert table.asked[1:] == [["south: to the north"]]


def test_few_tools_need_no_embedding():
    """The same holds for messages without text, such as pictures: all tools are shown."""
    table = Table()
    selector = EmbeddingSelector(top_k=4, embedder=table)
    assert len(names(selector)) == 4
    assert len(names(EmbeddingSelector(top_k=1, embedder=table), "")) == 4
    assert asyncio.run(narrow(EmbeddingSelector(top_k=1, embedder=table), [], TOOLS)) == []
    assert table.asked == []


def test_model_and_top_k_have_the_seeds_defaults():
    """Both can be set."""
    assert (EmbeddingSelector().model, EmbeddingSelector().top_k) == ("text-embedding-3-small", 5)
    assert (
        EmbeddingSelector("other", 2).model,
        EmbeddingSelector(model="other", top_k=2).top_k,
    ) == ("other", 2)


def test_query_is_the_last_user_message():
    """A tool's result is not part of the query."""
    table = Table()
    said = [Message(Role.USER, "up"), Message(Role.TOOL, "a page full of other words")]
    asyncio.run(narrow(EmbeddingSelector(top_k=1, embedder=table), said, TOOLS))
    assert table.asked[0][0] == "up"


@pytest.mark.parametrize(
    "answer",
    [
        [(1, 2)] * 4,
        [(1, 2)] * 6,
        [()] * 5,
        [(1, 2)] * 4 + [(1, 2, 3)],
        [(math.nan, 1)] * 5,
        None,
        ["ab"] * 5,
    ],
)
def test_invalid_vectors_show_all_tools(answer, caplog):
    """Their number, lengths or values are wrong: one warning is logged, and the turn is answered."""

    class Wrong:
        async def embed(self, texts):
            return answer

    selector = EmbeddingSelector(top_k=1, embedder=Wrong())
    assert len(names(selector)) == len(names(selector)) == 4
    assert [record.message for record in caplog.records] == ["selector.embedder_failed"]


def test_failing_embedder_is_not_called_for_a_while(caplog):
    """Users do not wait at each message for a server that is down; once it works again, the next failure is
    logged again.
    """
    table, clock = Table(), Clock()
    selector = EmbeddingSelector(top_k=1, embedder=table, clock=clock)
    table.error = OSError("no route")
    assert len(names(selector)) == len(names(selector)) == 4
    assert len(table.asked) == 1
    table.error, clock.now = None, RETRY_SECONDS
    assert names(selector) == ["north"]
    table.error = OSError("no route")
    names(selector, "other words")
    assert "no route" in caplog.records[1].advice


def test_hanging_embedder_times_out():
    """The turn continues with all tools."""

    class Hanging:
        async def embed(self, texts):
            await asyncio.Event().wait()

    assert len(names(EmbeddingSelector(top_k=1, embedder=Hanging(), embed_seconds=0.01))) == 4


def test_model_change_under_the_same_name_is_detected():
    """Vectors of another length clear the cache, and at the next attempt all come from one model."""
    table, clock = Table(), Clock()
    selector = EmbeddingSelector(top_k=1, embedder=table, clock=clock)
    names(selector)
    table.table = {text: (*vector, 0) for text, vector in VECTORS.items()} | {"down": (0, -1, 0)}
    assert len(names(selector, "down")) == 4
    clock.now = RETRY_SECONDS
    assert names(selector, "down") == ["south"]


def test_vector_cache_is_bounded():
    """The vectors of tools are used at every step, so they are kept, and those of old messages are evicted."""
    table = Table()
    selector = EmbeddingSelector(top_k=1, embedder=table, max_vectors=6)
    for number in range(50):
        names(selector, f"words {number}")
    assert len(selector._vectors) == 6
    assert len(table.asked[-1]) == 1


def test_top_k_below_one_is_refused():
    """It would never show a tool."""
    with pytest.raises(ValueError, match="top_k is 0"):
        EmbeddingSelector(top_k=0)


def cosine(one: list[float], other: list[float]) -> float:
    """Return the similarity as the selector computes it."""
    return sum(left * right for left, right in zip(_unit(one), _unit(other), strict=True))


def test_cosine_of_large_numbers_does_not_overflow():
    """An embedder may use any scale."""
    assert cosine([1e308, 1e308], [1e308, 0]) == pytest.approx(math.sqrt(0.5))


NUMBERS = st.floats(-1e6, 1e6).filter(lambda number: number == 0 or abs(number) > 1e-250)


@given(st.lists(NUMBERS, min_size=3, max_size=3), st.floats(0.1, 100))
def test_cosine_of_parallel_vectors_is_one(vector, factor):
    """Length makes no difference; the cosine of a zero vector is zero."""
    expected = 1 if any(vector) else 0
    assert cosine(vector, [factor * number for number in vector]) == pytest.approx(expected)


INVOICES = [
    make("delete_invoice", "Delete an invoice for good"),
    make("find_invoice", "Find an invoice by customer or number"),
    make("salesChart", "Draw a chart of what was sold per month"),
    make("remind_me", "Remind the user of something later"),
    make("weather", "天气预报: the weather forecast of a city"),
]


@pytest.mark.parametrize(
    ("said", "nearest"),
    [
        ("please delete invoice INV-42", "delete_invoice"),
        ("delte the invioce", "delete_invoice"),
        ("sales chart", "salesChart"),
        ("REMIND ME in 5 minutes", "remind_me"),
        ("明天天气", "weather"),
    ],
)
def test_ngrams_find_shared_words(said, nearest):
    """It works offline without a key, with parts of words, misspellings and any script."""
    assert names(EmbeddingSelector(top_k=1), said, INVOICES) == [nearest]


@pytest.mark.parametrize("part", ["open", "held_out"])
def test_nine_of_ten_plain_requests_find_their_tool_among_112(part):
    """The published list is used with the default selector. The figures are in docs/explanation/performance.md."""
    requests = read_requests(part)
    assert len(read_tools()) == 112
    assert len(missed(requests, EmbeddingSelector())) <= len(requests) / 10


PAYMENTS = [
    make("refund_invoice", "Refund a paid invoice"),
    make("cancel_invoice", "Cancel an invoice that was issued by mistake"),
    make("listEvents", "Show the calendar of a day"),
    Tool("report", "Report revenue", [ToolParameter(name="warehouse")], lambda warehouse: ""),
]


@pytest.mark.parametrize(
    ("said", "nearest"),
    [
        ("what about the events?", "listEvents"),
        ("it was mistakenly invoiced", "cancel_invoice"),
        ("reimburse 42", "refund_invoice"),
        ("everything in our warehouses", "report"),
    ],
)
def test_words_are_compared_by_stem(said, nearest):
    """Name, description and parameters count, synonyms match, and filler words are ignored."""
    assert names(EmbeddingSelector(top_k=1), said, PAYMENTS) == [nearest]


BESTELLUNGEN = [
    make("storno", "Eine Bestellung stornieren, die noch nicht verschickt wurde"),
    make("rechnung", "Eine Rechnung für die Kunden schreiben"),
    make("lager", "Zeigt, was von einem Artikel noch im Lager ist"),
]


def test_stemming_follows_the_language_of_the_tools():
    """A German plural and a German verb match, which an English stemmer would miss."""
    assert WordRanking(BESTELLUNGEN).scores("die Artikeln")[2] > 0
    assert names(
        EmbeddingSelector(top_k=1), "bitte storniere beide Bestellungen", BESTELLUNGEN
    ) == ["storno"]


def test_text_without_similarity_shows_all_tools():
    """An emoji is no reason to show only the first tools."""
    assert len(names(EmbeddingSelector(top_k=1), "👍", INVOICES)) == 5


def test_ngram_vectors_are_deterministic():
    """They do not depend on the process, so two workers select alike. Lone surrogates are accepted."""
    vectors = asyncio.run(NgramEmbedder(8).embed(["ab", "", "\ud800"]))
    assert [round(number, 3) for number in vectors[0]] == [
        -0.365,
        0.0,
        0.0,
        0.0,
        -0.913,
        0.0,
        0.183,
        0.0,
    ]
    assert vectors[1] == [0.0] * 8
    assert [round(math.hypot(*vector), 6) for vector in vectors] == [1.0, 0.0, 0.0]


def server(handler) -> HttpEmbedder:
    """Return an embedder whose server is a function."""
    transport = httpx.MockTransport(handler)
    return HttpEmbedder(
        "m", base_url="https://emb.example/v1/", api_key="s3cr3t", transport=transport
    )


def test_request_follows_the_openai_documentation():
    """One request has model, texts and key; the answer's indexes count, not its order."""
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
        return httpx.Response(200, json={"object": "list", "data": data})

    assert asyncio.run(server(handler).embed(["a", "b" * 9_000])) == [[1.0], [2.0]]
    (request,) = asked
    assert str(request.url) == "https://emb.example/v1/embeddings"
    assert request.headers["authorization"] == "Bearer s3cr3t"
    assert json.loads(request.content) == {
        "model": "m",
        "input": ["a", "b" * 8_000],
        "encoding_format": "float",
    }


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(401, json={"error": {"message": "bad key s3cr3t"}}),
        httpx.Response(302, headers={"location": "https://elsewhere.example"}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"data": [{"index": 5, "embedding": [1.0]}]}),
        httpx.Response(200, json=[]),
    ],
)
def test_refusing_server_shows_all_tools_and_no_secret(response, caplog):
    """The key is neither logged nor sent to the target of a redirect."""
    hosts = []

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return response

    assert len(names(EmbeddingSelector(top_k=1, embedder=server(handler)))) == 4
    assert "s3cr3t" not in f"{caplog.records[-1].__dict__}{server(handler)!r}"
    assert hosts == ["emb.example"]


@pytest.mark.parametrize("embedder", [NgramEmbedder(), HttpEmbedder(), Table()])
def test_embedders_implement_the_protocol(embedder):
    """The protocol has one method."""
    assert isinstance(embedder, Embedder)
