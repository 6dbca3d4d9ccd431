"""Slack's Web API client over pooled connections, and Slack's origins."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import ClientSession
    from slack_sdk.web.async_client import AsyncWebClient

#: Slack's origin.
SLACK = "https://slack.com"
#: The origin of files for each of Slack's origins; https://slack-gov.com is GovSlack.
FILE_ORIGINS = {SLACK: "https://files.slack.com", "https://slack-gov.com": "https://files.slack-gov.com"}


def new_client(token: str, api_url: str | None, session: ClientSession) -> AsyncWebClient:
    """Return a client of Slack's Web API with this token. `api_url` replaces https://slack.com."""
    from slack_sdk.web.async_client import AsyncWebClient

    logger = logging.getLogger("sayso.channels.slack.sdk")
    logger.setLevel(logging.CRITICAL)  # the SDK logs whole messages at DEBUG
    url = f"{api_url or SLACK}/api/"
    # The SDK's own retries would send a message twice without the outbox's knowledge.
    return AsyncWebClient(token, url, session=session, logger=logger, retry_handlers=[])
