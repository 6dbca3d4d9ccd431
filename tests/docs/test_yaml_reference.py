"""docs/reference/yaml.md and its JSON Schema: made from the settings, and true of everything that the docs show."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from jsonschema import Draft7Validator

from sayso.ops.cli.main import main
from tests.docs.pages import ROOT, generate

SCHEMA = json.loads((ROOT / "config" / "settings" / "sayso.schema.json").read_text())
VALIDATOR = Draft7Validator(SCHEMA)
#: A reference without quotes, which our loader takes between braces and other readers do not.
BARE_REFERENCE = re.compile(r"(?<=[\[ ])(\$\{[^}]*\})(?=[ ,}\]\n])")
BOT = "channels: {web: {platform: console}}\n"


class Yaml12(yaml.SafeLoader):
    """A loader for which only true and false are booleans, as YAML 1.2 says, and not `on`."""


Yaml12.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Yaml12.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("true|false", re.IGNORECASE), list("tTfF")
)


def read(text: str) -> Any:
    """Return a configuration as an editor reads it."""
    document = yaml.load(BARE_REFERENCE.sub(r'"\1"', text), Yaml12)
    return json.loads(json.dumps(document))  # keys are text


def problems(text: str, *, may_miss_keys: bool = False) -> list[str]:
    """Return the places at which the schema finds something wrong."""
    errors = VALIDATOR.iter_errors(read(text))
    return [
        error.json_path for error in errors if not (may_miss_keys and error.validator == "required")
    ]


def yaml_blocks() -> list[tuple[str, str]]:
    """Return all configurations that pages show, each with its place. Parts of one have a channel added."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    blocks = [
        (f"{page.name}-{number}", text)
        for page in pages
        for number, text in enumerate(
            re.findall(r"```yaml.*?\n(.*?)```", page.read_text(), re.DOTALL)
        )
    ]
    wholes = [(name, text if "channels:" in text else text + BOT) for name, text in blocks]
    return [(name, text) for name, text in wholes if set(read(text)) <= set(SCHEMA["properties"])]


def test_the_generated_files_are_up_to_date() -> None:
    """`make reference` writes them."""
    for path, text in generate().files().items():
        assert path.read_text() == text, f"{path.name}: run `make reference`"


def test_the_schema_is_one() -> None:
    """Of the draft that it names."""
    Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(("place", "text"), yaml_blocks())
def test_what_pages_show_fits_the_schema(place: str, text: str) -> None:
    """An editor marks nothing in it but keys that a part leaves out."""
    assert problems(text, may_miss_keys=True) == [], place


def test_the_demo_and_a_new_bot_fit_the_schema(tmp_path: Path) -> None:
    """The two configurations that Sayso brings. The new one names the schema in its first line."""
    CliRunner().invoke(main, ["init", str(tmp_path)])
    new = (tmp_path / "sayso.yaml").read_text()
    assert new.split("\n")[0] in (ROOT / "docs" / "reference" / "yaml.md").read_text()
    named = new.split("\n")[0].removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / named).read_text()) == SCHEMA
    for text in (new, (ROOT / "config" / "demo.yaml").read_text()):
        assert problems(text) == []


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("nmae: shop\n" + BOT, "$"),
        ("workers: {concurrency: many}\n" + BOT, "$.workers.concurrency"),
        ("channels: {web: {title: Bot}}", "$.channels.web"),
        ("channels: {web: {platform: console, token: x}}", "$.channels.web"),
        ("channels: {web: {platform: console, password: in-clear}}", "$.channels.web.password"),
        ("agent: {guards: {loop: never}}\n" + BOT, "$.agent.guards.loop"),
    ],
)
def test_mistakes_are_marked_at_their_place(text: str, place: str) -> None:
    """What the loader refuses, an editor marks."""
    assert problems(text) == [place]


def test_examples_and_references_fit_their_keys() -> None:
    """The example of each key is a value of it; so is a reference to a variable, in place of a number."""
    definitions = {"root": SCHEMA, **SCHEMA["$defs"]}
    fields = [
        (name, key, node)
        for name, each in definitions.items()
        for key, node in each["properties"].items()
    ]
    missing = [
        (name, key)
        for name, key, node in fields
        if not node.get("examples") or not node.get("description")
    ]
    assert missing == []
    for name, key, node in fields:
        (example,) = node["examples"]
        errors = Draft7Validator({**node, "$defs": SCHEMA["$defs"]}).iter_errors(example)
        assert [error.message for error in errors] == [], (name, key)
    assert problems("workers: {concurrency: ${CONCURRENCY}}\n" + BOT) == []
