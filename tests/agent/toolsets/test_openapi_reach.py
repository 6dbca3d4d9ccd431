"""OpenApiToolProvider calls one origin only, shows its secret in no text, and lets no argument leave its place."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from sayso.agent.toolsets.base import SourceError
from sayso.agent.toolsets.openapi import OpenApiToolProvider
from sayso.agent.toolsets.openapi_request import Auth
from tests.agent.toolsets.pets import PETS, call, provider, refusal, tools_of, with_operation

SECRET = "s3cr3t+value/42"


@pytest.mark.parametrize(
    "value", ["../admin", "a/../../admin", "%2e%2e/admin", "x?y=1", "x#y", "a b", "é", "//h", "\\"]
)
def test_path_argument_stays_one_segment_of_the_path(tmp_path: Path, api, value: str):
    """It is quoted, so the server sees no other path and no query."""
    seen = call(provider(tmp_path, api), "getPet", id=value)["path"]
    assert seen.startswith("/pets/")
    assert seen.count("/") == 2
    assert not set("?#") & set(seen)


@pytest.mark.parametrize("value", ["..", ".", ""])
def test_path_argument_that_cannot_be_quoted_is_refused(tmp_path: Path, api, value: str):
    """Dots and an empty value would change the path, and no request is sent."""
    assert "which cannot stand in a path" in refusal(provider(tmp_path, api), "getPet", id=value)
    assert api.asked == []


@pytest.mark.parametrize(
    "where",
    [
        "http://169.254.169.254/",
        "https://evil.example.com/pets/1",
        "//evil.example.com/",
        "http://127.0.0.1:1/",
    ],
)
def test_redirect_to_another_origin_is_not_followed(tmp_path: Path, api, where: str):
    """Only the pinned origin is called, so the secret is sent nowhere else."""
    api.answer("/pets/1", "", status=302, Location=where)
    said = refusal(provider(tmp_path, api, auth=Auth.bearer(SECRET)), "getPet", id="1")
    assert "redirects elsewhere, which is not followed" in said
    assert len(api.asked) == 1


def test_redirect_within_the_origin_is_followed_by_reading_calls_only(tmp_path: Path, api):
    """A deletion is not sent again."""
    api.answer("/pets/1", "", status=307, Location="/pets/2")
    pets = provider(tmp_path, api)
    assert call(pets, "getPet", id="1")["path"] == "/pets/2"
    assert "whether 'deletePet' took effect is not known" in refusal(pets, "deletePet", id="1")
    assert [(method, path) for method, path, *_ in api.asked][2:] == [("DELETE", "/pets/1")]


def test_number_of_redirects_is_limited(tmp_path: Path, api):
    """A redirect to itself ends too."""
    api.answer("/pets/1", "", status=302, Location="/pets/1")
    assert "redirects, which is not followed for ever" in refusal(
        provider(tmp_path, api), "getPet", id="1"
    )


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "100.64.0.1",
    ],
)
def test_private_address_is_refused_unless_base_url_has_the_host(tmp_path: Path, address: str):
    """The resolved address counts, not the name, and the checked address is the one connected to."""

    async def resolve(host: str, port: int) -> list[str]:
        return [address]

    document = {**PETS, "servers": [{"url": "https://pets.example.com/v1"}]}
    said = refusal(
        provider(tmp_path, document=document, base_url="", resolve=resolve), "getPet", id="1"
    )
    assert "pets.example.com is not public: if you mean it, write it as base_url" in said


def test_document_cannot_send_its_calls_to_another_origin(tmp_path: Path, api):
    """A fetched document may only describe its own origin unless base_url names another."""
    document = {**PETS, "servers": [{"url": "https://elsewhere.example.com"}]}
    api.answer("/openapi.json", document)
    asked = OpenApiToolProvider(f"{api.url}/openapi.json", base_url=api.url)
    assert call(asked, "getPet", id="1")["path"] == "/pets/1"

    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.216.34"]

    pets = OpenApiToolProvider("https://pets.example.com/openapi.json", resolve=resolve)
    with pytest.raises(
        SourceError,
        match=r"sends its calls to 'elsewhere\.example\.com': if you mean it, write it as",
    ):
        pets._read(_parsed(document))


def _parsed(document: Any) -> Any:
    from sayso.agent.toolsets.openapi_document import parse

    return parse(json.dumps(document), "it")


def test_document_with_a_server_without_https_is_refused_before_any_call(tmp_path: Path):
    """Else `check` would say ok, and each call fail after the person's yes."""
    document = tmp_path / "pets.json"
    document.write_text(json.dumps({**PETS, "servers": [{"url": "http://pets.example.com/v1"}]}))
    with pytest.raises(
        SourceError,
        match=r"'pets\.example\.com', without https: if you mean it, write it as base_url",
    ):
        asyncio.run(OpenApiToolProvider(document).list_tools())


