"""Thinker: a worker with a model that thinks for as long as the message says, and answers without a network.

python -m benchmarks.thinker <config> <data> (with REDIS_URL)
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from sayso.agent.messages import Message, Role, UsageStats
from sayso.agent.providers.base import Completion, StreamItem
from sayso.agent.providers.offline import OfflineProvider
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import bootstrap, check_redis, preload
from sayso.config.wiring.observability import set_up_logs
from sayso.config.wiring.rq_entry import install, worker_services
from sayso.workers.rq.process import run_worker

#: The beginning of a message that names the seconds to think.
COMMAND = "/think "
#: What a streamed answer goes on with, and the seconds between two words.
WORDS, WORD_SECONDS = ["again"] * 100, 0.02


class Thinker(OfflineProvider):
    """The offline model, as slow as each message says."""

    async def acomplete(self, **request: Any) -> Completion:
        """Think first if the user asks for it, and say so; else answer as the offline model."""
        last = request["messages"][-1]
        if last.role is not Role.USER or not last.content.startswith(COMMAND):
            return await super().acomplete(**request)
        await asyncio.sleep(float(last.content.removeprefix(COMMAND)))
        return Message(Role.ASSISTANT, "thought"), UsageStats()

    async def astream(self, **request: Any) -> AsyncGenerator[StreamItem, None]:
        """Think first as `acomplete` does, then yield words, one every WORD_SECONDS."""
        answer, _ = await self.acomplete(**request)
        for word in [answer.content, *WORDS]:
            yield f"{word} "
            await asyncio.sleep(WORD_SECONDS)


def main(config: str, data: str) -> None:
    """Work until SIGTERM, as `sayso worker` does."""
    set_up_logs()
    settings = load_settings(Path(config))
    preload(settings)
    services = bootstrap(settings, data=Path(data), is_worker=True, provider=Thinker())
    check_redis(services)
    run_worker(worker_services(services), install(services).loop)


if __name__ == "__main__":
    main(*sys.argv[1:])
