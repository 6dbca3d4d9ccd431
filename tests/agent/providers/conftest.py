"""Fixtures: the server of the fake APIs as one process for all tests, and a provider for each API."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sayso.agent.providers.vendors import (
    AnthropicProvider,
    GeminiProvider,
    OllamaProvider,
    OpenAIProvider,
    OpenAIResponsesProvider,
    VendorProvider,
)
from tests.agent.providers.api import KEY

ROOT = Path(__file__).parents[3]

Make = Callable[..., VendorProvider]
#: How each provider is made for the server at a URL. The last two need no key.
MAKERS: dict[str, Callable[..., VendorProvider]] = {
    "openai": lambda url, **more: OpenAIProvider(
        more.pop("key", KEY), base_url=f"{url}/v1", name="openai", **more
    ),
    "anthropic": lambda url, **more: AnthropicProvider(more.pop("key", KEY), base_url=url, **more),
    "gemini": lambda url, **more: GeminiProvider(more.pop("key", KEY), base_url=url, **more),
    "compatible": lambda url, **more: OpenAIProvider(
        more.pop("key", None), "local-model", f"{url}/local/v1", **more
    ),
    "ollama": lambda url, **more: OllamaProvider(
        "llama3.2", f"{url}/local/v1", api_key=more.pop("key", None), **more
    ),
}


def responses(url: str, **more: Any) -> OpenAIResponsesProvider:
    """Return a provider of OpenAI's Responses API."""
    return OpenAIResponsesProvider(
        more.pop("key", KEY), base_url=f"{url}/v1", name="openai", **more
    )


class Server:
    """The server process as a test uses it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def script(self, *steps: dict[str, Any]) -> None:
        """Set the next answers in order, and forget earlier requests."""
        data = json.dumps(steps).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/_script", data)).read()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Return the requests so far."""
        found: list[dict[str, Any]] = json.loads(
            urllib.request.urlopen(f"{self.url}/_calls").read()
        )
        return found

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Return the bodies of the requests so far."""
        return [call["body"] for call in self.calls]


@pytest.fixture(scope="session")
def process() -> Iterator[Server]:
    """Start one server process for all tests."""
    command = [sys.executable, "-m", "tests.agent.providers.server"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin
        assert running.stdout
        yield Server(f"http://127.0.0.1:{running.stdout.readline().strip()}")
        running.stdin.close()


@pytest.fixture
def server(process: Server) -> Server:
    """Return the server with an empty script."""
    process.script()
    return process


@pytest.fixture(params=list(MAKERS))
def make(request: pytest.FixtureRequest, server: Server) -> Make:
    """Return a function that makes a provider for the server."""
    return lambda **more: MAKERS[request.param](server.url, **more)


@pytest.fixture
def provider(make: Make) -> VendorProvider:
    """Return each provider with its defaults."""
    return make()
