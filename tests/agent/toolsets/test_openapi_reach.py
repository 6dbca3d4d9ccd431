"""OpenApiToolProvider reaches one origin, with its secret in no text, and no argument leaves its place."""

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
def test_path_argument_stays_one_piece_of_the_path(tmp_path: Path, api, value: str):
    """It is quoted: the server sees no other path, and no query."""
    seen = call(provider(tmp_path, api), "getPet", id=value)["path"]
    assert seen.startswith("/pets/")
    assert seen.count("/") == 2
    assert not set("?#") & set(seen)


@pytest.mark.parametrize("value", ["..", ".", ""])
def test_path_argument_that_quoting_does_not_help_is_refused(tmp_path: Path, api, value: str):
    """Dots and nothing mean another path, quoted or not; nothing is asked."""
    assert "which cannot stand in a path" in refusal(provider(tmp_path, api), "getPet", id=value)
    assert api.asked == []


@pytest.mark.parametrize(
    "where",
    ["http://169.254.169.254/", "https://evil.example.com/pets/1", "//evil.example.com/", "http://127.0.0.1:1/"],
)
def test_redirect_elsewhere_is_not_followed(tmp_path: Path, api, where: str):
    """Nobody but the pinned origin is asked, and the secret is not sent on."""
    api.answer("/pets/1", "", status=302, Location=where)
    said = refusal(provider(tmp_path, api, auth=Auth.bearer(SECRET)), "getPet", id="1")
    assert "redirects elsewhere, which is not followed" in said
    assert len(api.asked) == 1


def test_redirect_within_the_origin_is_followed_by_what_reads_only(tmp_path: Path, api):
    """A deletion is not sent a second time."""
    api.answer("/pets/1", "", status=307, Location="/pets/2")
    pets = provider(tmp_path, api)
    assert call(pets, "getPet", id="1")["path"] == "/pets/2"
    assert "whether 'deletePet' took effect is not known" in refusal(pets, "deletePet", id="1")
    assert [(method, path) for method, path, *_ in api.asked][2:] == [("DELETE", "/pets/1")]


def test_redirects_end(tmp_path: Path, api):
    """One that leads to itself too."""
    api.answer("/pets/1", "", status=302, Location="/pets/1")
    assert "redirects, which is not followed for ever" in refusal(provider(tmp_path, api), "getPet", id="1")


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "100.64.0.1"]
)
def test_private_address_is_refused_unless_base_url_names_the_host(tmp_path: Path, address: str):
    """Also where the name looks harmless: it is the address that counts, and what was looked at is connected to."""

    async def resolve(host: str, port: int) -> list[str]:
        return [address]

    document = {**PETS, "servers": [{"url": "https://pets.example.com/v1"}]}
    said = refusal(provider(tmp_path, document=document, base_url="", resolve=resolve), "getPet", id="1")
    assert "pets.example.com is not public: if you mean it, write it as base_url" in said


def test_document_may_not_send_its_calls_elsewhere(tmp_path: Path, api):
    """What was fetched from one origin is about that origin, unless base_url says otherwise."""
    document = {**PETS, "servers": [{"url": "https://elsewhere.example.com"}]}
    api.answer("/openapi.json", document)
    asked = OpenApiToolProvider(f"{api.url}/openapi.json", base_url=api.url)
    assert call(asked, "getPet", id="1")["path"] == "/pets/1"

    async def resolve(host: str, port: int) -> list[str]:
        return ["93.184.216.34"]

    pets = OpenApiToolProvider("https://pets.example.com/openapi.json", resolve=resolve)
    with pytest.raises(SourceError, match=r"sends its calls to 'elsewhere\.example\.com': if you mean it, write it as"):
        pets._read(_parsed(document))


def _parsed(document: Any) -> Any:
    from sayso.agent.toolsets.openapi_document import parse

    return parse(json.dumps(document), "it")


def test_document_on_a_private_host_needs_base_url(api):
    """Also to be fetched."""
    api.answer("/openapi.json", PETS)
    with pytest.raises(SourceError, match="is reached without https: if you mean it, write it as base_url"):
        asyncio.run(OpenApiToolProvider(f"{api.url}/openapi.json").list_tools())
    assert api.asked == []


def test_secret_goes_to_the_operations_and_not_with_the_request_for_the_document(api):
    """Whoever serves the document need not be who takes the calls."""
    api.answer("/openapi.json", PETS)
    pets = OpenApiToolProvider(f"{api.url}/openapi.json", base_url=api.url, auth=Auth.bearer(SECRET))
    call(pets, "getPet", id="1")
    assert [headers.get("authorization") for _, _, headers, _ in api.asked] == [None, f"Bearer {SECRET}"]


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
def test_secret_is_sent_and_never_told(tmp_path: Path, api, caplog, auth: Auth, seen: str):
    """Not in an error whose body repeats it, not in a log, not in a repr, not in an answer."""
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
def test_what_signs_in_is_no_argument(tmp_path: Path, api, where: str, name: str, auth: Auth):
    """However the document has it, required too: the model is not asked for it, and ours is the only one sent."""
    parameters = [
        {"name": name, "in": where, "required": True, "schema": {"type": "string"}},
        {"name": "limit", "in": "query", "schema": {"type": "integer"}},
    ]
    pets = provider(tmp_path, api, with_operation("/pets", "get", parameters=parameters), auth=auth)
    assert [each.name for each in tools_of(pets)["findPets"].parameters] == ["limit"]
    call(pets, "findPets", limit=3)
    _, path, headers, _ = api.asked[0]
    assert f"{path} {headers}".count("s3cr3t") == 1


