"""Mutations: invalid webhooks, made from the recorded ones, with a new signature or an old one."""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

from sayso.channels.slack.incoming import slack_hook
from sayso.testing.platforms import fake_platforms as fakes
from tests.channels.web.services import PUBLIC_URL

PAYLOADS = Path(__file__).parents[2] / "payloads"
#: Values that replace a valid one.
JUNK: list[Any] = [
    None, True, 0, -1, 10**400, 1e308, -1.5, float("nan"), float("inf"), "", " ", "x", "0", "\0", "\ud800", "\u202e",
    "9" * 400, "é" * 5000, "{{7*7}}", "../../etc/passwd", "<@U0BOT>" * 300, [], {}, [[]], [None], [{}], {"id": None},
    {"": ""}, {"type": "message"},
]  # fmt: skip
#: Depths of nesting: readable ones, some near the limit of Python's stack, and one far beyond it.
DEPTHS = (50, 200, 400, 900, 1500, 100_000)
TYPES = (
    "application/json", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "multipart/form-data",
    "", "x/y; charset=\xff", "application/json; charset=utf-16", "text/plain",
)  # fmt: skip
#: Header values that a parser may fail at, in latin-1 as WSGI has them.
ODD = (
    "",
    " ",
    "\xff\xfe",
    "é",
    "0",
    "-1",
    "9" * 400,
    "1e5",
    "nan",
    "\xb9\xb2",
    "x" * 8000,
    "v0=",
    "v0=" + "f" * 64,
    ",,=,",
)
#: Headers that some code reads.
NAMES = (
    "Content-Type", "Content-Encoding", "Host", "Origin", "Cookie", "Accept-Language", "X-Forwarded-For",
    "X-Twilio-Signature", "X-Twilio-Webhooks-Signature-Settings", "I-Twilio-Idempotency-Token",
    "X-Telegram-Bot-Api-Secret-Token", "X-Slack-Signature", "X-Slack-Request-Timestamp", "X-Slack-Retry-Num",
    "X-Sayso-Console", "Authorization", "Range",
)  # fmt: skip
#: Characters that fill large bodies.
LETTERS = ("a", "é", " ", "<", "&", "@", "/", "*_")
#: Suffixes of an address.
PLACES = (
    "?", "?delivery=", "?delivery=%ff", "?delivery=" + "0" * 20 + ".1", "?a=%00&a=%ff", "?" + "&" * 3000, "/",
    "/status", "/%2e%2e/x", "/é", "/" + "x" * 3000, "#x",
)  # fmt: skip
_DEEP = "@deep@"

Headers = dict[str, str]
#: Makes the headers with which a platform would send this body to this path.
Sign = Callable[[str, bytes], Headers]


@dataclass(frozen=True, slots=True)
class Sent:
    """One request. `length` is the value of its Content-Length, or None for the true one."""

    path: str
    headers: Headers
    body: bytes
    method: str = "POST"
    length: str | None = None