def test_document_on_a_private_host_needs_base_url(api):
    """The rule also holds for fetching the document."""
    api.answer("/openapi.json", PETS)
    with pytest.raises(
        SourceError, match="is reached without https: if you mean it, write it as base_url"
    ):
        asyncio.run(OpenApiToolProvider(f"{api.url}/openapi.json").list_tools())
    assert api.asked == []


def test_secret_is_sent_with_calls_and_not_when_fetching_the_document(api):
    """The document may come from another party than the API."""
    api.answer("/openapi.json", PETS)
    pets = OpenApiToolProvider(
        f"{api.url}/openapi.json", base_url=api.url, auth=Auth.bearer(SECRET)
    )
    call(pets, "getPet", id="1")
    assert [headers.get("authorization") for _, _, headers, _ in api.asked] == [
        None,
        f"Bearer {SECRET}",
    ]


@pytest.mark.parametrize(
    ("auth", "seen"),
    [
        (Auth.bearer(SECRET), f"Bearer {SECRET}"),
        (Auth.basic("ana", SECRET), "Basic YW5hOnMzY3IzdCt2YWx1ZS80Mg=="),
        (Auth("header", "X-Key", SECRET), SECRET),
        (Auth("query", "key", SECRET), "key=s3cr3t%2Bvalue%2F42"),
        (Auth("cookie", "session", SECRET), "session=s3cr3t%2Bvalue%2F42"),
    ],
)
def test_secret_is_sent_and_never_shown(tmp_path: Path, api, caplog, auth: Auth, seen: str):
    """It is in no error, log, repr or result, although the answer repeats it."""
    pets = provider(tmp_path, api, auth=auth)
    call(pets, "getPet", id="1")
    _, path, headers, _ = api.asked[0]
    assert seen in f"{path} {headers}"
    api.answer("/pets/2", f"no: {path} {headers}", status=401)
    said = refusal(pets, "getPet", id="2") + repr(auth) + caplog.text
    api.answer("/pets/3", {"seen": f"{path} {headers}"})
    for secret in (SECRET, "s3cr3t", auth.value.rpartition(" ")[2]):
        assert secret not in said
        assert secret not in str(call(pets, "getPet", id="3"))


@pytest.mark.parametrize(
    ("where", "name", "auth"),
    [
        ("header", "Authorization", Auth.bearer(SECRET)),
        ("header", "X-Key", Auth("header", "x-key", SECRET)),
        ("query", "key", Auth("query", "key", SECRET)),
        ("cookie", "session", Auth("cookie", "session", SECRET)),
    ],
)
def test_authentication_parameter_is_hidden_from_the_model(
    tmp_path: Path, api, where: str, name: str, auth: Auth
):
    """It is hidden even if the document requires it, and only the configured value is sent."""
    parameters = [
        {"name": name, "in": where, "required": True, "schema": {"type": "string"}},
        {"name": "limit", "in": "query", "schema": {"type": "integer"}},
    ]
    pets = provider(tmp_path, api, with_operation("/pets", "get", parameters=parameters), auth=auth)
    assert [each.name for each in tools_of(pets)["findPets"].parameters] == ["limit"]
    call(pets, "findPets", limit=3)
    _, path, headers, _ = api.asked[0]
    assert f"{path} {headers}".count("s3cr3t") == 1


def test_argument_cannot_replace_the_authentication_parameter(tmp_path: Path, api):
    """The keys of an object argument go into the query too; only the configured value is sent."""
    parameters = [
        {
            "name": "filter",
            "in": "query",
            "schema": {"type": "object", "additionalProperties": True},
        }
    ]
    document = with_operation("/pets", "get", parameters=parameters)
    pets = provider(tmp_path, api, document, auth=Auth("query", "key", SECRET))
    call(pets, "findPets", filter={"key": "mine", "name": "Rex"})
    assert api.asked[0][1] == "/pets?name=Rex&key=s3cr3t%2Bvalue%2F42"


def test_large_answer_is_not_read_completely(tmp_path: Path, api):
    """Reading stops at the limit, whatever the headers say."""
    api.answer("/pets/1", b"x" * 3_000_000)
    assert "answered with more than 100000 bytes" in refusal(
        provider(tmp_path, api, max_bytes=100_000), "getPet", id="1"
    )


def test_silent_server_times_out(tmp_path: Path):
    """A call that changes data may have had its effect."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        pets = provider(
            tmp_path, base_url=f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3
        )
        said = refusal(pets, "deletePet", id="1")
    assert "gave no answer within 0.3 s; whether 'deletePet' took effect is not known" in said


def test_unreachable_server_received_no_call(tmp_path: Path):
    """The outcome is known."""
    said = refusal(provider(tmp_path, base_url="http://127.0.0.1:1"), "deletePet", id="1")
    assert (
        "127.0.0.1:1 cannot be reached (ConnectError): does it run? 'deletePet' was not sent"
        in said
    )


@pytest.mark.parametrize("path", ["@evil.example.com/", ".evil.example.com/", ":1/", "x"])
def test_path_of_the_document_cannot_change_the_host(tmp_path: Path, path: str):
    """The document's author may not be trusted with the secret."""
    assert tools_of(provider(tmp_path, document=_only_path(path))) == {}


