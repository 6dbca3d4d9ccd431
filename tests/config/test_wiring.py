"""Wiring: what bootstrap must not forget to put together."""

from __future__ import annotations

from pathlib import Path

from config.bootstrap import bootstrap
from config.loader import load_settings
from workers.journals import RedisJournals


def test_agents_of_a_worker_journal_their_turns(tmp_path: Path, redis_url: str):
    """Without it every killed turn would start over, and no other test would see it."""
    file = tmp_path / "sayso.yaml"
    file.write_text("channels:\n  web:\n    platform: console\n")
    services = bootstrap(load_settings(file, {}), data=tmp_path, redis_url=redis_url)
    assert isinstance(services.drain.agents["web"]._journals, RedisJournals)
