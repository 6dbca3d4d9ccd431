"""Wiring: bootstrap connects the parts that other tests would not miss."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest
from redis import Redis

from sayso.agent.channel.behavior import Escalation
from sayso.agent.channel.turn_journal import RedisJournals
from sayso.channels.base import HasAliases
from sayso.channels.types import Conversation, Delivery, Reply
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.wiring.agents import terminal_agent
from sayso.config.wiring.bootstrap import bootstrap, preload
from sayso.infra.redis.client import WEB_ANSWER_SECONDS
from sayso.infra.redis.connections import Connections


def test_agents_of_a_worker_journal_their_turns(tmp_path: Path, redis_url: str):
    """Without the journal every killed turn would start over, and no other test would notice."""
    file = tmp_path / "sayso.yaml"
    file.write_text("channels:\n  web:\n    platform: console\n")
    services = bootstrap(load_settings(file, {}), data=tmp_path, redis_url=redis_url)
    assert isinstance(services.processor.turns.agents["web"]._journals, RedisJournals)


def test_workers_make_the_same_keys_of_conversations(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    """Of the secret keys that they share. Without them, each would look for a prompt in another cache of the vendor."""
    file = tmp_path / "sayso.yaml"
    file.write_text("channels:\n  web:\n    platform: console\n")
    secrets = []
    for machine, keys in (("a", "one"), ("b", "one"), ("c", "two")):
        monkeypatch.setenv("SAYSO_SECRET_KEYS", keys)
        services = bootstrap(load_settings(file, {}), data=tmp_path / machine, redis_url=redis_url)
        secrets.append(services.processor.turns.agents["web"].agent.config.conversation_secret)
    first, same, other = secrets
    assert first == same != other
    assert b"" not in secrets


@pytest.mark.parametrize(("patient", "seconds"), [(False, WEB_ANSWER_SECONDS), (True, 5)])
def test_only_the_web_has_a_short_redis_timeout(
    tmp_path: Path, redis_url: str, patient: bool, seconds: float
):
    """The web must answer a platform quickly; a worker can wait."""
    file = tmp_path / "sayso.yaml"
    file.write_text("channels:\n  web:\n    platform: console\n")
    services = bootstrap(
        load_settings(file, {}), data=tmp_path, redis_url=redis_url, is_worker=patient
    )
    assert services.redis.connection_pool.connection_kwargs["socket_timeout"] == seconds
    assert (Connections.of(services.redis).circuit_breaker is None) == patient


def test_escalation_is_wired_as_configured(tmp_path: Path, redis_url: str, redis_client: Redis):
    """Alerts go to the configured chat in its channel's language, and a forwarded reply wakes a worker."""
    file = tmp_path / "sayso.yaml"
    file.write_text(
        "channels:\n  web:\n    platform: console\n"
        "    escalate: {after: 300, to: {channel: ops, chat: C1, thread: T}}\n"
        "  ops: {platform: console, language: de}\n"
    )
    services = bootstrap(load_settings(file, {}), data=tmp_path, redis_url=redis_url)
    to = Conversation("ops", "C1", "T")
    assert services.processor.turns.agents["web"]._questions._escalation == Escalation(
        300, to, "de"
    )
    assert services.processor.turns.agents["ops"]._questions._escalation is None
    asyncio.run(
        services.processor.sender._outbox.forward(Delivery("web:1#1", to, Reply("Look there")))
    )
    assert redis_client.llen("rq:queue:sayso-sayso") == 1


def test_slack_has_aliases_of_a_conversation(tmp_path: Path, redis_url: str):
    """On other platforms a conversation has one address, so workers forward nothing."""
    file = tmp_path / "sayso.yaml"
    slack = "{platform: slack, bot_token: '${T}', signing_secret: '${T}'}"
    file.write_text(f"channels:\n  sl: {slack}\n  web: {{platform: console}}\n")
    channels = bootstrap(
        load_settings(file, {"T": "x"}), data=tmp_path, redis_url=redis_url
    ).processor.turns.channels
    assert [isinstance(channels[name], HasAliases) for name in ("sl", "web")] == [True, False]


