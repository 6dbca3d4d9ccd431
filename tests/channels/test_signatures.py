"""Signatures: forged, changed, old and replayed ones are refused exactly where the platforms' SDKs refuse them."""

from __future__ import annotations

import base64
import hashlib
import hmac
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from slack_sdk.signature import SignatureVerifier
from twilio.request_validator import RequestValidator, get_signature_algorithm

from sayso.channels.slack.incoming import slack_hook, slack_signed
from sayso.channels.whatsapp.incoming import twilio_signed

TOKEN = "test-auth-token-0123456789abcdef"
SECRET = "slack-test-signing-secret"
NOW = 1795204800.0
URLS = [
    "https://bots.example.com/hooks/wa",
    "https://bots.example.com:443/hooks/wa",
    "https://bots.example.com:8443/hooks/wa?tenant=a%20b&x=",
    "http://127.0.0.1:8000/hooks/wa/status",
    "http://bots.example.com/hooks/wa?",
    "https://user:word@bots.example.com/hooks/wa",
    "https://user:word@bots.example.com:8443/hooks/wa",
    "https://user@bots.example.com:443/hooks/wa",
    "https://bots.example.com/hooks/wa#rc=3&rp=ct,rt,5xx",
    "https://bots.example.com:8443/hooks/wa?tenant=a#rc=3",
    "https://bots.example.com:0/hooks/wa",
    "https://[::1]/hooks/wa",
    "https://[::1]:8443/hooks/wa",
    "HTTPS://Bots.Example.com/Hooks/%7Ewa",
    "https://bots.example.com/hooks/wa?bodySHA256=00",
    "/hooks/wa",
]
SETTINGS = [
    "",
    "key=k1,algorithm=HMAC_SHA256",
    "key=k1, algorithm = hmac_sha1",
    "algorithm=",
    "algorithm=HMAC_SHA256,key=k1",
    "key=k1,algorithm=,algorithm=HMAC_SHA256",
    "Algorithm=HMAC_SHA256",
    "key=algorithm=HMAC_SHA256",
    "key=k1;algorithm=HMAC_SHA256",
    "HMAC_SHA256",
    ",=,",
    "key=k1,algorithm=HMAC_MD5",
]
FORMS = [
    {},
    {"Body": ["hello"], "From": ["whatsapp:+4915100000042"]},
    {"Body": [""], "Zed": ["1", "2", "1"], "a": ["ü", "\N{PARTY POPPER}"]},
    {"Body": ["+ &=%00\n"], "body": ["x"], "": ["y"]},
]


class Form(dict):
    """A form in the shape that Twilio's SDK needs."""

    def getlist(self, name: str) -> list[str]:
        """Return all values of a field."""
        return self[name]


def sdk_says(url: str, form: dict, signature: str, settings: str) -> bool:
    """Return the answer of Twilio's SDK."""
    return RequestValidator(TOKEN).validate(
        url, Form(form), signature, get_signature_algorithm(settings)
    )


def signature_of(url: str, form: dict, name: str) -> str:
    """Sign as Twilio does, with the URL taken literally."""
    words = url + "".join(key + value for key in sorted(form) for value in sorted(set(form[key])))
    return base64.b64encode(hmac.new(TOKEN.encode(), words.encode(), name).digest()).decode()


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("form", FORMS, ids=range(len(FORMS)))
@pytest.mark.parametrize("url", URLS)
def test_twilio_signature_is_judged_as_by_the_sdk(url, form, settings):
    """platforms.md 1.2: each signature for each spelling of the URL, with either hash, valid and changed."""
    bare = url.partition("#")[0]
    signed_urls = {
        url,
        bare,
        url.replace(":8443", ""),
        url.replace("example.com/", "example.com:443/"),
        url.rstrip("?"),
    }
    good = {
        signature_of(signed, form, name) for signed in signed_urls for name in ("sha1", "sha256")
    }
    bent = {
        words
        for signature in good
        for words in (signature.lower(), signature[:-1], signature + "=", " " + signature)
    }
    for signature in [*good, *bent, "", "ü", "A" * 28]:
        assert twilio_signed(TOKEN, url, form, signature, settings) == sdk_says(
            url, form, signature, settings
        )


