"""deploy/nginx and deploy/caddy: in front of a real web, as platforms, browsers and slow clients meet them."""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from sayso.channels.inbound_limits import MAX_FILE_BYTES
from sayso.testing.platforms import webhooks as signing
from tests.deploy.conftest import SECRETS, Site, program
from tests.deploy.sandbox import ROOT
from tests.flows.system import until

HOST = "bots.example.com"
CERTIFICATE, KEY = (f"/etc/letsencrypt/live/{HOST}/{name}.pem" for name in ("fullchain", "privkey"))
PAGE = {"X-Sayso-Console": "1"}
SLOW_CLIENTS = 50


@dataclass
class Proxy:
    """A running proxy, and a client that trusts its certificate."""

    name: str
    site: Site
    client: httpx.Client
    tls: ssl.SSLContext

    def request(self, method: str, path: str, **settings: Any) -> httpx.Response:
        """Send a request from the sandbox's network, by the public name."""
        headers = {"Host": HOST, **settings.pop("headers", {})}
        request = self.client.build_request(method, path, headers=headers, **settings)
        request.extensions["sni_hostname"] = HOST
        return self.site.sandbox.call(lambda: self.client.send(request))

    def hook(self, path: str, signed: tuple[Mapping[str, str], bytes]) -> int:
        """Send a webhook, and return the status of the answer."""
        return self.request(
            "POST", f"/hooks/{path}", headers=dict(signed[0]), content=signed[1]
        ).status_code

    def log_in(self, password: str, **headers: str) -> httpx.Response:
        """Log in to the console as its page does."""
        headers = {"Origin": f"https://{HOST}", **headers}
        return self.request(
            "POST", "/console/web/login", headers=headers, data={"password": password}
        )

    def upload(self, size: int) -> httpx.Response:
        """Send a picture of so many bytes as the console's page does."""
        headers = {**PAGE, "Content-Type": "image/jpeg", "X-Sayso-Filename": "a.jpg"}
        content = signing.JPEG + bytes(size - len(signing.JPEG))
        return self.request("POST", "/console/web/files", headers=headers, content=content)


@pytest.fixture(scope="module")
def web(systemd_web: Site) -> Site:
    """Return a site whose web runs as systemd starts it, with a certificate of its own."""
    layer = systemd_web.sandbox.layer("certificate")
    (layer / Path(CERTIFICATE[1:]).parent).mkdir(parents=True)
    command = (
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={HOST}"
    )
    subprocess.run(
        [program("openssl"), *command.split(), "-addext", f"subjectAltName=DNS:{HOST}",
         "-keyout", layer / KEY[1:], "-out", layer / CERTIFICATE[1:]],
        check=True, capture_output=True,
    )  # fmt: skip
    return systemd_web


@pytest.fixture(scope="module", params=["nginx", "caddy"])
def proxy(request: pytest.FixtureRequest, web: Site) -> Iterator[Proxy]:
    """Return a running proxy with its configuration from deploy/, installed as on Debian."""
    name = request.param
    command, layer = program(name), web.sandbox.layer(name)
    if name == "nginx":
        put(ROOT / "deploy/nginx/sayso.conf", layer / "etc/nginx/conf.d/sayso.conf")
        check, run = [command, "-t"], [command, "-g", "daemon off;"]
    else:
        file = put(ROOT / "deploy/caddy/Caddyfile", layer / "etc/caddy/Caddyfile")
        # In place of a certificate that it would fetch.
        file.write_text(
            file.read_text().replace(f"\n{HOST} {{\n", f"\n{HOST} {{\n\ttls {CERTIFICATE} {KEY}\n")
        )
        config = ["--config", "/etc/caddy/Caddyfile", "--adapter", "caddyfile"]
        check, run = [command, "validate", *config], [command, "run", *config]
    layers = ["certificate"]
    web.sandbox.run(check, layers=layers, writes=name)
    tls = ssl.create_default_context(cafile=str(web.sandbox.layer("certificate") / CERTIFICATE[1:]))
    client = httpx.Client(base_url="https://127.0.0.1", verify=tls, timeout=20)
    with web.sandbox.running(run, layers=layers, writes=name, log=web.log(name)), client:
        running = Proxy(name, web, client, tls)
        until(lambda: answers(running))
        yield running


