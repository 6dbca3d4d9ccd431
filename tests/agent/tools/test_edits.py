"""Editable arguments: which fields a form has, and what a change of them becomes."""

from __future__ import annotations

import asyncio
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from sayso.agent import Tool, ToolPolicy, tool
from sayso.agent.config import AgentConfig
from sayso.agent.guards.policy import editable_names
from sayso.agent.run.edited_call import EditedCall, EditRefused, edited_call
from sayso.agent.tools.edits import edit_fields
from sayso.agent.tools.errors import ToolError, ToolValidationError
from sayso.channels.edit_form import FormField
from sayso.pending import stash_pending


class Size(Enum):
    """Values of a type of its own."""

    SMALL = "small"
    LARGE = "large"


@tool(requires_approval=True, editable=["kg"], preview="Order {kg} kg of {item}")
def order(
    item: str,
    kg: Annotated[int, Field(ge=1, lt=100, description="How much")],
    tags: list[str] | None = None,
):
    """Order goods."""


def field_of(hint: Any, value: Any = None, **default: Any) -> FormField:
    """Return the field for an argument with this type hint."""

    def ask(value): ...

    ask.__annotations__ = {"value": hint}
    if default:
        ask.__defaults__ = (default["default"],)
    asking = Tool.from_function(ask, description="Ask")
    (entry,) = asking.edit_fields(["value"], {"value": value})
    return FormField.from_dict(entry)


@pytest.mark.parametrize(
    ("hint", "kind"),
    [
        (str, "text"), (int, "integer"), (float, "number"), (Decimal, "number"), (bool, "boolean"), (date, "date"),
        (Literal["a", "b"], "choice"), (Literal[1, 2], "choice"), (Size, "choice"), (list[str], "lines"),
    ],
)  # fmt: skip
def test_each_type_has_its_kind_of_field(hint, kind):
    """A platform shows the field by its kind."""
    assert field_of(hint).type == kind
    assert field_of(hint | None if hint is not Size else hint, default=None).required is False


def test_field_has_what_a_form_shows():
    """The label, the description, the bounds and the present value."""
    (entry,) = order.edit_fields(order.editable, {"item": "apples", "kg": 5})
    field = FormField.from_dict(entry)
    assert (field.name, field.label, field.description) == ("kg", "Kg", "How much")
    assert (field.minimum, field.maximum, field.value, field.required) == (1, 99, 5, True)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            {"editable": ["weight"]},
            r"editable names \['weight'\]; a model fills \['count', 'shop', 'where'\]",
        ),
        ({"editable": ["where"]}, r"editable \['where'\] fit in no form"),
        ({"editable": ["shop"], "injected_kwargs": {"shop": 1}}, r"editable names \['shop'\]"),
        ({"editable": ["count"], "proposes": True}, "its own code asks for a confirmation"),
    ],
)
def test_argument_that_no_person_could_change_is_refused_at_the_definition(options, problem):
    """A typo, an object, an injected argument, and a tool that asks by itself."""

    def buy(count: int, where: dict[str, int], shop: int = 0): ...

    with pytest.raises(ToolValidationError, match=problem):
        Tool.from_function(buy, description="Buy", **options)


def test_tool_whose_code_asks_has_no_editable_arguments_by_policy_either():
    """The arguments of its action are not those of the call."""

    @tool
    def ask(kg: int):
        """Ask."""
        stash_pending(kind="x", preview=f"{kg}")

    assert editable_names(ask, ToolPolicy(editable={"*": ["kg"]})) == ()


def test_first_pattern_of_the_policy_counts_in_place_of_the_tool():
    """An empty list takes back what the tool allows. A pattern is read exactly as written."""
    assert editable_names(order, ToolPolicy(editable={"ord*": [], "*": ["item"]})) == ()
    assert editable_names(order, ToolPolicy(editable={"ORDER": ["item"]})) == ("kg",)


@pytest.mark.parametrize("editable", [{"order": "kg"}, ["kg"], {"order": [1]}])
def test_editable_of_another_form_is_refused(editable):
    """A text would be read as a list of letters."""
    with pytest.raises(ValueError, match="editable="):
        ToolPolicy(editable=editable)


def edited(*args: Any, **options: Any) -> EditedCall:
    """Return a changed call."""
    return asyncio.run(edited_call(*args, **options))


CALL = {"item": "apples", "kg": 5}


