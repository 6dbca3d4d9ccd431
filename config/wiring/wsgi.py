"""The app for a WSGI server such as gunicorn: `gunicorn 'sayso.config.wiring.wsgi:app()'`."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from flask import Flask

from sayso.channels.web.app import create_app
from sayso.channels.web.ingress import Ingress, check_redis_if_there
from sayso.config.settings.loader import ConfigError, default_config, load_settings
from sayso.config.wiring.bootstrap import bootstrap
from sayso.config.wiring.observability import set_up_logs
from sayso.pending.redis.client import RedisUnfit

log = logging.getLogger(__name__)


#: The exit code of a process whose configuration cannot be used. After it gunicorn starts no other worker.
APP_LOAD_ERROR = 4


def app() -> Flask:
    """Return the app, configured by SAYSO_CONFIG and SAYSO_DATA. Exits where the configuration cannot be used."""
    set_up_logs()
    try:
        settings = load_settings(default_config())
        services = bootstrap(settings, data=Path(os.environ.get("SAYSO_DATA", ".sayso")))
        check_redis_if_there(services)
    except (ConfigError, RedisUnfit) as exc:
        log.error("web.unusable: %s", exc)
        sys.exit(APP_LOAD_ERROR)
    Ingress(services).open()
    return create_app(services)
