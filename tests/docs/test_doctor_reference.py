"""docs/reference/doctor.md: it has a section with cause and cure for each finding in the code, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from sayso.channels.setup import PAGE, CheckResult
from sayso.ops.checks.doctor import _RISK_IDS, no_replica
from tests.docs.pages import ROOT

TEXT = (ROOT / "docs" / PAGE).read_text()
SECTIONS = dict(re.findall(r"^### ([a-z0-9-]+)\n(.*?)(?=^#|\Z)", TEXT, re.MULTILINE | re.DOTALL))
FILES = [
    ROOT / "ops/checks/doctor.py",
    ROOT / "ops/checks/reach.py",
    ROOT / "ops/cli/doctor.py",
    *sorted((ROOT / "channels").glob("*/setup.py")),
    ROOT / "channels/slack/workspaces.py",
]


def found() -> Iterator[str]:
    """Yield the ids of all findings, as the calls that make them spell them."""
    for file in FILES:
        for call in (
            each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.Call)
        ):
            name = (
                call.func.attr
                if isinstance(call.func, ast.Attribute)
                else getattr(call.func, "id", "")
            )
            given = {each.arg: each.value for each in call.keywords}
            is_ok = (
                name == "CheckResult"
                and isinstance(call.args[1], ast.Constant)
                and call.args[1].value == "ok"
            )
            if name not in ("_warn", "_fail", "CheckResult") or is_ok:
                continue
            check = call.args[0]
            if isinstance(given.get("id"), ast.Constant):
                yield given["id"].value
            elif "id" not in given:
                assert isinstance(check, ast.Constant), f"{file}:{call.lineno} needs an id"
                yield CheckResult(check.value, "fail", "").id
    yield from (*_RISK_IDS.values(), "redis-settings")
    health = (ROOT / "config/wiring/wsgi.py").read_text()
    yield from re.findall(
        r'"((?:redis|workers|queue)-[a-z-]+|halt|spool|alert|disk)"(?=[:,)\]\n]| if)', health
    )


def test_every_finding_has_its_section() -> None:
    """The id that the doctor prints is the anchor of the section."""
    ids = set(found())
    assert len(ids) > 35
    assert sorted(ids - SECTIONS.keys()) == []


def test_every_section_belongs_to_a_finding() -> None:
    """No section of a removed finding is left."""
    assert sorted(SECTIONS.keys() - set(found())) == []


def test_every_section_says_cause_and_cure() -> None:
    """The cause comes first."""
    assert [
        name
        for name, text in SECTIONS.items()
        if not re.match(r"\n\*\*Cause\.\*\* .+\*\*Cure\.\*\*\s", text, re.DOTALL)
    ] == []


def test_printed_link_leads_to_the_section() -> None:
    """The anchor equals the heading: lower-case letters, digits and hyphens."""
    assert no_replica("db:6379").see == f"docs/{PAGE}#redis-no-replica"
    assert "see:  docs/reference/doctor.md#redis-no-replica" in str(no_replica("db:6379"))