@pytest.mark.parametrize(
    ("changes", "config", "kind"),
    [
        ({"item": "gold"}, AgentConfig(), "not_editable"),
        ({"price": 1}, AgentConfig(), "not_editable"),
        ({"kg": 100}, AgentConfig(), "invalid"),
        ({"kg": "much"}, AgentConfig(), "invalid"),
        ({"kg": None}, AgentConfig(), "invalid"),
        ({"kg": 2}, AgentConfig(tool_policy=ToolPolicy(deny=["order"])), "denied"),
        ({"kg": 2}, AgentConfig(tool_policy=ToolPolicy(editable={"order": []})), "not_editable"),
    ],
)
def test_change_is_judged_like_a_new_call(changes, config, kind):
    """By the list of editable arguments, the schema and the policy."""
    with pytest.raises(EditRefused) as caught:
        edited(order, CALL, changes, config)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"to": "b", "total": -1, "tag": "x", "tags": ["y"]}, ("total",)),
        ({"to": "b", "total": 1, "tag": "x", "tags": ["y", "long"]}, ("tags",)),
        ({"to": "b", "total": -1, "tag": "x", "tags": ["long"]}, ("total", "tags")),
    ],
)
def test_only_the_arguments_at_fault_are_named(changes, names):
    """The person reads which field to change, also if one name is a part of another."""
    text = {"type": "string", "maxLength": 3}
    total = {"type": "integer", "minimum": 0}
    tags = {"type": "array", "items": text}
    properties = {"to": text, "total": total, "tag": text, "tags": tags}
    schema = {"type": "object", "properties": properties}
    paying = Tool("pay", "Pay", schema, lambda **_: "", editable=list(properties))
    with pytest.raises(EditRefused) as caught:
        edited(paying, {}, changes, AgentConfig())
    assert (caught.value.kind, caught.value.names) == ("invalid", names)


def test_question_limits_what_can_be_changed():
    """What it did not offer stays, although the tool allows it by now."""
    with pytest.raises(EditRefused, match=r"\['kg'\] cannot be changed; editable of 'order': \[\]"):
        edited(order, CALL, {"kg": 2}, AgentConfig(), sealed=["note"])


def test_preview_that_refuses_the_new_values_is_told():
    """It may find nothing to ask, or raise."""

    def refuse(kg: int) -> str:
        raise ToolError("sold out")

    def sell(kg: int): ...

    selling = Tool.from_function(sell, description="Sell", preview=refuse, editable=["kg"])
    with pytest.raises(EditRefused) as caught:
        edited(selling, {"kg": 1}, {"kg": 2}, AgentConfig())
    assert (caught.value.kind, caught.value.result.message) == ("refused", "sold out")


def test_form_is_no_longer_than_a_record_may_be():
    """Fields beyond the limit are left out, the first ones stay."""
    names = [f"note_{number}" for number in range(40)]
    schema = {"type": "object", "properties": {name: {"type": "string"} for name in names}}
    noting = Tool("noting", "Note", schema, lambda **_: "ok")
    assert [entry["name"] for entry in noting.edit_fields(names, {})] == names[:30]
    long = dict.fromkeys(names, "x" * 3000)
    assert [entry["name"] for entry in noting.edit_fields(names, long)] == names[:10]


@pytest.mark.parametrize(
    ("schema", "is_required"),
    [
        ({"anyOf": [{"type": "integer"}]}, True),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, False),
    ],
)
def test_only_a_value_that_may_be_null_can_be_left_empty(schema, is_required):
    """A union of one type, as some generators of schemas write it, has no null."""
    parameters = {"properties": {"kg": schema}, "required": ["kg"]}
    (entry,) = edit_fields(parameters, ["kg"], {"kg": 5})
    assert entry.get("required", True) is is_required


def test_tool_of_a_json_schema_is_changed_by_the_policy():
    """Such as one of an MCP server, whose author knows nothing of Sayso."""
    schema = {
        "type": "object",
        "properties": {
            "kg": {"type": "integer", "maximum": 9},
            "at": {"type": ["string", "null"], "format": "date"},
        },
        "required": ["kg"],
    }
    remote = Tool("remote_order", "Order", schema, lambda **_: "ok")
    config = AgentConfig(tool_policy=ToolPolicy(editable={"remote_*": ["kg", "at"]}))
    fields = remote.edit_fields(editable_names(remote, config.tool_policy), {"kg": 5})
    assert [(entry["name"], entry["type"]) for entry in fields] == [
        ("kg", "integer"),
        ("at", "date"),
    ]
    assert edited(remote, {"kg": 5, "at": "2026-12-31"}, {"kg": 2, "at": None}, config).args == {
        "kg": 2
    }
    with pytest.raises(EditRefused, match="maximum"):
        edited(remote, {"kg": 5}, {"kg": 10}, config)


def test_changed_call_has_its_own_preview():
    """The person agrees to exactly these words."""
    call = edited(order, CALL, {"kg": 2}, AgentConfig())
    assert (call.preview, call.args["kg"], call.args["item"]) == (
        "Order 2 kg of apples",
        2,
        "apples",
    )
