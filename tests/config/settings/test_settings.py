"""Settings: every mistake is reported with file, line, value and cure, and no secret is ever repeated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.types import Conversation
from sayso.config.settings.loader import (
    DEMO,
    ConfigError,
    default_config,
    load_for_terminal,
    load_settings,
)
from sayso.config.wiring.agents import load_bot_tools
from sayso.config.wiring.bootstrap import bootstrap
from sayso.ops.checks.describe import describe

SECRET = "s3cr3t-value"

#: The YAML, and the text that the error must have after `sayso.yaml`.
MISTAKES = {
    "empty": ("", ":1:1: the file is empty: `sayso init` writes one"),
    "list at top": ("- a\n", ":1:1: must be a section: indented `key: value` lines (it is a list)"),
    "tab": ("channels:\n\tweb: 1\n", ":2:1: not YAML: found character '\\t' that cannot start any token: indent with"),
    "two documents": ("a: 1\n---\nb: 1\n", ":2:1: but found another document: keep one"),
    "unclosed": ("a: [1\n", ":2:1: not YAML:"),
    "duplicate": ("agent: {}\nagent: {}\n", ":2:1: agent: written twice: keep one"),
    "anchor": ("agent: &a {}\n", ":1:8: an anchor or alias, 'a': write the value out"),
    "recursion": ("a: &a\n  b: *a\n", ":1:4: an anchor or alias, 'a'"),
    "star": ("a: [*]\n", "not YAML: expected alphabetic or numeric character, but found ']': put a pattern that"),
    "tag": ("a: !!python/object:os.system x\n", ":1:4: a tag, 'tag:yaml.org,2002:python/object:os.system'"),
    "deep": ("a: " + "[" * 3000, ": nested too deeply"),
    "complex key": ("? [a]\n: 1\n", ":1:3: a key must be a plain word"),
    "control character": ("a: \0\n", ": not YAML: it holds a control character (#x0000)"),
    "no channel": ("channels: {}\n", ":1:1: channels: is empty: add one"),
    "no channels": ("agent: {}\n", ":1:1: channels: missing: add it"),
    "nothing below": ("agent:\n", ":1:1: agent: must be a section: indented `key: value` lines (it is empty)"),
    "platform": ("channels:\n  a: {platform: discord}\n", ":2:3: channels.a: unknown platform: one of whatsapp"),
    "no platform": ("channels:\n  a: {}\n", ":2:3: channels.a: platform is missing: one of"),
    "key": ("channels:\n  a:\n    platform: console\n    titel: x\n", ":4:5: channels.a.titel: unknown key: did you"),
    "namespace": ("tools: [{module: a.py, namespace: a b}]\n", "a namespace has 1 to 32 letters, digits and _ - (it"),
    "text for number": ("channels:\n  a: {platform: console, confirm_ttl: soon}\n", "confirm_ttl: must be a number "),
    "number for text": ("channels:\n  a: {platform: console, title: 5}\n", "title: must be text: put it in quotes"),
    "text for list": ("tools: x\n", ":1:1: tools: must be a list, such as [a, b] (it is 'x')"),
    "what follows": (
        "channels:\n  a: {platform: console, after: stop}\n",
        ":2:26: channels.a.after: must be 'continue' or 'say' (it is 'stop')",
    ),
    "another message": (
        "channels:\n  a: {platform: console, other_message: stay}\n",
        ":2:26: channels.a.other_message: must be 'drop' or 'keep' (it is 'stay')",
    ),
    "what follows a rule": (
        "channels:\n  a: {platform: console, policy: {after: {refund_*: yes}}}\n",
        "channels.a.policy.after.refund_*: must be 'continue' or 'say' (it is 'yes')",
    ),
    "too large": ("agent: {max_iterations: 1000}\n", ":1:9: agent.max_iterations: must be less than or equal to 100"),
    "name": ("channels:\n  a/b: {platform: console}\n", ":2:3: channels.a/b: a name has 1 to 64 letters"),
    "model": ("agent: {model: gpt}\n", ":1:9: agent.model: unknown model: write vendor:model, such as openai:"),
    "vendor without a model": ("agent: {model: 'openai:'}\n", ":1:9: agent.model: unknown model: write vendor:model"),
    "no model beside": ("agent: {memory: {entities: {api_key: '${SECRET}'}}}\n", "entities: api_key and base_url are"),
    "loop": ("agent: {guards: {loop: on}}\n", ":1:18: agent.guards.loop: must be a whole number such as 3, or off"),
    "two guards in one": ("agent: {guards: {input: [{topic: a, pattern: b}]}}\n", "guards.input.0: choose one of"),
    "cache of two stores": ("agent: {cache: {store: redis, max_entries: 5}}\n", "agent.cache: max_entries is not for"),
    "half a price": ("agent: {prices: {m: [1]}}\n", ":1:18: agent.prices.m: must be two numbers, of input"),
    "summary by a number": ("agent: {memory: {summarize: 5}}\n", "agent.memory.summarize: must be a section"),
    "url": ("public_url: bots.example.com\n", ":1:1: public_url: is not a URL: write it as https://bots.example.com ("),
    "half a bracket": ("public_url: 'http://[::1'\n", ":1:1: public_url: is not a URL: write it as https://bots.example"),
    "no port": ("public_url: http://bots:99999\n", ":1:1: public_url: is not a URL: write it as https://bots.example"),
    "query": ("public_url: https://bots?a=1\n", ":1:1: public_url: ends in a query or a fragment: leave that out ("),
    "unset": ("public_url: ${NOPE}\n", ":1:1: public_url: NOPE is not set: export NOPE=..., or write ${NOPE:-default}"),
    "malformed": ("public_url: ${NOPE\n", ":1:1: public_url: malformed ${...}: write ${NAME}"),
    "no file": ("public_url: ${file:nope}\n", ":1:1: public_url: cannot read 'nope' (No such file or directory)"),
    "brace": ("agent: {model: a {b}}\n", ":1:18: not YAML: expected ',' or '}', but got '{': put text that holds"),
    "console's path": ("channels:\n  a: {platform: console}\n  poll: {platform: console}\n", ":3:3: channels.poll:"),
    "vendor's url": (
        "channels:\n  a: {platform: slack, bot_token: ${SECRET}, signing_secret: ${SECRET}, api_url: fake:80}\n",
        ":2:73: channels.a.api_url: is not a URL: write it as https://bots.example.com (it is 'fake:80')",
    ),
    "no bucket": (
        "media: {store: 's3://Files'}\nchannels:\n  a: {platform: console}\n",
        ":1:9: media.store: is not a bucket: write it as s3://bucket or s3://bucket/prefix (it is 's3://Files')",
    ),
    "no region": (
        "media: {store: 's3://files', region: \"eu west\"}\nchannels:\n  a: {platform: console}\n",
        ":1:30: media.region: is not a region: write letters, digits and hyphens, as in eu-central-1 (it is 'eu west')",
    ),
    "endpoint without a bucket": (
        "media: {region: eu-central-1}\nchannels:\n  a: {platform: console}\n",
        ":1:1: media: endpoint and region belong to a bucket: add store, such as s3://my-bucket/shop",
    ),
    "operators nowhere": (
        "channels:\n  a:\n    platform: console\n    escalate: {after: 300, to: {channel: opps, chat: C1}}\n  ops:\n"
        "    platform: console\n",
        ":4:33: channels.a.escalate.to.channel: names no channel; known: a, ops (it is 'opps')",
    ),
    "operators without a chat": (
        "channels:\n  a: {platform: console, escalate: {after: 300, to: {channel: a}}}\n",
        "channels.a.escalate.to.chat: missing: add it",
    ),
    "operators with no chat": (
        "channels:\n  a: {platform: console, escalate: {after: 300, to: {channel: a, chat: ''}}}\n",
        "channels.a.escalate.to.chat: is empty: give it a value",
    ),
    "operators' chat as a number": (
        "channels:\n  a: {platform: console, escalate: {after: 300, to: {channel: a, chat: -100}}}\n",
        "channels.a.escalate.to.chat: must be text: put it in quotes",
    ),
    "alarm at once": (
        "channels:\n  a: {platform: console, escalate: {after: 0, to: {channel: a, chat: C1}}}\n",
        "channels.a.escalate.after: must be greater than 0",
    ),
    "alarm never": (
        "channels:\n  a: {platform: console, escalate: {to: {channel: a, chat: C1}}}\n",
        "channels.a.escalate.after: missing: add it",
    ),
    "negative pace": ("channels:\n  a: {platform: console, messages_per_second: -1}\n", "messages_per_second: "),
    "true for seconds": ("channels:\n  a: {platform: console, confirm_ttl: true}\n", "confirm_ttl: must be a number"),
    "true for count": ("agent: {max_iterations: true}\n", ":1:9: agent.max_iterations: must be a number"),
    "sender": (
        "channels:\n  a: {platform: whatsapp, account_sid: A, auth_token: '${SECRET}', from: '+49'}\n",
        ":2:68: channels.a.from: is not a WhatsApp sender: write it as whatsapp:+14155238886",
    ),
    "no sender": (
        "channels:\n  a: {platform: whatsapp, account_sid: A, auth_token: '${SECRET}', from: '${NOPE:-}'}\n",
        ":2:3: channels.a: from is missing: give the sender as from, or a messaging_service_sid",
    ),
    "service": (
        "channels:\n  a: {platform: whatsapp, account_sid: A, auth_token: '${SECRET}', messaging_service_sid: HX1}\n",
        ":2:68: channels.a.messaging_service_sid: is not an id of this kind: write MG and the 32 digits",
    ),
    "template": (
        "channels:\n  a: {platform: whatsapp, account_sid: A, auth_token: '${SECRET}', template: hi}\n",
        "channels.a.template: is not an id of this kind: write HX and the 32 digits",
    ),
    "shared key in clear": (
        "channels:\n  a: {platform: whatsapp, account_sid: A, auth_token: '${SECRET}', shared_key: abc}\n",
        ":2:68: shared_key: a secret in clear: put it in the environment",
    ),
    "module": ("tools:\n  - no.such\nchannels: {a: {platform: console}}\n", ":2:5: tools: cannot load tools from"),
    "pattern": (
        "tools: [good.py]\nchannels:\n  a: {platform: console, tools: [zap_*]}\n",
        ":3:34: channels.a.tools: 'zap_*' names no tool; known: good",
    ),
    "same name": ("tools: [good.py, twin.py]\nchannels: {a: {platform: console}}\n", ":1:18: tools: cannot load"),
    "syntax": ("tools: [bad.py]\nchannels: {a: {platform: console}}\n", "bad.py, line 1: SyntaxError"),
    "raises": ("tools: [raises.py]\nchannels: {a: {platform: console}}\n", "raises.py, line 1: ZeroDivisionError"),
    "exits": ("tools: [exits.py]\nchannels: {a: {platform: console}}\n", "exits.py, line 1: ends the program"),
}  # fmt: skip
TOOL = (
    'from sayso.agent import tool\n@tool()\ndef good() -> str:\n    """Do good."""\n    return ""\n'
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a configuration with modules of tools beside it."""
    for name, text in {
        "good.py": TOOL,
        "twin.py": TOOL,
        "bad.py": "def (",
        "raises.py": "1/0",
        "exits.py": "exit(3)",
    }.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "sayso.yaml"


