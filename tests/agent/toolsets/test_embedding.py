"""EmbeddingSelector: the nearest tools, from vectors that are asked for once, and all tools where that fails."""

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
    _dot_product,
    _unit,
    bm25_scores,
)
from sayso.agent.toolsets.selectors import narrow


def make(name: str, description: str) -> Tool:
    """A tool that does nothing."""
    return Tool(name, description, (), lambda: name)


TOOLS = [make("north", "N"), make("east", "E"), make("north_too", "N2"), make("south", "S")]
VECTORS = {"north: N": (0, 1), "east: E": (1, 0), "north_too: N2": (0, 5), "south: S": (0, -1), "up": (0.1, 1)}


class Table:
    """An embedder with a table, which counts what it was asked."""

    def __init__(self, **changes) -> None:
        self.table, self.asked, self.error = {**VECTORS, **changes}, [], None

    async def embed(self, texts):
        """Look each text up."""
        self.asked.append(list(texts))
        if self.error:
            raise self.error
        return [self.table.get(text, (1, 1)) for text in texts]


class Clock:
    """A clock that stands."""

    now = 0.0

    def __call__(self) -> float:
        """The time."""
        return self.now


def names(selector: EmbeddingSelector, text: str = "up", tools: list[Tool] = TOOLS) -> list[str]:
    """What is shown after these words."""
    return [tool.name for tool in asyncio.run(narrow(selector, [Message(Role.USER, text)], tools))]


def test_nearest_tools_are_shown_in_the_order_given():
    """By direction, not by length; of two equally near the first."""
    assert names(EmbeddingSelector(top_k=2, embedder=Table())) == ["north", "north_too"]
    assert names(EmbeddingSelector(top_k=1, embedder=Table())) == ["north"]
    assert names(EmbeddingSelector(top_k=3, embedder=Table())) == ["north", "east", "north_too"]


def test_everything_is_asked_for_in_one_call_and_once():
    """Then only what is new, and in the next step of a turn nothing."""
    table = Table()
    selector = EmbeddingSelector(top_k=2, embedder=table)
    names(selector)
    names(selector)
    names(selector, "down")
    assert [len(texts) for texts in table.asked] == [5, 1]


def test_changed_description_is_embedded_again():
    """The hash is of what is embedded, not of the name."""
    table = Table(**{"south: to the north": (0, 9)})
    selector = EmbeddingSelector(top_k=2, embedder=table)
    names(selector)
    assert names(selector, tools=[*TOOLS[1:3], make("south", "to the north")]) == ["north_too", "south"]
    assert table.asked[1:] == [["south: to the north"]]


def test_few_tools_cost_no_call():
    """Nor do messages without words, such as a picture: all tools are shown."""
    table = Table()
    selector = EmbeddingSelector(top_k=4, embedder=table)
    assert len(names(selector)) == 4
    assert len(names(EmbeddingSelector(top_k=1, embedder=table), "")) == 4
    assert asyncio.run(narrow(EmbeddingSelector(top_k=1, embedder=table), [], TOOLS)) == []
    assert table.asked == []


def test_model_and_number_of_tools_are_those_of_the_seed_by_default():
    """And both may be given."""
    assert (EmbeddingSelector().model, EmbeddingSelector().top_k) == ("text-embedding-3-small", 5)
    assert (EmbeddingSelector("other", 2).model, EmbeddingSelector(model="other", top_k=2).top_k) == ("other", 2)


def test_query_is_what_the_user_said_last():
    """Not the result of a tool, which may be anything."""
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
def test_answer_that_cannot_be_compared_shows_all_tools(answer, caplog):
    """Too few, too many, of several lengths, no numbers: one warning, and an answer for the user."""

    class Wrong:
        async def embed(self, texts):
            return answer

    selector = EmbeddingSelector(top_k=1, embedder=Wrong())
    assert len(names(selector)) == len(names(selector)) == 4
    assert [record.message for record in caplog.records] == ["selector.embedder_failed"]


def test_failing_embedder_is_left_alone_for_a_while(caplog):
    """Nobody waits for a server that is down at every message; once it works, it counts again, and the next failure is
    told again.
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


def test_hanging_embedder_is_given_up():
    """The turn has better uses for its time."""

    class Hanging:
        async def embed(self, texts):
            await asyncio.Event().wait()

    assert len(names(EmbeddingSelector(top_k=1, embedder=Hanging(), embed_seconds=0.01))) == 4


def test_model_that_changed_behind_its_name_is_noticed():
    """New vectors of another length: what was kept is thrown away, and the next time all are of one model."""
    table, clock = Table(), Clock()
    selector = EmbeddingSelector(top_k=1, embedder=table, clock=clock)
    names(selector)
    table.table = {text: (*vector, 0) for text, vector in VECTORS.items()} | {"down": (0, -1, 0)}
    assert len(names(selector, "down")) == 4
    clock.now = RETRY_SECONDS
    assert names(selector, "down") == ["south"]


def test_vectors_kept_are_bounded():
    """People say many things; the tools' vectors are used at every step, so they stay."""
    table = Table()
    selector = EmbeddingSelector(top_k=1, embedder=table, max_vectors=6)
    for number in range(50):
        names(selector, f"words {number}")
    assert len(selector._vectors) == 6
    assert len(table.asked[-1]) == 1


