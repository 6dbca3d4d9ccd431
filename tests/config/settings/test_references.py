"""References between { } and [ ]: they need no quotes, are read correctly, and keep their line and column."""

from __future__ import annotations

from pathlib import Path

import pytest

from sayso.channels.console.settings import ConsoleSettings
from sayso.channels.whatsapp.settings import WhatsAppSettings
from sayso.config.settings.loader import ConfigError, load_settings

SECRETS = {
    "TWILIO_ACCOUNT_SID": "AC0",
    "TWILIO_AUTH_TOKEN": "t",
    "TELEGRAM_TOKEN": "1:a",
    "TELEGRAM_SECRET": "s",
    "SLACK_BOT_TOKEN": "xoxb-1",
    "SLACK_SIGNING_SECRET": "s",
    "CONSOLE_PASSWORD": "p",
}
CONTRACT = Path(__file__).parents[1] / "contract.yaml"
#: Characters with which the loader covers references.
PRIVATE = "\U000f007b\U000f007d\U000f002c\U000f003a"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return the path of a configuration."""
    return tmp_path / "sayso.yaml"


def suggestions(file: Path, text: str, **environ: str) -> list[str]:
    """Return the values of a list between brackets in a channel."""
    file.write_text(
        f"channels:\n  web: {{platform: console, suggestions: {text}, title: ${{T:-t}}}}\n"
    )
    channel = load_settings(file, environ).channels["web"]
    assert isinstance(channel, ConsoleSettings)
    return channel.suggestions


def refusal(file: Path, text: str, **environ: str) -> str:
    """Return the error for a file with this text."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(file, environ)
    return str(caught.value)


def test_missing_secret_is_reported_with_line_and_column():
    """Each missing secret is named at its place, even behind other references on the line."""
    with pytest.raises(ConfigError) as caught:
        load_settings(
            CONTRACT, {name: value for name, value in SECRETS.items() if "SECRET" not in name}
        )
    assert caught.value.problems == [
        f"{CONTRACT}:8:59: secret_token: TELEGRAM_SECRET is not set: export TELEGRAM_SECRET=...",
        f"{CONTRACT}:9:61: signing_secret: SLACK_SIGNING_SECRET is not set: export SLACK_SIGNING_SECRET=...",
    ]


@pytest.mark.parametrize("token", ["prefix${T}", "${T:-a-default}", "prefix"])
def test_secret_in_clear_is_refused_without_quotes_too(file: Path, token: str):
    """A secret, or a part or default of one, does not belong into the file in any notation."""
    said = refusal(
        file,
        f"channels:\n  a: {{platform: telegram, token: {token}, secret_token: ${{T}}}}\n",
        T="t",
    )
    assert (
        said
        == f"{file}:2:27: token: a secret in clear: put it in the environment and write ${{TOKEN}}"
    )


def test_private_use_characters_are_not_misread(file: Path):
    """The characters that the loader uses internally are ordinary characters in a file."""
    text = f'[{PRIVATE}, {PRIVATE}${{A}}{PRIVATE * 3}, "${{A}}{PRIVATE}", "\\U000F007B\\U000F007B\\U000F007D\\U000F007D"]'
    assert suggestions(file, text, A="a") == [
        PRIVATE,
        f"{PRIVATE}a{PRIVATE * 3}",
        f"a{PRIVATE}",
        "\U000f007b" * 2 + "\U000f007d" * 2,
    ]


def test_quoted_text_keeps_its_own_rules(file: Path):
    """Escapes inside quotes are YAML's, even in a reference's default, and a brace in quotes is text."""
    text = """['${A:-it''s}', "${A:-\\x41}", 'a } b', "{", "x, ${A:-y}"]"""
    assert suggestions(file, text) == ["it's", "A", "a } b", "{", "x, y"]