@pytest.mark.parametrize(
    "other",
    [
        "http://bots.example.com/hooks/wa?tenant=a%20b&x=",
        "https://Bots.example.com/hooks/wa?tenant=a%20b&x=",
        "https://bots.example.com/Hooks/wa?tenant=a%20b&x=",
        "https://bots.example.com/hooks/wa/?tenant=a%20b&x=",
        "https://bots.example.com//hooks/wa?tenant=a%20b&x=",
        "https://bots.example.com/hooks/wa?tenant=a+b&x=",
        "https://bots.example.com/hooks/wa?tenant=a%20b",
        "https://bots.example.com/hooks/wa?x=&tenant=a%20b",
        "https://bots.example.com/hooks/wa",
        "https://bots.example.com:8443/hooks/wa?tenant=a%20b&x=",
        "https://bots.example.com/hooks/wa?tenant=a%20b&x=#rc=3",
        "https://bots.example.com:80/hooks/wa?tenant=a%20b&x=",
    ],
)
def test_url_is_taken_byte_by_byte(other: str):
    """platforms.md 1.2: a signature for another scheme, host, path, slash, query or port is refused."""
    ours, form = "https://bots.example.com/hooks/wa?tenant=a%20b&x=", FORMS[1]
    for name in ("sha1", "sha256"):
        settings = "key=k1,algorithm=HMAC_SHA256" if name == "sha256" else ""
        signature = signature_of(other, form, name)
        assert twilio_signed(TOKEN, ours, form, signature, settings) is False
        assert sdk_says(ours, form, signature, settings) is False
        assert twilio_signed(TOKEN, other, form, signature, settings)


def test_blank_fields_and_blanks_are_signed():
    """platforms.md 1.2: a field without a value counts, spaces are not stripped, small letters sort behind capitals."""
    form = {"b": [""], "B": [" hello "], "a": ["x"]}
    signature = RequestValidator(TOKEN).compute_signature(URLS[0], Form(form))
    assert twilio_signed(TOKEN, URLS[0], form, signature)
    assert signature == signature_of(URLS[0], {"B": [" hello "], "a": ["x"], "b": [""]}, "sha1")
    for change in ({"B": ["hello"]}, {"b": [" "]}, {"a": ["X"]}):
        assert not twilio_signed(TOKEN, URLS[0], {**form, **change}, signature)


@pytest.mark.parametrize(
    ("settings", "name"), [("", "sha256"), ("key=k1,algorithm=HMAC_SHA256", "sha1")]
)
def test_hash_is_the_one_in_the_header(settings: str, name: str):
    """platforms.md 1.2: SHA1 without the header, SHA256 with it; the other one is refused."""
    assert not twilio_signed(
        TOKEN, URLS[0], FORMS[1], signature_of(URLS[0], FORMS[1], name), settings
    )
    other = {"sha1": "sha256", "sha256": "sha1"}[name]
    assert twilio_signed(TOKEN, URLS[0], FORMS[1], signature_of(URLS[0], FORMS[1], other), settings)


@given(
    form=st.dictionaries(
        st.text(max_size=9), st.lists(st.text(max_size=9), min_size=1, max_size=3), max_size=9
    )
)
def test_any_form_that_twilio_signs_is_valid_and_one_more_field_is_not(form):
    """platforms.md 1.1: the whole form is signed."""
    try:
        signature = RequestValidator(TOKEN).compute_signature(URLS[0], Form(form))
    except UnicodeEncodeError:  # lone surrogates: no form has them
        return
    assert twilio_signed(TOKEN, URLS[0], form, signature)
    assert not twilio_signed(TOKEN, URLS[0], {**form, "more": ["x"], "even": ["more"]}, signature)
    assert not twilio_signed(TOKEN + "x", URLS[0], form, signature)