def put(source: Path, target: Path) -> Path:
    """Copy a file into a layer."""
    target.parent.mkdir(parents=True, exist_ok=True)
    return Path(shutil.copy(source, target))


def answers(proxy: Proxy) -> bool:
    """Return whether the proxy reaches the web."""
    try:
        return proxy.request("GET", "/readyz").status_code == 200
    except httpx.TransportError:
        return False


def whatsapp(path: str, text: str, secret: str) -> tuple[str, tuple[Mapping[str, str], bytes]]:
    """Return a webhook of Twilio, whose signature covers the public URL with its query."""
    form = signing.whatsapp_text(
        f"SM{text.encode().hex():0>32}", text, account_sid=SECRETS["TWILIO_ACCOUNT_SID"]
    )
    return path, signing.whatsapp_hook(f"https://{HOST}/hooks/{path}", secret, form)


def test_signed_webhooks_are_accepted(proxy: Proxy):
    """The proxy does not change the host, path, query and body that a platform signed."""
    twilio = SECRETS["TWILIO_AUTH_TOKEN"]
    assert proxy.hook(*whatsapp("wa", f"{proxy.name}1", twilio)) == 200
    assert proxy.hook(*whatsapp("wa?a=%2F%20b&c=d//e", f"{proxy.name}2", twilio)) == 200
    body = signing.slack_text("1795204800.000100", proxy.name)
    assert (
        proxy.hook("desk", signing.slack_hook(SECRETS["SLACK_SIGNING_SECRET"], body, time.time()))
        == 200
    )
    update = signing.telegram_text(len(proxy.name), "hello")
    assert proxy.hook("tg", signing.telegram_hook(SECRETS["TELEGRAM_SECRET"], update)) == 200


def test_forged_webhooks_are_refused(proxy: Proxy):
    """A wrong secret, or a signature for another address."""
    assert proxy.hook(*whatsapp("wa", "x", "another")) == 403
    assert proxy.hook("wa?more=1", whatsapp("wa", "x", SECRETS["TWILIO_AUTH_TOKEN"])[1]) == 403
    assert (
        proxy.hook(
            "desk", signing.slack_hook("another", signing.slack_text("1.1", "x"), time.time())
        )
        == 403
    )
    assert proxy.hook("tg", signing.telegram_hook("another", signing.telegram_text(1, "x"))) == 403


def test_a_webhook_to_another_host_is_never_answered_with_success(proxy: Proxy):
    """Its platform would take it for stored. Without a rule Caddy answers 200 for unknown hosts."""
    other = {"Host": "other.example.com"}
    assert not proxy.request("POST", "/hooks/tg", headers=other).is_success
    assert not proxy.site.post("http://127.0.0.1/hooks/tg", headers=other).is_success


def test_forwarding_headers_of_a_client_change_no_signature(proxy: Proxy):
    """The web checks the signature of its public URL, whatever host, scheme and path a client claims."""
    claims = {
        "X-Forwarded-Host": "evil.example.com", "X-Forwarded-Proto": "http", "X-Forwarded-Port": "81",
        "X-Forwarded-Prefix": "/x", "X-Original-URL": "/metrics", "Forwarded": "host=evil.example.com;proto=http",
    }  # fmt: skip
    secret = SECRETS["TWILIO_AUTH_TOKEN"]
    path, (headers, body) = whatsapp("wa", f"{proxy.name}3", secret)
    assert proxy.hook(path, ({**headers, **claims}, body)) == 200
    form = signing.whatsapp_text("SM" + "0" * 32, "x", account_sid=SECRETS["TWILIO_ACCOUNT_SID"])
    for scheme in ("http", "https"):
        headers, body = signing.whatsapp_hook(f"{scheme}://evil.example.com/hooks/wa", secret, form)
        assert proxy.hook("wa", ({**headers, **claims}, body)) == 403