def refusal(file: Path, text: str, **environ: str) -> str:
    """Return the error for a file with this text."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        describe(load_settings(file, environ))
    return str(caught.value)


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_reported_with_its_place_and_cure(file: Path, name: str):
    """The author finds the line and learns what to write instead."""
    text, expected = MISTAKES[name]
    said = refusal(file, text, SECRET=SECRET)
    assert said.startswith(str(file))
    assert expected in said, said


@pytest.mark.parametrize(
    "line",
    [
        "token: ${SECRET}\n    secret_token: not-a-reference",
        "token: ${SECRET}\n    secret_token: prefix${SECRET}",
        "token: ${SECRET}\n    secret_token: ${NOPE:-a-default}",
        "token: ${SECRET}\n    secret_token: 12345",
    ],
)
def test_secret_in_clear_is_refused_and_not_repeated(file: Path, line: str):
    """A secret, or a part or default of one, does not belong into the file."""
    said = refusal(file, f"channels:\n  a:\n    platform: telegram\n    {line}\n", SECRET=SECRET)
    assert re.search(
        r":5:5: secret_token: a secret in clear: put it in the environment and write", said
    )
    assert not any(
        word in said for word in ("not-a-reference", "prefix", "a-default", "12345", SECRET)
    )


@pytest.mark.parametrize(
    "text",
    [
        "channels:\n  a: {platform: telegram, token: ['${SECRET}'], secret_token: {a: '${SECRET}'}}\n",
        "channels:\n  a: {platform: telegram, token: '${SECRET}', secret_token: '${SECRET} ?'}\n",
        "channels:\n  - {platform: telegram, token: '${SECRET}'}\n",
        "channels:\n  a: {platform: '${SECRET}'}\n",
        "public_url: ${SECRET}\n",
        "agent: {model: '${SECRET}', max_iterations: '${SECRET}'}\n",
        "redis_url: redis://:s3cr3t-value@host\n",
        "agent: {cache: {store: redis, redis_url: 'redis://:s3cr3t-value@host'}}\n",
        "agent: {model: 'openai:${SECRET}', base_url: '${SECRET}', fallback: ['${SECRET}']}\n",
        "redis_url: http://${SECRET}@host\n",
        "channels:\n  a: {platform: whatsapp, account_sid: A, auth_token: '${SECRET}', from: '${SECRET}'}\n",
    ],
)
def test_errors_never_repeat_what_came_from_the_environment(file: Path, text: str):
    """A secret in the wrong place is still a secret."""
    assert SECRET not in refusal(file, text, SECRET=SECRET)


@pytest.mark.parametrize(
    "key", ["store: 's3://{}:x@files'", "store: 's3://f', endpoint: 'https://{}@s3.example.com:x'"]
)
def test_errors_never_repeat_a_login_in_a_url(file: Path, key: str):
    """Even in a setting that takes no URL."""
    said = refusal(
        file, f"media: {{{key.format('the-login')}}}\nchannels:\n  a: {{platform: console}}\n"
    )
    assert ":1:" in said
    assert "the-login" not in said


def test_empty_secret_is_refused(file: Path):
    """An exported but empty variable counts as missing."""
    text = "channels:\n  a: {platform: slack, bot_token: '${T}', signing_secret: '${T}'}\n"
    assert refusal(file, text, T=" ").count("is empty: give it a value") == 2


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        (
            "",
            "has no token: give bot_token for one workspace, or client_id and client_secret for many",
        ),
        ("client_id: '${T}'", "client_secret is missing"),
        ("client_secret: '${T}'", "client_id is missing"),
        (
            "bot_token: '${T}', client_id: '${T}', client_secret: '${T}'",
            "leave out bot_token, or the other two",
        ),
        (
            "bot_token: '${T}', install: {}",
            "install needs client_id and client_secret instead of bot_token",
        ),
        ("client_id: '${T}', client_secret: '${T}', install:", "install has nothing below it"),
        (
            "client_id: '${T}', client_secret: '${T}', install: {organizations: []}",
            "install.organizations: is empty: add one",
        ),
        (
            "client_id: '${T}', client_secret: '${T}', install: {organizations: [acme]}",
            "write it as T0123ABCD",
        ),
    ],
)
def test_half_a_slack_app_is_refused_with_its_cure(file: Path, keys: str, problem: str):
    """An app has one token, or what many workspaces install it with."""
    said = refusal(
        file,
        f"channels:\n  a: {{platform: slack, signing_secret: '${{T}}', {keys}}}\n",
        T="hush-hush",
    )
    assert problem in said
    assert "channels.a" in said


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("channels:\n  a: {platform: console, tools: }\n", "channels.a.tools"),
        ("channels:\n  a: {platform: console, selector: }\n", "channels.a.selector"),
        ("tools: [{mcp: {url: 'https://a.example/mcp'}, include: }]\n", "tools.0.include"),
        ("agent: {budget: {day_usd: }}\n", "agent.budget.day_usd"),
        ("agent: {guards: {coherence: }}\n", "agent.guards.coherence"),
        (
            "channels:\n  a: {platform: slack, install: {organizations: }}\n",
            "channels.a.install.organizations",
        ),
    ],
)
def test_restriction_without_a_value_is_refused(file: Path, text: str, key: str):
    """`tools:` with nothing behind it must not mean "all tools"."""
    assert f"{key}: is empty: give it a value, or leave the key out" in refusal(file, text)


def test_policy_with_nothing_below_it_is_refused(file: Path):
    """Without a policy tools run at once; the author of the line wants a policy."""
    said = refusal(file, "channels:\n  a: {platform: console, policy: }\n")
    assert "channels.a.policy: policy has nothing below it: write `policy: {}`, or leave it" in said


MANY = "client_id: '${T}', client_secret: '${T}'"
NO_WORKSPACE = "names no workspace, and the app is in many: write it as T0123ABCD/"


@pytest.mark.parametrize(
    ("keys", "place", "problem"),
    [
        (f"{MANY}, access: {{block: [T01/U1, U2]}}", "access.block.1", f"{NO_WORKSPACE}U2"),
        (f"{MANY}, access: {{allow: [U1]}}", "access.allow.0", f"{NO_WORKSPACE}U1"),
        (f"{MANY}, access: {{chats: [C1]}}", "access.chats.0", f"{NO_WORKSPACE}C1"),
        (
            f"{MANY}, access: {{roles: {{allowed: {{a: ['*']}}, users: {{U1: a}}}}}}",
            "access.roles.users.U1",
            f"{NO_WORKSPACE}U1",
        ),
        (
            f"{MANY}, escalate: {{after: 9, to: {{channel: a, chat: C1}}}}",
            "escalate.to.chat",
            f"{NO_WORKSPACE}C1",
        ),
        (
            "bot_token: '${T}', access: {block: [T01/U1]}",
            "access.block.0",
            "only an app with client_id has: write U1",
        ),
        (
            "bot_token: '${T}', access: {block: ['@ada']}",
            "access.block.0",
            "is not an id of Slack: write it as U0123ABCD",
        ),
        (
            f"{MANY}, access: {{block: [T0123ABCD]}}",
            "access.block.0",
            "is not an id of Slack: write it as T0123ABCD/U0123ABCD or T0123ABCD/C0456EFGH",
        ),
        (
            "bot_token: '${T}', access: {block: [T0123ABCD]}",
            "access.block.0",
            "is not an id of Slack: write it as U0123ABCD or C0456EFGH",
        ),
    ],
)
def test_id_that_can_never_match_is_refused(file: Path, keys: str, place: str, problem: str):
    """A blocked person would be let in, and an alarm would reach no chat."""
    said = refusal(
        file,
        f"channels:\n  a: {{platform: slack, signing_secret: '${{T}}', {keys}}}\n",
        T="hush-hush",
    )
    assert problem in said
    assert f"channels.a.{place}" in said


WHATSAPP = "platform: whatsapp, account_sid: AC0123456789abcdef0123456789abcdef, from: 'whatsapp:+14155238886'"
TELEGRAM = "platform: telegram, token: '${T}', polling: true"


@pytest.mark.parametrize(
    ("keys", "person", "problem"),
    [
        (
            f"{WHATSAPP}, auth_token: '${{T}}'",
            "4915100000042",
            "write it as +4915112345678 or DE.1A2B3C",
        ),
        (
            f"{WHATSAPP}, auth_token: '${{T}}'",
            "0151 1234567",
            "is neither a phone number nor an id of WhatsApp",
        ),
        (TELEGRAM, "@ada", "is not an id of Telegram: write the number that /whoami prints"),
    ],
)
def test_person_that_is_named_by_no_id_is_refused(file: Path, keys: str, person: str, problem: str):
    """Webhooks name an id, and of a person who hides the number no digits without a +."""
    text = f"channels:\n  a: {{{keys}, access: {{block: ['{person}']}}}}\n"
    assert problem in refusal(file, text, T="123:hush-hush")


@pytest.mark.parametrize(
    ("keys", "people"),
    [
        (
            f"{WHATSAPP}, auth_token: '${{T}}'",
            "'+4915100000042', 'whatsapp:+49151', DE.1A2B, 'WhatsApp:de.ent.1a'",
        ),
        (TELEGRAM, "'5123456789', '-1002000000001'"),
        ("platform: console", "ana, 'any name'"),
    ],
)
def test_ids_of_each_platform_are_accepted(file: Path, keys: str, people: str):
    """As /whoami prints them, and in the spellings that access rules know."""
    file.write_text(f"channels:\n  a: {{{keys}, access: {{block: [{people}]}}}}\n")
    assert load_settings(file, {"T": "123:hush-hush"}).channels["a"].access.block


def test_secrets_are_not_in_the_repr(file: Path):
    """Settings may be printed."""
    file.write_text(
        "redis_url: redis://:${SECRET}@host\n"
        "channels:\n  a: {platform: telegram, token: '${SECRET}', secret_token: '${SECRET}'}\n"
    )
    settings = load_settings(file, {"SECRET": SECRET})
    assert SECRET in settings.redis_url
    assert SECRET not in repr(settings) + str(settings)


def test_references_are_read_from_environment_default_and_file(file: Path):
    """These are three ways to keep a value out of the file. File paths are relative to it."""
    (file.parent / "title").write_text("from file\n")
    file.write_text(
        "public_url: ${URL}\nagent: {system_prompt: '${NOPE:-a default}'}\n"
        "channels:\n  a: {platform: console, password: '${WORD}', title: '${file:title}'}\n"
    )
    settings = load_settings(file, {"URL": "https://bots.example.com/", "WORD": "p"})
    assert settings.public_url == "https://bots.example.com"
    assert settings.agent.system_prompt == "a default"
    assert settings.channels["a"].model_dump()["title"] == "from file"


@pytest.mark.parametrize("name", sorted(ConsoleSettings.reserved_names))
def test_reserved_names_of_consoles_are_free_for_other_channels(file: Path, name: str):
    """Only a console has pages below /console, which its name must not hide. `events` is a usual name elsewhere."""
    file.write_text(f"channels:\n  {name}: {{platform: console}}\n")
    with pytest.raises(ConfigError, match=name):
        load_settings(file, {})
    file.write_text(
        f"channels:\n  {name}: {{platform: slack, bot_token: ${{SECRET}}, signing_secret: ${{SECRET}}}}\n"
    )
    assert list(load_settings(file, {"SECRET": SECRET}).channels) == [name]


def test_seconds_may_come_from_the_environment(file: Path):
    """The value of a reference is text; a number in it counts as a number."""
    file.write_text("channels:\n  a: {platform: console, confirm_ttl: ${TTL:-60}}\n")
    assert load_settings(file, {}).channels["a"].confirm_ttl == 60
    assert load_settings(file, {"TTL": "1.5"}).channels["a"].confirm_ttl == 1.5


@pytest.mark.parametrize("empty", ["", "''", "${NOPE:-}"])
def test_empty_url_counts_as_missing(file: Path, empty: str):
    """Then there is no public URL, the bundled Redis, and the vendor's own server."""
    slack = (
        f"platform: slack, bot_token: ${{SECRET}}, signing_secret: ${{SECRET}}, api_url: {empty}"
    )
    file.write_text(f"public_url: {empty}\nredis_url: {empty}\nchannels:\n  a: {{{slack}}}\n")
    settings = load_settings(file, {"SECRET": SECRET})
    assert (settings.public_url, settings.redis_url) == ("", "")
    assert settings.channels["a"].model_dump()["api_url"] is None


