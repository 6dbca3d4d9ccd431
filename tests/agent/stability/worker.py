"""A worker of several bots as a process of its own: it answers the turns that it reads, one a line.

    python -m tests.agent.stability.worker REDIS_URL FOLDER

Each bot has a folder below FOLDER, with its sayso.yaml.
"""

from __future__ import annotations

import json
import sys
from functools import cache
from pathlib import Path

from sayso.channels.types import Conversation, Turn
from sayso.config.settings.loader import load_settings
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.infra.threads import LoopThread


def main(redis_url: str, folder: str) -> None:
    """Answer turns until the input ends. A line is {"event", "bot", "channel", "chat", "text"}."""
    loop = LoopThread()

    @cache
    def services_of(bot: str) -> Services:
        settings = load_settings(Path(folder) / bot / "sayso.yaml")
        data = Path(folder) / bot / "data"
        return bootstrap(settings, data=data, redis_url=redis_url, is_worker=True)

    for line in sys.stdin:
        said = json.loads(line)
        processor = services_of(said["bot"]).processor
        conversation = Conversation(said["channel"], said["chat"])
        processor.mailbox.accept(Turn(said["event"], conversation, said["chat"], said["text"]))
        loop.run(processor.run(conversation.id))
        sys.stdout.write("answered\n")
        sys.stdout.flush()
    loop.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
