"""The WSGI app of `sayso web`, and `app()` for gunicorn."""

from __future__ import annotations

import logging
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from flask import Blueprint, Flask

from sayso.channels.base import Channel
from sayso.channels.registry import find_platform, load
from sayso.channels.web.app import create_app
from sayso.config.settings.loader import ConfigError, default_config, load_settings
from sayso.config.wiring import health
from sayso.config.wiring.bootstrap import Services, bootstrap
from sayso.config.wiring.ingress import UploadCheck, check_redis_if_reachable, ingress_of, start_watching
from sayso.config.wiring.observability import set_up_logs
from sayso.pending.redis.client import RedisUnfit

log = logging.getLogger(__name__)


#: The exit code of a process whose configuration cannot be used. Gunicorn does not restart a worker that ends with it.
APP_LOAD_ERROR = 4


def app() -> Flask:
    """Return the app for a WSGI server, from SAYSO_CONFIG and SAYSO_DATA. Ends the process if it cannot run."""
    set_up_logs()
    try:
        settings = load_settings(default_config())
        services = bootstrap(settings, data=Path(os.environ.get("SAYSO_DATA", ".sayso")))
        check_redis_if_reachable(services)
    except (ConfigError, RedisUnfit) as exc:
        log.error("web.unusable: %s", exc)
        sys.exit(APP_LOAD_ERROR)
    start_watching(services)
    return build_app(services)


def build_app(services: Services) -> Flask:
    """Return the WSGI app of one wired process."""
    return create_app(
        services.channels,
        ingress_of(services),
        services.media,
        readiness=partial(health.readiness, services),
        health=partial(health.full, services),
        public_url=services.public_url,
        pages=_pages(services),
    )


def _pages(services: Services) -> Iterator[Blueprint]:
    """Yield the web pages of the platforms that have some, each with all channels of its platform."""
    by_platform: defaultdict[str, list[Channel]] = defaultdict(list)
    for name, channel in services.channels.items():
        by_platform[services.settings.channels[name].platform].append(channel)
    for name, channels in by_platform.items():
        platform = find_platform(name)
        if platform and platform.pages:
            yield load(platform.pages)(
                *channels,
                public_url=services.public_url,
                admit=UploadCheck(services.access_control, services.settings.limits.per_minute),
                stage=services.access_control.turn_status,
                why_waiting=partial(health.why_waiting, services),
            )
