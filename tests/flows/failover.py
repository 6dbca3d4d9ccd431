"""SentinelSystem: web and worker as processes on a primary that Sentinels watch."""

from __future__ import annotations

from pathlib import Path

from redis.exceptions import RedisError

from sayso.infra.redis.client import connect
from tests.flows.system import System, TelegramPerson, until
from tests.workers.sentinels import SentinelSetup

#: The person who decides about what is asked in Slack.
PEOPLE = """
people:
  ops: {accounts: {ops-tg: "5000000079"}}
"""


class SentinelSystem(System):
    """Web and worker on a primary that Sentinels watch."""

    redis: SentinelSetup  # type: ignore[assignment]

    def __init__(self, folder: Path, *, replicas: int) -> None:
        super().__init__(folder, workers=1)
        self.redis = SentinelSetup(folder)
        rule = "{delete_invoice: {by: {people: [ops]}}}"
        text = self.config.read_text().replace(
            "platform: slack,", f"platform: slack, policy: {{approval: {rule}}},"
        )
        self.config.write_text(f"{text}redis_wait_replicas: {replicas}\n{PEOPLE}")

    def __enter__(self) -> SentinelSystem:
        super().__enter__()
        return self

    def is_settled(self) -> bool:
        """Return whether Redis has recorded the delivery of every reply."""
        try:
            with connect(self.redis.url) as client:
                return next(client.scan_iter("sayso:*:outbox:*", count=1000), None) is None
        except RedisError:
            return False

    def said(self, person: TelegramPerson, number: int, text: str) -> None:
        """Deliver a message again and again until it is accepted, as a platform does."""
        hook = person.text(number, text)
        until(lambda: self.post(*hook).status_code == 200)