def test_nobody_slips_in_another_value_for_what_signs_in(tmp_path: Path, api):
    """An object's own names stand in a query too: only ours is sent, as with a header."""
    parameters = [{"name": "filter", "in": "query", "schema": {"type": "object", "additionalProperties": True}}]
    document = with_operation("/pets", "get", parameters=parameters)
    pets = provider(tmp_path, api, document, auth=Auth("query", "key", SECRET))
    call(pets, "findPets", filter={"key": "mine", "name": "Rex"})
    assert api.asked[0][1] == "/pets?name=Rex&key=s3cr3t%2Bvalue%2F42"


def test_huge_answer_is_not_read(tmp_path: Path, api):
    """It ends at the cap, whatever the headers say."""
    api.answer("/pets/1", b"x" * 3_000_000)
    assert "answered with more than 100000 bytes" in refusal(
        provider(tmp_path, api, max_bytes=100_000), "getPet", id="1"
    )


def test_silent_server_is_given_up(tmp_path: Path):
    """After the time limit; what changes something may have taken effect."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        pets = provider(tmp_path, base_url=f"http://127.0.0.1:{silent.getsockname()[1]}", seconds=0.3)
        said = refusal(pets, "deletePet", id="1")
    assert "gave no answer within 0.3 s; whether 'deletePet' took effect is not known" in said


def test_server_that_is_not_there_was_not_asked(tmp_path: Path):
    """Nothing is unknown."""
    said = refusal(provider(tmp_path, base_url="http://127.0.0.1:1"), "deletePet", id="1")
    assert "127.0.0.1:1 cannot be reached (ConnectError): does it run? 'deletePet' was not sent" in said


@pytest.mark.parametrize("path", ["@evil.example.com/", ".evil.example.com/", ":1/", "x"])
def test_path_of_the_document_cannot_become_a_part_of_the_host(tmp_path: Path, path: str):
    """Its author may not be the one whom the operator trusts with a secret."""
    assert tools_of(provider(tmp_path, document=_only_path(path))) == {}


def test_path_of_the_document_cannot_leave_the_base(tmp_path: Path, api):
    """Neither by dots nor by a second slash."""
    base_url = f"{api.url}/v1"
    assert "leads out of" in refusal(provider(tmp_path, document=_only_path("/../admin"), base_url=base_url), "go")
    call(provider(tmp_path, document=_only_path("//evil.example.com/"), base_url=base_url), "go")
    assert [path for _, path, _, _ in api.asked] == ["/v1//evil.example.com/"]


def test_base_ends_at_a_slash(tmp_path: Path, api):
    """What merely begins like it is beside it."""
    pets = provider(tmp_path, document=_only_path("/../v1admin"), base_url=f"{api.url}/v1")
    assert "leads out of" in refusal(pets, "go")
    assert api.asked == []


def _only_path(path: str) -> dict[str, Any]:
    return {"openapi": "3.1.0", "paths": {path: {"get": {"operationId": "go"}}}}


@pytest.mark.parametrize("text", ["SEC\\\\/RET", "SEC\\u002fRET"])
def test_secret_in_other_characters_is_hidden_too(tmp_path: Path, api, text: str):
    """JSON may write a slash in three ways."""
    api.answer(
        "/pets/1",
        f'{{"you sent": "{text}", "a": ["x{text}"]}}'.encode().replace(b"\\\\", b"\\"),
        Content_Type="application/json",
    )
    told = call(provider(tmp_path, api, auth=Auth.bearer("SEC/RET")), "getPet", id="1")
    assert told == {"you sent": "[hidden]", "a": ["x[hidden]"]}


@pytest.mark.parametrize(
    ("where", "name"), [("header", "Expect"), ("header", "Proxy-Authorization"), ("header", "X Y"), ("cookie", "a; b")]
)
def test_parameter_that_would_steer_the_request_is_none(tmp_path: Path, where: str, name: str):
    """Headers of HTTP's own, and names that would end what they name."""
    document = with_operation("/pets", "get", parameters=[{"name": name, "in": where, "schema": {}}])
    assert not tools_of(provider(tmp_path, document=document))["findPets"].parameters


@pytest.mark.parametrize("url", ["https://[::1", "https://h:99999", "https://", "https://h:x/"])
def test_server_that_is_no_address_is_one_error(tmp_path: Path, url: str):
    """No parser's words leave the provider."""
    with pytest.raises(SourceError, match="names no server that can be used"):
        tools_of(provider(tmp_path, base_url="", document={**PETS, "servers": [{"url": url}]}))
