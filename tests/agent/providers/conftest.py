"""The server of the fake APIs, one process for all tests here, and our provider for each of them."""

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
#: How each provider is made for the server at a URL. The server behind the last two asks for no key.
MAKERS: dict[str, Callable[..., VendorProvider]] = {
    "openai": lambda url, **more: OpenAIProvider(more.pop("key", KEY), base_url=f"{url}/v1", name="openai", **more),
    "anthropic": lambda url, **more: AnthropicProvider(more.pop("key", KEY), base_url=url, **more),
    "gemini": lambda url, **more: GeminiProvider(more.pop("key", KEY), base_url=url, **more),
    "compatible": lambda url, **more: OpenAIProvider(more.pop("key", None), "local-model", f"{url}/local/v1", **more),
    "ollama": lambda url, **more: OllamaProvider("llama3.2", f"{url}/local/v1", api_key=more.pop("key", None), **more),
}


def responses(url: str, **more: Any) -> OpenAIResponsesProvider:
    """OpenAI by its Responses API."""
    return OpenAIResponsesProvider(more.pop("key", KEY), base_url=f"{url}/v1", name="openai", **more)


class Server:
    """The process, as a test speaks to it."""

    def __init__(self, url: str) -> None:
        self.url = url

    def script(self, *steps: dict[str, Any]) -> None:
        """What it answers from now on, in order; earlier requests are forgotten."""
        data = json.dumps(steps).encode()
        urllib.request.urlopen(urllib.request.Request(f"{self.url}/_script", data)).read()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """The requests so far."""
        found: list[dict[str, Any]] = json.loads(urllib.request.urlopen(f"{self.url}/_calls").read())
        return found

    @property
    def bodies(self) -> list[dict[str, Any]]:
        """Their bodies."""
        return [call["body"] for call in self.calls]


@pytest.fixture(scope="session")
def process() -> Iterator[Server]:
    """One for all tests: it starts in a fifth of a second."""
    command = [sys.executable, "-m", "tests.agent.providers.server"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdin
        assert running.stdout
        yield Server(f"http://127.0.0.1:{running.stdout.readline().strip()}")
        running.stdin.close()


@pytest.fixture
def server(process: Server) -> Server:
    """With an empty script."""
    process.script()
    return process


@pytest.fixture(params=list(MAKERS))
def make(request: pytest.FixtureRequest, server: Server) -> Make:
    """Makes one provider after the other, for the server."""
    return lambda **more: MAKERS[request.param](server.url, **more)


@pytest.fixture
def provider(make: Make) -> VendorProvider:
    """Each provider, as it is by default."""
    return make()