def test_invalid_url_is_an_error():
    """A forged port raises an error, and the caller refuses the request."""
    with pytest.raises(ValueError, match="Port"):
        twilio_signed(TOKEN, "https://bots.example.com:99999/hooks/wa", {}, "x")


@given(
    body=st.text(max_size=99).map(lambda text: text.encode("utf-8", "replace")),
    late=st.integers(-400, 400),
)
def test_slack_signature_is_judged_as_by_the_sdk(body, late):
    """platforms.md 3.2: fresh and old ones, in the past and in the future."""
    headers, _ = slack_hook(SECRET, body, NOW - late)
    stamp, signature = headers["x-slack-request-timestamp"], headers["x-slack-signature"]
    judge = SignatureVerifier(SECRET, type("Clock", (), {"now": lambda _: NOW})())  # type: ignore[arg-type]
    for said in (signature, signature.upper(), signature[3:], "", "ü"):
        expected = said.isascii() and judge.is_valid(body, stamp, said)
        assert slack_signed(SECRET, stamp, body, said, now=NOW) == expected


@pytest.mark.parametrize("stamp", ["", "soon", "1e9", "٣x"])
def test_invalid_timestamp_is_an_error(stamp):
    """platforms.md 3.2: a missing timestamp or text raises an error, and the caller refuses the request."""
    with pytest.raises(ValueError, match="int"):
        slack_signed(SECRET, stamp, b"{}", "v0=", now=NOW)


def test_huge_timestamp_is_refused():
    """platforms.md 3.2: it needs no signature to send one; it is too far off and no error."""
    for stamp in ("9" * 400, "-" + "9" * 400):
        assert slack_signed(SECRET, stamp, b"{}", "v0=", now=NOW) is False


def test_signature_of_another_body_secret_or_time_is_refused():
    """Each one is part of the signed text."""
    stamp = str(int(time.time()))
    digest = hmac.new(SECRET.encode(), f"v0:{stamp}:{{}}".encode(), hashlib.sha256).hexdigest()
    good = {"secret": SECRET, "timestamp": stamp, "body": b"{}", "signature": f"v0={digest}"}
    for change in ({}, {"secret": "other"}, {"timestamp": str(int(stamp) - 1)}, {"body": b"{ }"}):
        assert slack_signed(**{**good, **change}, now=float(stamp)) == (change == {})


@pytest.mark.parametrize(
    ("configured", "signed"),
    [
        ("https://Bots.Example.com/hooks/wa", "https://bots.example.com/hooks/wa"),
        ("https://bücher.example/hooks/wa", "https://xn--bcher-kva.example/hooks/wa"),
        ("https://xn--bcher-kva.example/hooks/wa", "https://bücher.example/hooks/wa"),
        ("https://BOTS.example.com:8443/hooks/wa", "https://bots.example.com:8443/hooks/wa"),
    ],
)
def test_spellings_of_one_host_are_equal(configured: str, signed: str):
    """Twilio signs the URL of its console, Sayso computes it from `public_url`; case and punycode do not matter."""
    form = {"Body": ["hello"]}
    signature = RequestValidator(TOKEN).compute_signature(signed, {"Body": "hello"})
    assert twilio_signed(TOKEN, configured, form, signature)
    assert not twilio_signed(TOKEN, configured.replace("hooks", "elsewhere"), form, signature)


@pytest.mark.parametrize("typed", ["Bots.Example.com", "Bots.Example.com:443"])
def test_capitals_of_the_console_url_are_those_of_the_host_header(typed: str):
    """`public_url` is in lower case, the URL in Twilio's console is not. Another host is refused."""
    ours, form = "https://bots.example.com/hooks/wa", {"Body": ["hello"]}
    signature = RequestValidator(TOKEN).compute_signature(
        f"https://{typed}/hooks/wa", {"Body": "hello"}
    )
    assert twilio_signed(TOKEN, ours, form, signature, hosts=["inner:8000", typed])
    foreign = RequestValidator(TOKEN).compute_signature(
        "https://evil.example/hooks/wa", {"Body": "hello"}
    )
    assert not twilio_signed(TOKEN, ours, form, foreign, hosts=["evil.example"])