def test_whatsapp_is_wired_as_configured(tmp_path: Path, redis_url: str):
    """A Messaging Service needs no number; the adapter gets the shared key and the templates."""
    file, template, asking = tmp_path / "sayso.yaml", f"HX{'a' * 32}", f"HX{'b' * 32}"
    file.write_text(
        "channels:\n  wa:\n    {platform: whatsapp, account_sid: A, auth_token: '${T}', shared_key: '${K}',\n"
        f"     messaging_service_sid: MG{'0' * 32}, template: {template}, confirm_template: {asking}}}\n"
    )
    services = bootstrap(
        load_settings(file, {"T": "token", "K": "key"}), data=tmp_path, redis_url=redis_url
    )
    channel = services.channels["wa"]
    told = channel._settings
    assert (told.shared_key.get_secret_value(), told.messaging_service_sid, told.from_) == (
        "key",
        f"MG{'0' * 32}",
        None,
    )
    assert (told.template, told.confirm_template) == (template, asking)


@pytest.mark.parametrize("is_worker", [False, True])
def test_only_workers_open_tool_servers_and_survive_a_missing_one(
    tmp_path: Path, redis_url: str, caplog, is_worker: bool
):
    """A worker logs the missing server and starts; the web opens none."""
    file = tmp_path / "sayso.yaml"
    file.write_text(
        "tools: [{mcp: {command: [no-such-command]}}]\nchannels:\n  web:\n    platform: console\n"
    )
    bootstrap(load_settings(file, {}), data=tmp_path, redis_url=redis_url, is_worker=is_worker)
    said = [record.problem for record in caplog.records if record.message == "tools.missing"]
    assert [
        f"{file}:1:9: tools: 'no-such-command' does not answer yet" in each for each in said
    ] == ([True] if is_worker else [])


@pytest.mark.parametrize(
    ("library", "line", "says"),
    [
        (
            "pint",
            "{toolbox: [calculator, units]}",
            "toolbox 'units' needs pint, which the extra 'toolbox' brings",
        ),
        (
            "mcp",
            "{mcp: {command: [x]}}",
            "the module 'mcp' is missing, which the extra 'mcp' brings: pip install 'mcp>=",
        ),
    ],
)
def test_start_without_a_library_of_tools_names_the_extra(
    tmp_path: Path,
    redis_url: str,
    monkeypatch: pytest.MonkeyPatch,
    library: str,
    line: str,
    says: str,
):
    """What runs tools refuses to start, as without the library of a model. The web, which runs none, starts."""
    monkeypatch.setitem(sys.modules, library, None)
    file = tmp_path / "sayso.yaml"
    file.write_text(f"tools: [{line}]\nchannels:\n  web:\n    platform: console\n")
    settings = load_settings(file, {})
    starts = [
        lambda: preload(settings),
        lambda: bootstrap(settings, data=tmp_path, redis_url=redis_url, is_worker=True),
        lambda: terminal_agent(settings, data=tmp_path).__enter__(),
    ]
    for start in starts:
        with pytest.raises(ConfigError) as caught:
            start()
        assert f"{file}:1:9: tools: {says}" in str(caught.value)
    assert bootstrap(settings, data=tmp_path, redis_url=redis_url).channels


@pytest.mark.parametrize(("is_worker", "opens"), [(True, True), (False, False)])
def test_only_workers_hold_open_tool_servers(
    tmp_path: Path, redis_url: str, is_worker: bool, opens: bool
):
    """A worker holds the servers until it closes them; the web runs no tool."""
    file = tmp_path / "sayso.yaml"
    file.write_text(
        "tools: [{mcp: {command: [no-such-command]}}]\nchannels:\n  web:\n    platform: console\n"
    )
    services = bootstrap(
        load_settings(file, {}), data=tmp_path, redis_url=redis_url, is_worker=is_worker
    )
    assert (services.tools.live is not None) is opens
    services.tools.close()