def test_comments_are_no_references(file: Path):
    """A reference in a comment need not be set or valid."""
    assert suggestions(file, "[a, # ${NOPE} ${ ${NOPE:-\n b # }\n]") == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[${A}]", "a"),
        ("[${A}${B}${A}]", "aba"),
        ("[x${A}y]", "xay"),
        ("[one ${A} two ${B}]", "one a two b"),
        ("[one\n  two ${A}\n  ${B}]", "one two a b"),
        ("[${NOPE:-}]", ""),
        ("[${NOPE:-a, b: [c] # d?}]", "a, b: [c] # d?"),
        ("[don't ${A}]", "don't a"),
        ("[${file:word}]", "from file"),
    ],
)
def test_reference_needs_no_quotes(file: Path, text: str, value: str):
    """It may stand alone, in text, beside others, on several lines, with any default on one line."""
    (file.parent / "word").write_text("from file\n")
    assert suggestions(file, text, A="a", B="b") == [value]


def test_line_break_at_the_end_of_a_secret_is_no_part_of_it(file: Path):
    """Mounted secrets have one. No header could be sent with it."""
    file.write_text(
        "agent: {model: 'openai:m', api_key: '${KEY}'}\nchannels: {a: {platform: console}}\n"
    )
    key = load_settings(file, {"KEY": "abc\n"}).agent.api_key
    assert key is not None
    assert key.get_secret_value() == "abc"


@pytest.mark.parametrize(
    "url", ["https://bot:s3/cr3t@host", "bot:s3cr3t@host", "https://host/v1?key=s3cr3t"]
)
def test_refused_url_is_not_shown_with_a_secret(file: Path, url: str):
    """A password with a slash makes the URL malformed, so its owner reads it in an error."""
    says = refusal(file, f"agent: {{model: 'openai:m', base_url: '{url}'}}\n")
    assert "base_url" in says
    assert "cr3t" not in says


def test_key_is_not_substituted(file: Path):
    """A reference as a key is reported with its place, as outside braces."""
    assert refusal(file, "agent: {${A}: 1}\n", A="a").startswith(
        f"{file}:1:9: agent.${{A}}: unknown key"
    )


def test_mistake_behind_a_reference_keeps_its_column(file: Path):
    """A value may be longer or shorter than its reference; columns are those of the file."""
    text = "channels:\n  a: {platform: console, title: ${T}, titel: x}\n"
    assert f"{file}:2:39: channels.a.titel: unknown key" in refusal(
        file, text, T="a long title, longer than its name"
    )


@pytest.mark.parametrize("reference", ["${NO PE}", "${NOPE", "${}", "${NOPE:-a\n b}"])
def test_malformed_reference_is_reported_with_the_right_form(file: Path, reference: str):
    """Between braces the YAML parser fails first, and the error has the cure."""
    said = refusal(file, f"agent: {{model: {reference}, max_iterations: ${{M}}}}\n", M="1")
    assert said.startswith(f"{file}:1:17: not YAML: ")
    assert "write a reference as ${NAME} or ${NAME:-default}" in said


def test_the_contract_loads_as_printed():
    """It has all four platforms, between braces, without quotes."""
    settings = load_settings(CONTRACT, SECRETS)
    shop = settings.channels["shop-wa"]
    assert isinstance(shop, WhatsAppSettings)
    assert (shop.account_sid, shop.auth_token.get_secret_value()) == ("AC0", "t")
    assert (shop.api_url, shop.confirm_ttl) == ("http://127.0.0.1:9/twilio", 60)
    assert shop.policy is not None
    assert shop.policy.allow == ["find_*", "sales_*"]
    assert settings.redis_url == ""
    assert [channel.platform for channel in settings.channels.values()] == [
        "whatsapp",
        "telegram",
        "slack",
        "console",
    ]


def test_variable_wins_over_the_default():
    """One variable points all three platforms to a fake."""
    settings = load_settings(CONTRACT, {**SECRETS, "FAKE": "http://fake:1/"})
    urls = {getattr(channel, "api_url", None) for channel in settings.channels.values()}
    assert urls == {"http://fake:1", None}