def test_upload_at_the_limit_is_stored_and_a_larger_one_refused(proxy: Proxy):
    """The larger one gets 413. Its connection is not reset."""
    assert proxy.log_in(SECRETS["CONSOLE_PASSWORD"]).status_code == 303
    stored = proxy.upload(MAX_FILE_BYTES)
    assert stored.status_code == 201, stored.text
    refused = proxy.upload(MAX_FILE_BYTES + 1)
    assert (refused.status_code, f"send at most {MAX_FILE_BYTES} bytes" in refused.text) == (
        413,
        True,
    )
    assert proxy.upload(MAX_FILE_BYTES + 4_000_000).status_code == 413


def test_large_webhook_is_refused(proxy: Proxy):
    """A path without uploads has a small limit, so that its bodies cannot fill a disk."""
    answer = proxy.request("POST", "/hooks/tg", content=bytes(2_000_000))
    assert answer.status_code == 413


def test_event_stream_delivers_the_first_event_at_once(proxy: Proxy):
    """A proxy that buffers would deliver it when the stream ends, after a minute."""
    proxy.log_in(SECRETS["CONSOLE_PASSWORD"])
    request = proxy.client.build_request(
        "GET", "/console/web/events", headers={**PAGE, "Host": HOST}
    )
    request.extensions["sni_hostname"] = HOST

    def first_event() -> str:
        answer = proxy.client.send(request, stream=True)
        try:
            assert answer.headers["content-type"].startswith("text/event-stream"), (
                answer.status_code
            )
            return next(answer.iter_text())
        finally:
            answer.close()

    assert "retry: 1000" in proxy.site.sandbox.call(first_event)


def test_slow_clients_do_not_keep_others_waiting(proxy: Proxy):
    """Fifty clients that stop in the middle of a body hold connections of the proxy, and no thread of the web."""
    head = f"POST /hooks/tg HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: 1000\r\n\r\n{{".encode()

    def stall() -> list[ssl.SSLSocket]:
        opened = [socket.create_connection(("127.0.0.1", 443)) for _ in range(SLOW_CLIENTS)]
        wrapped = [proxy.tls.wrap_socket(each, server_hostname=HOST) for each in opened]
        for each in wrapped:
            each.sendall(head)
        return wrapped

    slow = proxy.site.sandbox.call(stall)
    try:
        update = signing.telegram_text(100 + len(proxy.name), "hello")
        assert [proxy.request("GET", "/healthz").status_code for _ in range(70)] == [200] * 70
        assert proxy.hook("tg", signing.telegram_hook(SECRETS["TELEGRAM_SECRET"], update)) == 200
    finally:
        for each in slow:
            with suppress(OSError):
                each.close()


def test_plain_http_is_redirected(proxy: Proxy):
    """The browser is sent to HTTPS, and told to use it from then on."""
    answer = proxy.site.get("http://127.0.0.1/console?a=b", headers={"Host": HOST})
    assert answer.status_code == 308
    assert answer.headers["location"] == f"https://{HOST}/console?a=b"
    assert "max-age" in proxy.request("GET", "/console").headers["strict-transport-security"]


def test_a_client_cannot_pretend_to_be_another(proxy: Proxy):
    """Failed logins count for the address that the proxy saw, whatever headers the client sends."""
    assert proxy.log_in("wrong", **{"X-Forwarded-For": "6.6.6.6"}).status_code in (401, 429)
    lines = [
        line
        for line in proxy.site.log("sayso-web.service").read_text().splitlines()
        if "login_failed" in line
    ]
    assert "address=127.0.0.1" in lines[-1]