@dataclass(frozen=True, slots=True)
class Seed:
    """A valid webhook: its body as a tree, and the function that writes the tree as a body."""

    path: str
    tree: Any
    written: Callable[[Any], bytes]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address that accepts posts from outside, with its valid webhooks."""

    name: str
    seeds: Sequence[Seed]
    sign: Sign


def endpoints(cookie: str) -> list[Endpoint]:
    """Return all endpoints; `cookie` is a valid console session."""
    forms, statuses = _forms("/hooks/wa"), _forms("/hooks/wa/status")
    return [
        Endpoint("whatsapp", forms, _twilio),
        Endpoint("whatsapp/status", statuses, _twilio),
        Endpoint(
            "telegram",
            [Seed("/hooks/tg", each["json"], dumped) for each in _recorded("telegram")],
            _telegram,
        ),
        Endpoint("slack", [_slack_seed(each) for each in _recorded("slack")], _slack),
        Endpoint("console", _console_seeds(), partial(_console, cookie)),
        Endpoint("console/files", _file_seeds(), partial(_file, cookie)),
    ]


def requests(endpoint: Endpoint, chance: random.Random) -> Iterator[Sent]:
    """Yield mutated requests without end: each junk value at each place of each seed once, and random ones between."""
    sweep = list(_sweep(endpoint))
    chance.shuffle(sweep)
    while True:
        if sweep:
            seed, path, junk = sweep.pop()
            yield _signed(endpoint, seed, _body(seed, _put(seed.tree, path, junk)))
        yield _any(endpoint, chance)


def largest(endpoint: Endpoint) -> Iterator[Sent]:
    """Yield requests that take much memory: every seed, and every letter at each size, put at one place of a seed."""
    shapes = [letter * size for size in (100_000, 400_000) for letter in LETTERS]
    both = zip(cycle(endpoint.seeds), cycle(shapes), strict=False)
    for seed, junk in islice(both, max(len(endpoint.seeds), len(shapes))):
        yield _signed(endpoint, seed, _body(seed, _put(seed.tree, next(_places(seed.tree)), junk)))


def _any(endpoint: Endpoint, chance: random.Random) -> Sent:
    seed = chance.choice(endpoint.seeds)
    body = chance.choice(_BODIES)(seed, chance)
    sent = _signed(endpoint, seed, body)
    if chance.random() < 0.2:  # the signature of the unchanged body
        sent = replace(sent, headers=_signed(endpoint, seed, _body(seed, seed.tree)).headers)
    return chance.choice(_ENVELOPES)(sent, chance) if chance.random() < 0.4 else sent


def _signed(endpoint: Endpoint, seed: Seed, body: bytes) -> Sent:
    return Sent(seed.path, endpoint.sign(seed.path, body), body)


def _sweep(endpoint: Endpoint) -> Iterator[tuple[Seed, tuple[Any, ...], Any]]:
    for seed in endpoint.seeds:
        for path in _places(seed.tree):
            for junk in JUNK:
                yield seed, path, junk


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield every place inside a tree."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, child in pairs:
        yield (*path, key)
        yield from _places(child, (*path, key))


def _put(tree: Any, path: tuple[Any, ...], junk: Any) -> Any:
    changed = copy.deepcopy(tree)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = junk
    return changed


def _body(seed: Seed, tree: Any) -> bytes:
    return seed.written(tree)


def dumped(tree: Any) -> bytes:
    """Return a tree as JSON, with replacements where UTF-8 fails."""
    return json.dumps(tree).encode("utf-8", "replace")


def _form_of(tree: Any) -> bytes:
    """Return a tree as a form, with JSON for each value that is no text."""
    fields = tree.items() if isinstance(tree, dict) else ()
    pairs = [
        (str(name), value if isinstance(value, str) else json.dumps(value))
        for name, value in fields
    ]
    return urlencode(pairs, errors="replace").encode()


def _payload_of(tree: Any) -> bytes:
    return urlencode({"payload": json.dumps(tree)}, errors="replace").encode()


def _bent(seed: Seed, chance: random.Random) -> bytes:
    """Replace several places by junk, by nothing or by a deeper level."""
    tree = copy.deepcopy(seed.tree)
    for _ in range(chance.randrange(1, 4)):
        paths = list(_places(tree))
        if not paths:
            break
        path = chance.choice(paths)
        tree = _put(tree, path, chance.choice([*JUNK, [None], {"a": "b"}, [tree], {"event": tree}]))
    return _body(seed, tree)


def _shortened(seed: Seed, chance: random.Random) -> bytes:
    """Return a body without one of its places."""
    tree = copy.deepcopy(seed.tree)
    path = chance.choice(list(_places(tree)))
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    del holder[path[-1]]
    return _body(seed, tree)


def _deep(seed: Seed, chance: random.Random) -> bytes:
    """Nest one place deeply, or at times the whole body."""
    depth = chance.choice(DEPTHS)
    opening, closing = chance.choice([("[", "]"), ('{"a":', "}")])
    nested = opening * depth + "1" + closing * depth
    if chance.random() < 0.2:
        return nested.encode()[: chance.choice([len(nested), depth])]
    path = chance.choice(list(_places(seed.tree)))
    body = _body(seed, _put(seed.tree, path, _DEEP))
    quoted = urlencode({"": f'"{_DEEP}"'})[1:].encode()
    in_form = urlencode({"": nested})[1:].encode()
    return body.replace(f'"{_DEEP}"'.encode(), nested.encode()).replace(quoted, in_form)


def _doubled(seed: Seed, chance: random.Random) -> bytes:
    """Repeat a name with another value; in forms also hundreds of times."""
    body = _body(seed, seed.tree)
    name = str(chance.choice(list(seed.tree)))
    if body.startswith(b"{"):
        again = json.dumps({name: chance.choice(JUNK)}).encode("utf-8", "replace")
        return (
            again[:-1] + b"," + body[1:] if chance.random() < 0.5 else body[:-1] + b"," + again[1:]
        )
    again = urlencode({name: str(chance.choice(JUNK))}, errors="replace").encode()
    return b"&".join([body, *([again] * chance.choice([1, 2, 600]))])


def _flipped(seed: Seed, chance: random.Random) -> bytes:
    body = bytearray(_body(seed, seed.tree))
    for _ in range(chance.randrange(1, 9)):
        body[chance.randrange(len(body))] = chance.randrange(256)
    return bytes(body)


def _cut(seed: Seed, chance: random.Random) -> bytes:
    body = _body(seed, seed.tree)
    start = chance.randrange(len(body))
    return chance.choice(
        [body[:start], body[start:], body[:start] + chance.randbytes(9) + body[start:]]
    )


def _noise(_: Seed, chance: random.Random) -> bytes:
    length = chance.choice([0, 1, 3, 100, 5000])
    bare = json.dumps(chance.choice(JUNK)).encode("utf-8", "replace")
    return chance.choice(
        [chance.randbytes(length), bare, b"=" * length, b"&" * length, b"%" * length, b"payload="]
    )


def _large(seed: Seed, chance: random.Random) -> bytes:
    """Make a body near the largest accepted size, or above it."""
    path = chance.choice(list(_places(seed.tree)))
    return _body(
        seed,
        _put(seed.tree, path, chance.choice(LETTERS) * chance.choice([10_000, 100_000, 400_000])),
    )


def _odd_header(sent: Sent, chance: random.Random) -> Sent:
    name, value = chance.choice(NAMES), chance.choice(ODD)
    headers = {each: said for each, said in sent.headers.items() if each.lower() != name.lower()}
    return replace(sent, headers={**headers, name: value})


def _no_header(sent: Sent, chance: random.Random) -> Sent:
    name = chance.choice([*sent.headers, ""])
    return replace(
        sent, headers={each: said for each, said in sent.headers.items() if each != name}
    )


def _bent_header(sent: Sent, chance: random.Random) -> Sent:
    name = chance.choice(list(sent.headers) or ["x"])
    value = sent.headers.get(name, "x") or "x"
    at = chance.randrange(len(value))
    return replace(
        sent,
        headers={
            **sent.headers,
            name: value[:at] + chr(chance.randrange(32, 256)) + value[at + 1 :],
        },
    )


def _odd_type(sent: Sent, chance: random.Random) -> Sent:
    return replace(sent, headers={**sent.headers, "Content-Type": chance.choice(TYPES)})


def _odd_place(sent: Sent, chance: random.Random) -> Sent:
    return replace(sent, path=sent.path + chance.choice(PLACES))


def _odd_method(sent: Sent, chance: random.Random) -> Sent:
    return replace(
        sent, method=chance.choice(["GET", "HEAD", "PUT", "OPTIONS", "PATCH", "DELETE", "X"])
    )


def _odd_length(sent: Sent, chance: random.Random) -> Sent:
    return replace(
        sent, length=chance.choice(["", "abc", "-1", "0", "1", "99999999999999999999", "1 2"])
    )


_BODIES: Sequence[Callable[[Seed, random.Random], bytes]] = (
    _bent, _bent, _bent, _shortened, _deep, _doubled, _flipped, _flipped, _cut, _noise,
)  # fmt: skip
#: A large body costs as much as a hundred others, so it is one of three hundred.
_BODIES = (*(_BODIES * 30), _large)
_ENVELOPES: Sequence[Callable[[Sent, random.Random], Sent]] = (
    _odd_header, _odd_header, _no_header, _bent_header, _odd_type, _odd_place, _odd_method, _odd_length,
)  # fmt: skip


def _recorded(platform: str) -> list[dict[str, Any]]:
    return [json.loads(file.read_text()) for file in sorted((PAYLOADS / platform).glob("*.json"))]


def _forms(path: str) -> list[Seed]:
    bodies = [each["raw_body"] for each in _recorded("whatsapp")]
    return [Seed(path, dict(parse_qsl(body, keep_blank_values=True)), _form_of) for body in bodies]


def _slack_seed(recorded: dict[str, Any]) -> Seed:
    raw = recorded.get("raw_body") or json.dumps(recorded["json"])
    if raw.startswith("{"):
        return Seed("/hooks/sl", json.loads(raw), dumped)
    form = dict(parse_qsl(raw, keep_blank_values=True))
    if "payload" in form:
        return Seed("/hooks/sl", json.loads(form["payload"]), _payload_of)
    return Seed("/hooks/sl", form, _form_of)


def _console_seeds() -> list[Seed]:
    acts = [
        {"id": "a1", "text": "Hallo 👋"},
        {"id": "a2", "tap": "c:42:y"},
        {"id": "a3", "text": "x", "files": [], "more": [1]},
    ]
    return [Seed("/hooks/web", act, dumped) for act in acts]


def _file_seeds() -> list[Seed]:
    """Return a seed for each kind of file. The tree holds the bytes as a text with one character a byte."""
    starts = (
        b"\x89PNG\r\n\x1a\n",
        b"\xff\xd8\xff",
        b"%PDF-1.7",
        b"RIFF\0\0\0\0WEBPVP8 ",
        b"\0\0\0\x18ftypheic",
        b"a,b\n1,2\n",
    )
    return [
        Seed("/console/web/files", {"file": start.decode("latin-1") + "x" * 40}, _file_of)
        for start in starts
    ]


def _file_of(tree: Any) -> bytes:
    data = tree.get("file", "") if isinstance(tree, dict) else tree
    return data.encode("latin-1", "replace") if isinstance(data, str) else dumped(data)


def _twilio(path: str, body: bytes) -> Headers:
    """Sign the body like a form, with repeated names; a body that is no form is signed as an empty one."""
    fields: dict[str, set[str]] = {}
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True)
    except UnicodeDecodeError:
        pairs = []
    for name, value in pairs:
        fields.setdefault(name, set()).add(value)
    words = (
        PUBLIC_URL
        + path
        + "".join(name + each for name in sorted(fields) for each in sorted(fields[name]))
    )
    digest = hmac.new(
        fakes.TWILIO_AUTH_TOKEN.encode(), words.encode("utf-8", "replace"), hashlib.sha1
    ).digest()
    signature = base64.b64encode(digest).decode()
    return {"Content-Type": "application/x-www-form-urlencoded", "X-Twilio-Signature": signature}


def _telegram(_: str, __: bytes) -> Headers:
    return {
        "Content-Type": "application/json",
        "X-Telegram-Bot-Api-Secret-Token": fakes.TELEGRAM_SECRET,
    }


def _slack(_: str, body: bytes) -> Headers:
    return slack_hook(fakes.SLACK_SIGNING_SECRET, body, time.time())[0]


def _file(cookie: str, _: str, __: bytes) -> Headers:
    named = {"Content-Type": "image/png", "X-Sayso-Filename": "photo%20of%20a%20receipt.png"}
    return {**named, "X-Sayso-Console": "1", "Cookie": cookie}


def _console(cookie: str, _: str, __: bytes) -> Headers:
    return {"Content-Type": "application/json", "X-Sayso-Console": "1", "Cookie": cookie}
