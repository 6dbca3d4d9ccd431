"""A model for simulations, which carries through a request of several steps.

    python -m sayso.testing.simulation.language_model MODULE [ARGUMENT ...]

runs a module with this model in place of the offline model.
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
#: The line that ends a request: the bill of its first step, and the outcome of each step. A step
#: that was never proposed has the outcome `open`.
REST = r"Request (b\d+): (b\d+ [a-z]+(?:, b\d+ [a-z]+)*)\."
_REST = re.compile(REST)
#: A message about something else contains the number of its turn, such as t9. A yes or a no does
#: not.
_SAYS_SOMETHING = re.compile(r"\bt\d+\b")


class RequestModel(OfflineProvider):
    """Works through a request such as `/each settle b5, b6, b7`; otherwise the offline model.

    It proposes one step after the other, and believes the results in its history and nothing else.
    A step that was not done ends the request, and so does a message about something else. In the
    end a line names each step: `Request b5: b5 done, b6 denied, b7 open.`

    A history that a vendor would refuse is refused with InvalidHistory.
    """

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Return the next call, the line that ends the request, or the offline model's answer.

        Raises InvalidHistory.
        """
        answer, usage = await super().acomplete(**kwargs)
        messages: Sequence[Message] = kwargs["messages"]
        check_history(messages)
        calls, since_request = _open_request(messages)
        if not calls:
            return answer, usage

        outcomes: dict[str, str] = {}
        for call in calls:
            outcome, _ = latest_result(call, since_request)
            outcomes[call.parameters["bill"]] = outcome or "open"
        rest = _rest_line(outcomes)

        last = messages[-1]
        if last.role is Role.USER and _SAYS_SOMETHING.search(without_notes(last.content)):
            return Message(Role.ASSISTANT, f"{answer.content}\n\n{rest}"), usage

        not_done = [call for call in calls if outcomes[call.parameters["bill"]] != "done"]
        if not not_done or outcomes[not_done[0].parameters["bill"]] != "open":
            return Message(Role.ASSISTANT, rest), usage
        call = replace(not_done[0], id=f"call_{len(messages)}")
        return Message(Role.ASSISTANT, tool_calls=(call,)), usage


def _open_request(messages: Sequence[Message]) -> tuple[list[ToolCall], Sequence[Message]]:
    """Return the calls of the latest request, and the messages from it on.

    Both are empty if there is no request, or if a line has ended it.
    """
    for at in reversed(range(len(messages))):
        message = messages[at]
        if message.role is Role.ASSISTANT and _REST.search(message.content):
            return [], ()
        if message.role is not Role.USER:
            continue
        request = _REQUEST.match(without_notes(message.content))
        if request:
            calls = [ToolCall(request[1], {"bill": bill}) for bill in request[2].split(", ")]
            return calls, messages[at:]
    return [], ()


def _rest_line(outcomes: Mapping[str, str]) -> str:
    """Return the line that ends a request, from the outcome of each step by its bill."""
    steps = ", ".join(f"{bill} {outcome}" for bill, outcome in outcomes.items())
    first_bill = next(iter(outcomes))
    return f"Request {first_bill}: {steps}."


def main(arguments: Sequence[str]) -> None:
    """Run a module with this model, as `python -m` would."""
    # The import is slow, and only a worker needs it.
    from sayso.config.wiring import models

    vars(models)["OfflineProvider"] = RequestModel
    sys.argv = list(arguments)
    runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[1:])