def test_top_k_below_one_is_refused():
    """It would show nothing, ever."""
    with pytest.raises(ValueError, match="top_k is 0"):
        EmbeddingSelector(top_k=0)


def cosine(one: list[float], other: list[float]) -> float:
    """Similarity, as the selector compares vectors."""
    return _dot_product(_unit(one), _unit(other))


def test_cosine_of_the_largest_numbers_is_no_overflow():
    """Whatever an embedder's scale is."""
    assert cosine([1e308, 1e308], [1e308, 0]) == pytest.approx(math.sqrt(0.5))


NUMBERS = st.floats(-1e6, 1e6).filter(lambda number: number == 0 or abs(number) > 1e-250)


@given(st.lists(NUMBERS, min_size=3, max_size=3), st.floats(0.1, 100))
def test_cosine_is_one_for_one_direction(vector, factor):
    """Whatever the length; zero for nothing at all."""
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
def test_letters_alone_find_shared_words(said, nearest):
    """Offline, without a key: parts of words, misspellings, any script."""
    assert names(EmbeddingSelector(top_k=1), said, INVOICES) == [nearest]


@pytest.mark.parametrize("part", ["open", "held_out"])
def test_nine_of_ten_plain_requests_find_their_tool_among_112(part):
    """The published list, with the default selector. The figures are in docs/explanation/performance.md."""
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
def test_words_are_compared_by_their_stems(said, nearest):
    """Of name, description and parameters; words that people use for one another are alike, filler words ignored."""
    assert names(EmbeddingSelector(top_k=1), said, PAYMENTS) == [nearest]


BESTELLUNGEN = [
    make("storno", "Eine Bestellung stornieren, die noch nicht verschickt wurde"),
    make("rechnung", "Eine Rechnung für die Kunden schreiben"),
    make("lager", "Zeigt, was von einem Artikel noch im Lager ist"),
]


def test_stems_are_those_of_the_language_of_the_tools():
    """A German plural and a German verb find what an English stemmer would not."""
    assert bm25_scores("die Artikeln", [tool.description for tool in BESTELLUNGEN])[2] > 0
    assert names(EmbeddingSelector(top_k=1), "bitte storniere beide Bestellungen", BESTELLUNGEN) == ["storno"]


@given(st.text(), st.lists(st.text()))
def test_words_of_any_text_can_be_scored(said, texts):
    """One finite score for each text, none below zero, whatever is written there."""
    scores = bm25_scores(said, texts)
    assert len(scores) == len(texts)
    assert all(0 <= score < math.inf for score in scores)


def test_words_that_resemble_nothing_choose_nothing():
    """A thumbs-up is no reason to show the first five: all tools are shown."""
    assert len(names(EmbeddingSelector(top_k=1), "👍", INVOICES)) == 5


def test_vectors_of_letters_are_the_same_everywhere():
    """No seed of a process is in them: two workers choose alike. Unpaired surrogates are no error."""
    vectors = asyncio.run(NgramEmbedder(8).embed(["ab", "", "\ud800"]))
    assert [round(number, 3) for number in vectors[0]] == [-0.365, 0.0, 0.0, 0.0, -0.913, 0.0, 0.183, 0.0]
    assert vectors[1] == [0.0] * 8
    assert [round(math.hypot(*vector), 6) for vector in vectors] == [1.0, 0.0, 0.0]


def server(handler) -> HttpEmbedder:
    """An embedder that asks a function."""
    transport = httpx.MockTransport(handler)
    return HttpEmbedder("m", base_url="https://emb.example/v1/", api_key="s3cr3t", transport=transport)


def test_server_is_asked_as_openai_documents_it():
    """One call with model, texts and key; the answer's order does not matter, its indexes do."""
    asked = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        data = [{"index": 1, "embedding": [2.0]}, {"index": 0, "embedding": [1.0]}]
        return httpx.Response(200, json={"object": "list", "data": data})

    assert asyncio.run(server(handler).embed(["a", "b" * 9_000])) == [[1.0], [2.0]]
    (request,) = asked
    assert str(request.url) == "https://emb.example/v1/embeddings"
    assert request.headers["authorization"] == "Bearer s3cr3t"
    assert json.loads(request.content) == {"model": "m", "input": ["a", "b" * 8_000], "encoding_format": "float"}


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
def test_server_that_refuses_shows_all_tools_and_no_secret(response, caplog):
    """The key is neither logged nor sent to where a redirect leads."""
    hosts = []

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return response

    assert len(names(EmbeddingSelector(top_k=1, embedder=server(handler)))) == 4
    assert "s3cr3t" not in f"{caplog.records[-1].__dict__}{server(handler)!r}"
    assert hosts == ["emb.example"]


@pytest.mark.parametrize("embedder", [NgramEmbedder(), HttpEmbedder(), Table()])
def test_all_are_embedders(embedder):
    """One method is enough."""
    assert isinstance(embedder, Embedder)