def test_secret_of_a_document_with_an_uppercase_scheme_is_not_shown():
    """It is a URL and not a file, whose whole path an error would name."""
    pets = OpenApiToolProvider(f"HTTPS://127.0.0.1:1/pets.json?token={SECRET}")
    with pytest.raises(SourceError) as refused:
        tools_of(pets)
    assert SECRET not in str(refused.value)


def test_path_of_the_document_cannot_leave_the_base_url(tmp_path: Path, api):
    """Neither dots nor a second slash work."""
    base_url = f"{api.url}/v1"
    assert "leads out of" in refusal(
        provider(tmp_path, document=_only_path("/../admin"), base_url=base_url), "go"
    )
    call(provider(tmp_path, document=_only_path("//evil.example.com/"), base_url=base_url), "go")
    assert [path for _, path, _, _ in api.asked] == ["/v1//evil.example.com/"]


def test_base_url_ends_at_a_slash(tmp_path: Path, api):
    """A path that only shares its beginning is outside."""
    pets = provider(tmp_path, document=_only_path("/../v1admin"), base_url=f"{api.url}/v1")
    assert "leads out of" in refusal(pets, "go")
    assert api.asked == []


def _only_path(path: str) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": {path: {"get": {"operationId": "go"}}}}


@pytest.mark.parametrize("text", ["SEC\\\\/RET", "SEC\\u002fRET"])
def test_escaped_secret_is_hidden_too(tmp_path: Path, api, text: str):
    """JSON can write a slash in three ways."""
    api.answer(
        "/pets/1",
        f'{{"you sent": "{text}", "a": ["x{text}"]}}'.encode().replace(b"\\\\", b"\\"),
        Content_Type="application/json",
    )
    told = call(provider(tmp_path, api, auth=Auth.bearer("SEC/RET")), "getPet", id="1")
    assert told == {"you sent": "[hidden]", "a": ["x[hidden]"]}


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("header", "Expect"),
        ("header", "Proxy-Authorization"),
        ("header", "X Y"),
        ("cookie", "a; b"),
    ],
)
def test_parameter_that_controls_the_request_is_never_sent(tmp_path: Path, where: str, name: str):
    """Such parameters are HTTP's own headers, and names with delimiters.

    An optional one is named.
    """
    document = with_operation(
        "/pets", "get", parameters=[{"name": name, "in": where, "schema": {}}]
    )
    pets = provider(tmp_path, document=document)
    assert not tools_of(pets)["findPets"].parameters
    assert repr(name) in pets.missing["findPets"]


@pytest.mark.parametrize("url", ["https://[::1", "https://h:99999", "https://", "https://h:x/"])
def test_invalid_server_url_is_one_error(tmp_path: Path, url: str):
    """No error of a URL parser leaves the provider."""
    with pytest.raises(SourceError, match="names no server that can be used"):
        tools_of(provider(tmp_path, base_url="", document={**PETS, "servers": [{"url": url}]}))


@pytest.mark.parametrize("query", ["?version=2", "#part"])
def test_server_with_a_query_is_refused(tmp_path: Path, query: str):
    """No call would carry the query, so it is not dropped silently."""
    document = {**PETS, "servers": [{"url": f"https://pets.example.com/v1{query}"}]}
    with pytest.raises(SourceError, match="write its address without that as base_url"):
        tools_of(provider(tmp_path, base_url="", document=document))


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://[::1/v1", "base_url 'http://[::1/v1' is not a URL: write it as https://"),
        ("http://host:99999", "base_url 'http://host:99999' is not a URL"),
        (
            "https://host/v1?key=s3cr3t",
            "base_url 'https://host/v1' ends in a query or a fragment: leave that out",
        ),
        ("https://bot:s3cr3t@host", "base_url 'https://host' holds a user: leave it out"),
    ],
)
def test_wrong_base_url_is_refused_at_once(url: str, problem: str):
    """The error shows the value without what may be secret, and says how to write it."""
    with pytest.raises(ValueError, match=r"^base_url") as caught:
        OpenApiToolProvider("pets.yaml", base_url=url)
    assert str(caught.value).startswith(problem)
    assert "s3cr3t" not in str(caught.value)


def test_malformed_url_of_a_document_is_refused_at_once():
    """The error is ours, shows the value and says how to write it."""
    with pytest.raises(
        ValueError, match="is not a URL: write the document's URL as https://"
    ) as caught:
        OpenApiToolProvider("http://[::1/pets.json?key=s3cr3t")
    assert "'http://[::1/pets.json'" in str(caught.value)
