"""Agents: one for each channel, with the tools, the policy, the selector and the store that it is configured with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

from sayso.agent import Agent, ChannelAgent, ConversationMemory, ToolPolicy
from sayso.agent.escalation import Escalation
from sayso.agent.long_texts import TextStore
from sayso.agent.made import MediaSink
from sayso.agent.tools.loader import LoadedTools
from sayso.agent.tools.reload import Reload
from sayso.channels.media import LocalMediaStore
from sayso.channels.types import Conversation
from sayso.config.data_folder import open_data
from sayso.config.loader import ConfigError
from sayso.config.outfit import Outfit, lone_outfit, own_tools
from sayso.config.providers import is_remote
from sayso.config.schema import AnyChannel, PolicySettings, Settings
from sayso.config.selection import build_selector, misnamed
from sayso.config.sources import OPEN_SECONDS, OpenTools, open_tools
from sayso.pending import InMemoryPendingStore, RedisPendingStore, RegexConfirmParser
from sayso.pending.store import BasePendingStore
from sayso.workers.journals import Journals
from sayso.workers.offload import run_sync
from sayso.workers.redis import Scripts


def load_tools_of(
    settings: Settings, *, remote: bool = False, strict: bool = False, seconds: float = OPEN_SECONDS
) -> OpenTools:
    """As `open_tools`, and looks whether channels name tools that there are. Raises ConfigError."""
    opened = open_tools(settings, remote=remote, strict=strict, seconds=seconds)
    may_change = not strict and any(map(is_remote, settings.tools))
    if opened.problems or may_change:  # names that are not known now may be later
        return opened
    problems = _misnamed(settings, opened)
    if problems:
        opened.close()
        raise ConfigError(problems)
    return opened


def _misnamed(settings: Settings, opened: OpenTools) -> list[str]:
    """What in the channels names no tool, though all are known."""
    own = own_tools(settings)
    known = ", ".join(tool.name for tool in [*opened.tools, *own]) or "none"
    problems = [
        f"{settings.origin.at('channels', name, 'tools', index)}channels.{name}.tools: {pattern!r} names no tool; "
        f"known: {known}"
        for name, channel in settings.channels.items()
        for index, pattern in enumerate(channel.tools or ())
        if not (opened.select([pattern]).all() or any(fnmatchcase(tool.name, pattern) for tool in own))
    ]
    for name, channel in settings.channels.items():
        problems += misnamed(settings, name, [*opened.select(channel.tools).all(), *own])
    return problems


def agents_of(
    outfit: Outfit,
    opened: OpenTools,
    scripts: Scripts,
    media: LocalMediaStore,
    keys: list[str],
    journals: Journals,
    texts: TextStore,
) -> dict[str, ChannelAgent]:
    """Each channel's agent, with its store in Redis. Raises ConfigError for a selector or a model that cannot be."""
    return {
        name: _agent(outfit, name, opened, _redis_store(channel, scripts, keys), media, journals, texts)
        for name, channel in outfit.settings.channels.items()
    }


def follow(opened: OpenTools, settings: Settings, agents: Mapping[str, ChannelAgent]) -> None:
    """Take edits of the tools' files up as they are saved."""

    def replaced(source: str, loaded: LoadedTools) -> None:
        opened.replace(source, loaded)
        for kind, factory in loaded.executor_factories.items():
            for agent in agents.values():
                agent.store.register_executor_factory(kind, factory)

    Reload(opened.watched, settings.origin.folder, replaced).start()


@contextmanager
def terminal_agent(
    settings: Settings,
    *,
    data: Path,
    channel: str | None,
    media: MediaSink | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> Iterator[ChannelAgent]:
    """One channel's agent with everything in memory, for `sayso chat`; `tell` hears of tools that are missing.
    What tools make is kept in `media`.

    Its remote sources and its model are left at the end. Raises ConfigError.
    """
    os.environ.setdefault("SAYSO_DATA", str(data))
    open_data(data)
    name = channel or next(iter(settings.channels))
    if name not in settings.channels:
        raise ConfigError([f"no channel {name!r}; known: {', '.join(settings.channels)}"])
    outfit = lone_outfit(settings, data)
    opened = load_tools_of(settings, remote=True)
    try:
        for problem in opened.problems:
            tell(problem)
        yield _agent(outfit, name, opened, InMemoryPendingStore(parser_of(settings.channels[name])), media)
    finally:
        opened.close()
        run_sync(outfit.aclose())


def _redis_store(channel: AnyChannel, scripts: Scripts, keys: list[str]) -> RedisPendingStore:
    return RedisPendingStore(parser=parser_of(channel), scripts=scripts, secret_keys=keys)


def parser_of(channel: AnyChannel) -> RegexConfirmParser:
    """What is a yes in the languages of this channel."""
    return RegexConfirmParser(channel.languages, emoji=channel.confirm_emoji)


def _agent(
    outfit: Outfit,
    name: str,
    opened: OpenTools,
    store: BasePendingStore,
    media: MediaSink | None,
    journals: Journals | None = None,
    texts: TextStore | None = None,
) -> ChannelAgent:
    for kind, factory in opened.executor_factories.items():
        store.register_executor_factory(kind, factory)
    settings = outfit.settings
    channel, memory = settings.channels[name], settings.agent.memory
    agent = Agent(
        opened.select(channel.tools),
        outfit.provider_of(name),
        replace(outfit.config_of(name), tool_policy=tool_policy(channel.policy)),
        ConversationMemory(memory.max_messages, memory.max_tokens),
        build_selector(settings, name),
    )
    return ChannelAgent(
        agent,
        store,
        confirm_ttl=channel.confirm_ttl,
        media=media,
        journals=journals,
        texts=texts,
        language=channel.speaks,
        languages=channel.languages,
        expiry_notice=channel.expiry_notice,
        escalation=_escalation(settings, channel),
        commands=channel.commands,
        confirm_ok=channel.confirm_ok,
    )


def _escalation(settings: Settings, channel: AnyChannel) -> Escalation | None:
    """Operators are told in the language of the channel that they are on."""
    if channel.escalate is None:
        return None
    after, to = channel.escalate.after, channel.escalate.to
    return Escalation(after, Conversation(to.channel, to.chat, to.thread), settings.channels[to.channel].speaks)


def tool_policy(settings: PolicySettings | None) -> ToolPolicy | None:
    """The policy as it is configured."""
    if settings is None:
        return None
    deny_when = [rule.model_dump() for rule in settings.deny_when]
    return ToolPolicy(settings.allow, settings.review, settings.deny, deny_when)
