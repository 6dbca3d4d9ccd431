"""Access: the YAML decides who may talk on a channel, and each mistake has file, line and cure."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from sayso.agent.messages import Message, Role
from sayso.agent.toolsets.selectors import narrow
from sayso.channels.types import Conversation, Turn
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.settings.schema import Settings
from sayso.config.wiring.access import access_config, rules_of
from sayso.config.wiring.redis_parts import RedisParts
from sayso.config.wiring.tools import build_selector, open_tools
from sayso.ops.checks.describe import describe
from sayso.ops.cli.main import main
from sayso.pending.call_context import ChannelRun, context_field
from sayso.workers.people import RedisPeople

WHATSAPP = "{platform: whatsapp, account_sid: AC1, auth_token: '${KEY}', from: 'whatsapp:+14155238886', access: {access}}"

#: The `access` section, and the text of the error after `sayso.yaml`; @ is its path.
MISTAKES = {
    "nothing below": ("", "@: access has nothing below it: write `access: {}`, or leave it out"),
    "no list of people": ("{allow: }", "@.allow: is empty: give it a value, or leave the key out"),
    "no list of chats": ("{chats: }", "@.chats: is empty: give it a value, or leave the key out"),
    "no list of roles": ("{roles: }", "@.roles: is empty: give it a value, or leave the key out"),
    "unknown key": ("{alow: [a]}", "@.alow: unknown key: did you mean 'allow'?"),
    "a person as text": ("{allow: ana}", "@.allow: must be a list"),
    "a number": ("{allow: [5123456789]}", "@.allow.0: must be text: put it in quotes"),
    "a blocked number": ("{block: [5123456789]}", "@.block.0: must be text: put it in quotes"),
    "nobody": ("{block: ['']}", "@.block.0: is empty"),
    "no chats": ("{chats: []}", "@.chats: is empty"),
    "no turns": ("{per_minute: 0}", "@.per_minute: must be greater than or"),
    "yes turns": ("{per_minute: true}", "@.per_minute: must be a number"),
    "groups": ("{groups: off}", "@.groups: must be 'mention', 'always' or 'never'"),
    "a role": (
        "{roles: {allowed: {a: []}, users: {U1: b}}}",
        "@.roles.users.U1: names no role of allowed; known: a",
    ),
    "a role's tool": (
        "{roles: {allowed: {a: [drop_*]}}}",
        "@: 'drop_*' names no tool of this channel",
    ),
}


def load(
    folder: Path,
    access: str,
    more: str = "",
    channel: str = "{platform: console, access: {access}{more}}",
):
    """Return the settings of a channel with this access."""
    text = channel.replace("{access}", access).replace("{more}", more)
    (folder / "sayso.yaml").write_text(
        f"tools: [sayso.examples.invoices]\nchannels:\n  web: {text}\n"
    )
    return load_settings(folder / "sayso.yaml", {"KEY": "k"})


def config_of(settings: Settings, url: str):
    """Return the access configuration of a process on this Redis."""
    return access_config(settings, RedisParts.connect(settings, url))


def turn(user: str, chat: str = "room") -> Turn:
    """Return a turn of a person."""
    return Turn("e1", Conversation("web", chat), user, "hi")


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_place_and_cure(tmp_path: Path, mistake: str):
    """A block without effect would be worse than none."""
    access, words = MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        describe(load(tmp_path, access))
    place, said = words.split(":", 1)
    problem = caught.value.problems[0]
    assert f"{place.replace('@', 'channels.web.access')}:{said}" in problem
    assert "sayso.yaml:3:" in problem


def test_phone_number_without_quotes_keeps_its_plus(tmp_path: Path):
    """platforms.md 1, Identity: the address is whatsapp:+E.164, and a number without its + would match no person."""
    settings = load(tmp_path, "{allow: [], block: [+4915100000042]}", channel=WHATSAPP)
    rules = rules_of(settings.channels["web"])
    assert rules.ignores(turn("DE.1", chat="whatsapp:+4915100000042")) == "blocked"


def test_channels_without_access_load_nothing(tmp_path: Path, redis_client, redis_url: str):
    """The library of rate limits is loaded only with a limit."""
    assert config_of(load(tmp_path, "{}", channel="{platform: console}"), redis_url) is None
    guard = config_of(load(tmp_path, "{}"), redis_url)
    assert (guard.quota, type(guard.people)) == (None, RedisPeople)
    assert config_of(load(tmp_path, "{per_minute: 5}"), redis_url).quota is not None


@pytest.mark.parametrize(
    ("access", "words"),
    [
        ("{}", "everybody"),
        ("{block: [a, b]}", "everybody; never to 2"),
        ("{allow: [a]}", "1 named and those an operator approves"),
        ("{allow: []}", "those an operator approves"),
        ("{pairing: true}", "those an operator approves, by code"),
        (
            "{allow: [a], pairing: true, groups: never}",
            "1 named and those an operator approves, by code; not in groups",
        ),
        (
            "{groups: always, chats: [C1]}",
            "everybody; answers every message of a group; only in 1 chat",
        ),
        (
            "{per_minute: 20, roles: {allowed: {a: ['*'], b: []}}}",
            "everybody; 20 turns a minute each; as a, b",
        ),
    ],
)
def test_check_shows_who_may_talk(tmp_path: Path, access: str, words: str):
    """It shows this before the bot starts."""
    lines = str(describe(load(tmp_path, access))).splitlines()
    assert f"  talks to: {words}" in lines
    assert ("  (of these each role may use some)" in lines) == ("roles" in access)


def test_check_marks_a_channel_without_access_as_open(tmp_path: Path):
    """An author who forgot it sees it."""
    assert (
        "  talks to: everybody"
        in str(describe(load(tmp_path, "", channel="{platform: console}"))).splitlines()
    )


def shown(settings: Settings, user: str, text: str, *aliases: str) -> list[str]:
    """Return the tools that the model gets for this user's text."""
    tools = open_tools(settings).tools
    with context_field("run", ChannelRun(user, "web", "1", 60.0, "v", aliases=aliases)):
        return [
            tool.name
            for tool in asyncio.run(
                narrow(build_selector(settings, "web"), [Message(Role.USER, text)], tools)
            )
        ]


