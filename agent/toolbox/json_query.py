"""JsonQuery: what a JMESPath expression finds in a JSON text; what that comes to is counted while it is made."""

from __future__ import annotations

import json
from typing import Any

from sayso.agent.toolbox.listing import listed

#: Characters of the longest expression.
MAX_QUERY_CHARS = 300
#: Steps and values that one expression may come to.
MAX_WORK = 2_000_000
#: Characters of the longest answer.
MAX_ANSWER_CHARS = 10_000


def searched(text: str, expression: str) -> str:
    """What the expression finds in a JSON text, as JSON. Raises ValueError, which says what the text holds."""
    import jmespath
    from jmespath.exceptions import JMESPathError

    data = _document(text)
    try:
        found = _bounded_visitor().visit(jmespath.compile(expression).parsed, data)
        answer = json.dumps(found, ensure_ascii=False)
    except (JMESPathError, TypeError, ValueError, AttributeError, ArithmeticError) as exc:
        raise ValueError(f"{expression!r} does not work here: {_brief(exc)}. {_shape(data)}") from exc
    except RecursionError as exc:
        raise ValueError(f"{expression!r} or the JSON is nested too deeply: query a part of it") from exc
    if found is None:
        return f"null: nothing is there. {_shape(data)}"
    if len(answer) > MAX_ANSWER_CHARS:
        return f"{answer[:MAX_ANSWER_CHARS]}\n... cut off: {len(answer)} characters in all; ask for less, such as [:10]"
    return answer


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except RecursionError as exc:
        raise ValueError("the JSON is nested too deeply") from exc
    except ValueError as exc:
        raise ValueError(f"that is no JSON: {exc}") from exc


def _brief(exc: Exception) -> str:
    return " ".join(str(exc).split())[:200]


def _shape(data: Any) -> str:
    """What the document is, so that the next expression fits."""
    if isinstance(data, dict):
        return f"The JSON is an object with the keys {listed(list(data))}."
    if isinstance(data, list):
        return f"The JSON is a list of {len(data)}" + (
            f"; the first: {_shape(data[0])}" if data and isinstance(data[0], dict) else "."
        )
    return f"The JSON is {str(data)[:60]!r}."


def _bounded_visitor() -> Any:
    """A JMESPath interpreter that counts: `[@,@]|[@,@]|...` doubles its value with every step."""
    from jmespath.visitor import TreeInterpreter

    class Bounded(TreeInterpreter):  # type: ignore[misc]  # it has no types
        left = MAX_WORK

        def visit(self, node: Any, *args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            value = super().visit(node, *args, **kwargs)
            if node["type"] in _GROWING:
                self.left = _after_weighing(value, self.left)
            if self.left < 0:
                raise ValueError(f"it comes to more than {MAX_WORK} steps and values, ask for less")
            return value

    return Bounded()


#: The expressions whose value may be larger than what it is made of.
_GROWING = frozenset({"multi_select_list", "multi_select_dict", "function_expression", "literal"})


def _after_weighing(value: Any, left: int) -> int:
    """What is left of the work once every value in it, and every character of text, is counted; stops below zero."""
    stack = [value]
    while stack and left >= 0:
        part = stack.pop()
        left -= 1
        if isinstance(part, str):
            left -= len(part) // 10
        elif isinstance(part, dict):
            stack.extend(part.values())
        elif isinstance(part, list):
            stack.extend(part)
    return left
