"""Selection: a channel's selector follows its YAML, and every mistake in it is reported with file, line and fix."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sayso.agent import AllOf, AnyOf, EmbeddingSelector, KeywordSelector, Message
from sayso.agent.messages import Role
from sayso.agent.toolsets.embedding import HttpEmbedder, NgramEmbedder
from sayso.agent.toolsets.selectors import Always, FailOpen
from sayso.config.settings.loader import ConfigError, load_settings
from sayso.config.wiring.agents import terminal_agent
from sayso.config.wiring.tools import build_selector
from sayso.ops.checks.describe import describe
from sayso.pending.call_context import ChannelRun, context_field

HEAD = (
    "tools: [sayso.examples.invoices]\nchannels:\n"
    "  web:\n    platform: console\n    tools: [find_*, delete_*, sales_*]\n"
)
KNOWN = "known: find_invoice, delete_invoice, sales_chart, sales_report"

#: The selector, and the error text after `sayso.yaml:6:`; @ stands for the path of the selector.
MISTAKES = {
    "keyword as text": ("{keyword: {find_invoice: find}}", "26@.keyword.find_invoice: must be a list"),
    "empty keyword": ("{keyword: {find_invoice: ['']}}", "41@.keyword.find_invoice.0: is empty"),
    "keyword's tool": (
        "{keyword: {find_invoise: [find]}}",
        f"26@: 'find_invoise' names no tool of this channel, did you mean 'find_invoice'?; {KNOWN}",
    ),
    "another channel's tool": ("{keyword: {export_invoices: [x]}}", "26@: 'export_invoices' names"),
    "key": ("{keywords: {}}", "16@.keywords: unknown key: did you mean 'keyword'?"),
    "bare embedding": ("{embedding: }", "5@: embedding has nothing below it: write `embedding: {}`"),
    "bare embedding in a list": ("[{embedding: }]", "16@.0: embedding has nothing below it: write `embedding: {}`"),
    "nothing": ("{}", "5@: choose one of keyword, roles, embedding, any, all, plugin;"),
    "no list": ("[]", "5@: is empty: add one"),
    "text": ("keyword", "5@: must be a section"),
    "two": ("{embedding: {}, roles: {allowed: {a: []}}}", "5@: choose one of keyword, roles,"),
    "no roles": ("{roles: {}}", "16@.roles.allowed: missing: add it"),
    "role's tools": ("{roles: {allowed: {a: '*'}}}", "34@.roles.allowed.a: must be a list"),
    "role's tool": ("{roles: {allowed: {a: ['*', drop_*]}}}", "43@: 'drop_*' names no tool of this"),
    "user's role": (
        "{roles: {allowed: {admin: ['*']}, users: {U1: amin}}}",
        "57@.roles.users.U1: names no role of allowed; known: admin (it is 'amin')",
    ),
    "default role": ("{roles: {allowed: {a: []}, default: b}}", "42@.roles.default: names no role"),
    "role twice": ("{roles: {allowed: {a: [], A: ['*']}}}", "24@.roles.allowed: a role is given"),
    "always and roles": ("{roles: {allowed: {a: []}}, always: [find_*]}", "5@: always would give"),
    "always around roles": (
        "{any: [[{roles: {allowed: {a: []}}}]], always: [find_*]}", "5@: always would give",
    ),
    "always what": ("{embedding: {}, always: [nope]}", "40@: 'nope' names no tool"),
    "no tools shown": ("{embedding: {top_k: 0}}", "28@.embedding.top_k: must be greater than or"),
    "model without server": ("{embedding: {model: m}}", "16@.embedding: model and api_key are for"),
    "server": ("{embedding: {base_url: x}}", "28@.embedding.base_url: is not a URL"),
    "server with a user": (
        "{embedding: {base_url: 'https://bot:pw@e.example'}}", "28@.embedding.base_url: holds a user",
    ),
    "key in clear": ("{embedding: {base_url: 'https://e.example', api_key: k}}", "59: api_key: a secret in clear"),
    "other's option": ("{embedding: {}, whole_words: true}", "5@: whole_words belongs to keyword"),
    "in a list": ("[{embedding: {}}, {keyword: {nope: [a]}}]", "44@.1: 'nope' names no tool"),
    "in any": ("{any: [{embedding: {}}, {embedding: {top_k: 0}}]}", "52@.any.1.embedding.top_k:"),
    "in all": ("{all: [{keyword: {nope: [a]}}]}", "33@.all.0: 'nope' names no tool"),
    "in a list in a list": ("[[{keyword: {nope: [a]}}]]", "28@.0.0: 'nope' names no tool"),
    "plugin": ("{plugin: nope}", "16@.plugin: no selector 'nope' is installed; known: embedding,"),
    "plugin's options": (
        "{plugin: embedding, options: {topk: 3}}", "35@.options: 'embedding' does not take them",
    ),
    "plugin's errors": ("{plugin: embedding, on_error: some}", "35@.on_error: must be 'none' or"),
}  # fmt: skip


def load(folder: Path, selector: str, rest: str = ""):
    """Return the settings of a channel with this selector."""
    file = folder / "sayso.yaml"
    file.write_text(f"{HEAD}    selector: {selector}\n{rest}")
    return load_settings(file, {"KEY": "s3cr3t"})


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_reported_with_its_place_and_fix(tmp_path, mistake):
    """The error comes before anything starts, and in `sayso check` too."""
    selector, words = MISTAKES[mistake]
    with pytest.raises(ConfigError) as caught:
        describe(load(tmp_path, selector))
    assert (
        "sayso.yaml:6:" + words.replace("@", ": channels.web.selector") in caught.value.problems[0]
    )


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (
            "{tool: delete_*, arg: invoice, pattern: x}",
            "'invoice' is not an argument of delete_invoice, did you mean 'inv",
        ),
        (
            "{tool: delete_*, args: x, pattern: x}",
            "deny_when.0.args: unknown key: did you mean 'arg'?",
        ),
        (
            "{tool: delete_*, arg: invoice_id, pattern: 5}",
            "deny_when.0.pattern: must be text: put it in quotes",
        ),
    ],
)
def test_rule_that_would_deny_nothing_is_refused(tmp_path, rule, words):
    """An argument that no tool has is a misspelling, and the rule would fail silently."""
    with pytest.raises(ConfigError, match=r"sayso\.yaml:7:") as caught:
        describe(load(tmp_path, "{embedding: {}}", f"    policy: {{deny_when: [{rule}]}}\n"))
    assert words in str(caught.value)


def test_argument_that_no_person_could_change_is_refused(tmp_path):
    """A misspelled name would leave the button out, without a word."""
    policy = "    policy: {editable: {delete_*: [invoice]}}\n"
    with pytest.raises(
        ConfigError,
        match="'invoice' is not an argument of delete_invoice, did you mean 'invoice_id'",
    ):
        describe(load(tmp_path, "{embedding: {}}", policy))


def test_rule_for_a_missing_tool_is_accepted(tmp_path):
    """An operator may write a rule before its tool exists."""
    rest = "    policy: {deny_when: [{tool: drop_*, arg: table, pattern: '*'}]}\n"
    assert "asks first" in str(describe(load(tmp_path, "{embedding: {}}", rest)))


def test_channel_without_a_selector_shows_all_tools(tmp_path):
    """`build_selector` returns None without a selector."""
    (tmp_path / "sayso.yaml").write_text(HEAD)
    settings = load_settings(tmp_path / "sayso.yaml", {})
    assert build_selector(settings, "web") is None
    assert "of these" not in str(describe(settings))


def test_roles_of_the_yaml_decide(tmp_path):
    """The role of the speaker's platform id decides, in the channel's real agent."""
    roles = (
        "{roles: {allowed: {admin: ['*'], viewer: [find_*]}, users: {U1: Admin}, default: viewer}}"
    )
    with terminal_agent(load(tmp_path, roles), data=tmp_path) as bot:
        assert (
            "Unknown tool" not in bot.ask_channel("U1", "/delete_invoice invoice_id=INV-1").content
        )
    settings = load(tmp_path, roles)
    assert shown(settings, "U1") == [
        "find_invoice",
        "delete_invoice",
        "sales_chart",
        "sales_report",
    ]
    assert shown(settings, "U2") == ["find_invoice"]
    assert str(describe(settings)).splitlines()[-1] == "  (of these its selector shows some)"


def shown(settings, user: str, text: str = "delete the invoice") -> list[str]:
    """Return the tools that the model sees for this user's text."""
    with (
        terminal_agent(settings, data=settings.origin.folder) as bot,
        context_field("run", ChannelRun(user, "web", "1", 60.0, "v")),
    ):
        chosen = asyncio.run(bot.agent.selector.select([Message(Role.USER, text)], bot.agent.tools))
    return [tool.name for tool in chosen]


