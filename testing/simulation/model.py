"""Run a module with RequestModel in place of the offline model:
a request of several steps is carried through.

python -m sayso.testing.simulation.model MODULE [ARGUMENT ...]
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall, without_notes
from sayso.agent.providers.base import Completion
from sayso.agent.providers.offline import OfflineProvider
from sayso.agent.providers.testing import check_history, latest_result

#: A request of several steps: the tool, and the bill of each step.
_REQUEST = re.compile(r"/each (\w+) (b\d+(?:, b\d+)*)$")
#: The line that ends a request: the bill of its first step, and what became of each step. `open`:
#: it was not proposed.
REST = r"Request (b\d+): (b\d+ [a-z]+(?:, b\d+ [a-z]+)*)\."
_REST = re.compile(REST)
#: A message about something else names its turn. A yes or a no does not.
_SAYS_SOMETHING = re.compile(r"\bt\d+\b")


class RequestModel(OfflineProvider):
    """Works through a request such as `/each settle b5, b6, b7`,
    and is the offline model for all else.

    It proposes one step after the other, and believes the results in its history and nothing else.
    A step that was not done ends the request, and so does a message about something else. In the
    end a line names each step: `Request b5: b5 done, b6 denied, b7 open.`

    A history that a vendor would refuse is refused with InvalidHistory.
    """

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next call, the line that ends the request, or the offline model's answer.

        Raise InvalidHistory.
        """
        answer, usage = await super().acomplete(**kwargs)
        messages: Sequence[Message] = kwargs["messages"]
        check_history(messages)
        calls, since = _open_request(messages)
        if not calls:
            return answer, usage

        outcomes = {
            call.parameters["bill"]: latest_result(call, since)[0] or "open" for call in calls
        }
        last = messages[-1]
        if last.role is Role.USER and _SAYS_SOMETHING.search(without_notes(last.content)):
            return Message(Role.ASSISTANT, f"{answer.content}\n\n{_rest_line(outcomes)}"), usage

        following = next(
            (call for call in calls if outcomes[call.parameters["bill"]] != "done"), None
        )
        if following is None or outcomes[following.parameters["bill"]] != "open":
            return Message(Role.ASSISTANT, _rest_line(outcomes)), usage
        call = replace(following, id=f"call_{len(messages)}")
        return Message(Role.ASSISTANT, tool_calls=(call,)), usage


def _open_request(messages: Sequence[Message]) -> tuple[list[ToolCall], Sequence[Message]]:
    """Return the calls of the latest request and the messages from it on;
    none if a line has ended it.
    """
    for at in reversed(range(len(messages))):
        message = messages[at]
        if message.role is Role.ASSISTANT and _REST.search(message.content):
            return [], ()
        request = message.role is Role.USER and _REQUEST.match(without_notes(message.content))
        if request:
            calls = [ToolCall(request[1], {"bill": bill}) for bill in request[2].split(", ")]
            return calls, messages[at:]
    return [], ()


def _rest_line(outcomes: Mapping[str, str]) -> str:
    steps = ", ".join(f"{bill} {outcome}" for bill, outcome in outcomes.items())
    return f"Request {next(iter(outcomes))}: {steps}."


def main(arguments: Sequence[str]) -> None:
    """Run a module with this model, as `python -m` would."""
    from sayso.config.wiring import models  # slow, and only a worker needs it

    vars(models)["OfflineProvider"] = RequestModel
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