def test_configuration_comes_from_the_environment_or_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """All entry points use the same rule. An empty variable counts as missing, and no other file is used."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SAYSO_CONFIG", "my.yaml")
    assert default_config() == Path("my.yaml")
    monkeypatch.setenv("SAYSO_CONFIG", "")
    with pytest.raises(
        ConfigError, match=r"there is no sayso\.yaml in .*: .* write one with `sayso init`"
    ):
        default_config()
    Path("sayso.yaml").touch()
    assert default_config() == Path("sayso.yaml")
    assert DEMO.is_file()


def test_empty_secret_is_refused_everywhere(file: Path):
    """An empty variable, or a key without a value, would open the bot to everyone."""
    file.write_text(
        "agent: {api_key: ${WORD}}\n"
        "channels:\n"
        "  a: {platform: console, password: ${WORD}}\n"
        "  b: {platform: console, password: ${WORD:-}}\n"
        "  c: {platform: console, password: }\n"
        "  d: {platform: console, password: '${file:word}',\n"
        "      selector: {embedding: {base_url: 'http://x', api_key: ${WORD}}}}\n"
    )
    (file.parent / "word").write_text(" \n")
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {"WORD": ""})
    told = [problem.removeprefix(f"{file}:") for problem in refused.value.problems]
    assert [problem.split(":")[0] for problem in told] == ["1", "3", "4", "5", "6", "7"]
    assert all("is empty: give it a value" in problem for problem in told)


@pytest.mark.parametrize(
    "address",
    ["https://bots.example.com", "http://192.168.1.4:8000", "https://localhost.evil.example"],
)
def test_a_console_without_a_password_is_refused_with_a_public_url(file: Path, address: str):
    """Behind a proxy without headers every client looks like this machine."""
    file.write_text(f"public_url: {address}\nchannels:\n  a: {{platform: console}}\n")
    with pytest.raises(
        ConfigError, match=r":3:3: channels.a: this console has no password, .* write `password: \$"
    ):
        load_settings(file, {})


@pytest.mark.parametrize(
    "address",
    ["http://localhost:9", "http://127.0.0.1:9", "http://[::1]:9", "http://bot.localhost"],
)
def test_a_console_without_a_password_may_be_on_this_machine(file: Path, address: str):
    """No other machine reaches it there."""
    file.write_text(f"public_url: {address}\nchannels:\n  a: {{platform: console}}\n")
    assert load_settings(file, {}).public_url == address


@pytest.mark.parametrize(
    ("yaml", "words"),
    [
        ("memery: {}", "memery: unknown key: remove it"),  # `memory` is a key of another section
        ("agent: {memery: 1}", "agent.memery: unknown key: did you mean 'memory'?"),
        ("limit: {}", "limit: unknown key: did you mean 'limits'?"),
        ("limits: {wating: 1}", "limits.wating: unknown key: did you mean 'waiting'?"),
        (
            "tools: [{openapi: a.json, inclde: [b]}]",
            "tools.0.inclde: unknown key: did you mean 'include'?",
        ),
        ("tools: [{mcp: {comand: b}}]", "tools.0.mcp.comand: unknown key: did you mean 'command'?"),
        (
            "agent: {fallback: [{modell: 'openai:x'}]}",
            "agent.fallback.0.modell: unknown key: did you mean 'model'?",
        ),
    ],
)
def test_a_wrong_key_is_compared_with_those_of_its_own_section(file: Path, yaml: str, words: str):
    """A key of another section is not suggested."""
    file.write_text(f"{yaml}\nchannels: {{a: {{platform: console}}}}\n")
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {})
    assert [
        problem.partition(": ")[2] for problem in refused.value.problems if "unknown key" in problem
    ] == [words]


def test_a_wrong_key_of_a_channel_is_compared_with_those_of_its_platform(file: Path):
    """A key of another platform is not suggested either."""
    file.write_text("channels: {a: {platform: console, bot_tokn: x, pasword: y, polices: {}}}\n")
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {})
    said = [problem.rpartition(": ")[2] for problem in refused.value.problems]
    assert said == ["remove it", "did you mean 'password'?", "did you mean 'policy'?"]


def test_all_mistakes_are_reported_at_once(file: Path):
    """They are a secret in clear, a missing variable and a repeated key, in the order of the file."""
    file.write_text(
        "agent: {model: ${MODEL}}\n"
        "limits: {waiting: many}\n"
        "channels:\n"
        "  a: {platform: telegram, token: 123:secret, secret_token: ${TOKEN}, confirm_ttl: soon, nope: 1}\n"
        "  b: {platform: console, platform: console, rooms: 2}\n"
    )
    with pytest.raises(ConfigError) as refused:
        load_settings(file, {})
    problems = [problem.removeprefix(f"{file}:") for problem in refused.value.problems]
    assert [problem.split(":")[0] for problem in problems] == [
        "1",
        "2",
        "4",
        "4",
        "4",
        "4",
        "5",
        "5",
    ]
    told = "\n".join(problems)
    for words in (
        "MODEL is not set", "limits.waiting: must be a whole number", "token: a secret in clear", "TOKEN is not set",
        "confirm_ttl: must be a number", "nope: unknown key", "platform: written twice", "rooms: unknown key",
    ):  # fmt: skip
        assert words in told
    assert "secret" not in told.replace("a secret in clear", "").replace("secret_token", "")


def test_the_terminal_needs_only_the_settings_of_its_channel(file: Path):
    """Other channels may lack secrets or be wrong; the terminal needs no secrets of the platform."""
    file.write_text(
        "agent: {model: ${MODEL:-offline}}\n"
        "channels:\n"
        "  wa: {platform: whatsapp, account_sid: ${SID}, auth_token: ${AUTH}, from: ${FROM}}\n"
        "  tg: {platform: telegram, token: ${TOKEN}, secret_token: ${SECRET}, confirm_ttl: 7,\n"
        "       escalate: {after: [yes], to: {channel: wa, chat: c}}}\n"
    )
    assert list(load_for_terminal(file, "tg", {}).channels) == ["tg"]
    assert load_for_terminal(file, "tg", {}).channels["tg"].confirm_ttl == 7
    with pytest.raises(
        ConfigError, match=r"no channel 'tgx' in .*; did you mean 'tg'\? known: wa, tg"
    ):
        load_for_terminal(file, "tgx", {})
    with pytest.raises(ConfigError, match="SID is not set") as refused:
        load_for_terminal(file, None, {})
    assert not re.search("TOKEN|AUTH", str(refused.value))


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("channels: {}\n", "channels: is empty: add one"),
        ("channels:\n  web: [platform]\n", "channels.web: .*it is a list"),
        ("channels:\n  web:\n", "channels.web: .*it is empty"),
        ("channels:\n  web: console\n", "channels.web: .*it is 'console'"),
    ],
)
def test_malformed_channels_are_reported_in_the_terminal(file: Path, text: str, problem: str):
    """`sayso chat` says what is wrong, as `sayso check` does."""
    file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        load_for_terminal(file, None, {})


def test_files_of_tools_are_found_beside_the_configuration(
    file: Path, monkeypatch: pytest.MonkeyPatch
):
    """The folder in which the command was started does not matter."""
    monkeypatch.chdir("/")
    file.write_text("tools: [./good.py]\nchannels: {a: {platform: console}}\n")
    assert [tool.name for tool in load_bot_tools(load_settings(file)).tools] == ["good"]


def test_every_problem_is_reported_at_once(file: Path):
    """One run shows everything to repair."""
    text = "tools: [bad.py, raises.py]\nchannels: {a: {platform: console}}\n"
    assert len(refusal(file, text).splitlines()) == 2


@pytest.mark.parametrize("content", [b"\x81\xff", b"ok: 1\n\xff"])
def test_binary_file_is_named(file: Path, content: bytes):
    """The error says that the file is no text."""
    file.write_bytes(content)
    with pytest.raises(
        ConfigError, match=rf"sayso\.yaml:{content.count(10) + 1}: not text in UTF-8"
    ):
        load_settings(file)


@pytest.mark.parametrize(
    ("given", "pace"),
    [("", (30, 1.0)), ("messages_per_second: 5,", (5, 1.0)), ("messages_per_second: 0,", (0, 0.0))],
)
def test_rate_limit_of_a_channel_can_be_set(tmp_path: Path, given: str, pace: tuple[float, float]):
    """platforms.md 1.4: an account's own limit replaces the platform's; 0 turns it off."""
    telegram = f"platform: telegram, {given} token: ${{SECRET}}, secret_token: ${{SECRET}}"
    file = tmp_path / "sayso.yaml"
    file.write_text(f"channels:\n  a: {{{telegram}}}\n")
    services = bootstrap(
        load_settings(file, {"SECRET": SECRET}), data=tmp_path, redis_url="redis://127.0.0.1:1"
    )
    found = services.processor.sender._rate_limit(services.channels["a"], Conversation("a", "1"))
    assert (found.per_second, found.chat_gap) == pace


@pytest.mark.parametrize("polling", ["", ", polling: false"])
def test_telegram_channel_without_a_secret_is_refused(file: Path, polling: str):
    """platforms.md 2.2: without a secret no webhook could be verified; a polling bot needs none."""
    text = "channels:\n  a: {platform: telegram, token: '${SECRET}'%s}\n"
    assert "secret_token is missing: give one for its webhooks, or write polling: true" in refusal(
        file, text % polling, SECRET=SECRET
    )
    file.write_text(text % ", polling: true")
    assert load_settings(file, {"SECRET": SECRET}).channels["a"].platform == "telegram"


@pytest.mark.parametrize("other", ["polling: true", "secret_token: '${SECRET}'"])
def test_bot_with_two_polling_channels_is_refused(file: Path, other: str):
    """platforms.md 2.4: Telegram returns an update once, so the other channel would wait for ever."""
    bots = [
        "a: {platform: telegram, token: '${A}', polling: true}",
        "b: {platform: telegram, token: '${B}', %s}",
    ]
    two = "channels:\n  " + "\n  ".join(bots)
    said = refusal(file, two % other, A="7000000001:one", B=" 7000000001:one", SECRET=SECRET)
    assert ":3:3: channels.b: has the same bot as a: give each channel a bot of its own" in said
    assert "7000000001" not in said
    assert load_settings(file, {"A": "7000000001:one", "B": "7000000002:two", "SECRET": SECRET})
    assert load_settings(file, {}, without_secrets=True)