def test_selectors_of_a_list_apply_in_sequence(tmp_path):
    """The role filters first, then the keywords of the text."""
    roles = "{roles: {allowed: {viewer: [find_*, sales_*]}, default: viewer}}"
    words = "{keyword: {find_invoice: [invoice], delete_invoice: [invoice]}, always: [sales_chart]}"
    settings = load(tmp_path, f"[{roles}, {words}]")
    assert shown(settings, "U1") == ["find_invoice", "sales_chart"]
    assert shown(load(tmp_path, f"{{any: [{roles}, {words}]}}"), "U1", "delete the invoice") == [
        "find_invoice", "delete_invoice", "sales_chart", "sales_report",
    ]  # fmt: skip


def test_every_kind_of_selector_is_built(tmp_path):
    """Each selector gets its options."""
    words = build_selector(
        load(tmp_path, "{keyword: {find_invoice: [find]}, whole_words: true}"), "web"
    )
    assert isinstance(words, KeywordSelector)
    assert words.whole_words
    offline = build_selector(load(tmp_path, "{embedding: {top_k: 3}}"), "web")
    assert isinstance(offline, EmbeddingSelector)
    assert (offline.top_k, type(offline.embedder)) == (3, NgramEmbedder)
    online = "{embedding: {model: m, base_url: 'https://e.example/v1/', api_key: '${KEY}'}}"
    asked = build_selector(load(tmp_path, online), "web").embedder
    assert isinstance(asked, HttpEmbedder)
    assert (asked.model, asked.base_url, asked._api_key) == ("m", "https://e.example/v1", "s3cr3t")
    open_ = build_selector(
        load(tmp_path, "{plugin: embedding, options: {top_k: 2}, on_error: all}"), "web"
    )
    assert isinstance(open_, FailOpen)
    assert isinstance(
        build_selector(load(tmp_path, "{any: [{embedding: {}}], always: [find_*]}"), "web"), Always
    )
    both = build_selector(load(tmp_path, "[{any: [{embedding: {}}]}, {plugin: embedding}]"), "web")
    assert [type(both), *map(type, both.selectors)] == [AllOf, AnyOf, EmbeddingSelector]


def test_key_of_an_embedding_server_is_in_no_repr(tmp_path):
    """The output of `sayso check` does not contain the key either."""
    settings = load(tmp_path, "{embedding: {base_url: 'https://e.example', api_key: '${KEY}'}}")
    assert (
        "s3cr3t"
        not in f"{settings!r}{describe(settings)}{build_selector(settings, 'web').embedder!r}"
    )