ROLES = (
    "{roles: {allowed: {support: [find_*], admin: ['*']}, users: {'+49': admin}, default: support}}"
)


def test_roles_restrict_before_any_selector(tmp_path: Path):
    """This holds for chosen tools and for tools that are always shown."""
    keyword = (
        ", selector: {keyword: {find_invoice: [find], delete_invoice: [delete]}, always: ['*']}"
    )
    assert shown(load(tmp_path, ROLES, keyword), "ana", "find and delete") == ["find_invoice"]
    assert "delete_invoice" in shown(load(tmp_path, ROLES, keyword), "+49", "find and delete")


def test_selector_chooses_from_the_tools_of_the_role(tmp_path: Path):
    """Both restrictions hold."""
    keyword = ", selector: {keyword: {delete_invoice: [delete]}}"
    assert "delete_invoice" not in shown(load(tmp_path, ROLES, keyword), "ana", "delete it")


def test_roles_need_no_selector(tmp_path: Path):
    """They work alone."""
    assert shown(load(tmp_path, ROLES), "ana", "delete it") == ["find_invoice"]


def test_role_of_a_phone_number_holds_with_and_without_its_platform(tmp_path: Path):
    """A turn spells its user whatsapp:+49..."""
    settings = load(tmp_path, ROLES, channel=WHATSAPP)
    assert shown(settings, "whatsapp:+49", "hi") == shown(settings, "+49", "hi")
    assert len(shown(settings, "whatsapp:+49", "hi")) > 1


def test_role_is_found_by_any_id_of_a_person(tmp_path: Path):
    """platforms.md 1.1: a WhatsApp account comes with its number; the account's own role counts first."""
    settings = load(tmp_path, ROLES)
    assert len(shown(settings, "DE.1", "hi", "4915", "+49")) > 1
    roles = ROLES.replace("{'+49': admin}", "{'+49': admin, DE.1: support}")
    assert shown(load(tmp_path, roles), "DE.1", "hi", "+49") == ["find_invoice"]


def test_explain_names_the_line_of_the_roles(tmp_path: Path):
    """That line decides who may use the tool."""
    load(tmp_path, ROLES)
    file = str(tmp_path / "sayso.yaml")
    said = (
        CliRunner()
        .invoke(main, ["explain", "web", "delete_invoice", "--config", file, "--user", "ana"])
        .output
    )
    assert "sayso.yaml:3:" in said
    assert "support" in said
