"""Endings: when a turn ends early, the user reads a true statement in their own language."""

from __future__ import annotations

import pytest

from sayso.agent import (
    GuardrailsPipeline,
    LengthGuardrail,
    Message,
    Role,
    ToolPolicy,
    UsageStats,
    tool,
)
from sayso.agent.guards.coherence import CoherenceCheck
from sayso.agent.providers.base import ProviderError
from sayso.channels.i18n.texts import texts_for
from sayso.pending import stash_pending
from tests.contracts.rigs import CHAT, ENGLISH, Rig
from tests.workers.story import Script, Story, call

#: A vendor's error text, which only the operator may read.
VENDORS_WORDS = "401: no such key sk-12"
SPANISH = "¿Qué es esto y por qué? Muéstrame la factura, por favor."


class Away(Script):
    """A model that raises a vendor's error where its line is None."""

    async def acomplete(self, **request):
        """Return the next line or raise the error."""
        answer, usage = await super().acomplete(**request)
        if answer.tool_calls is None:
            raise ProviderError(VENDORS_WORDS)
        return answer, usage


class Checker:
    """Accepts every call; the worker may be killed before and after its answer."""

    def __init__(self, story: Story) -> None:
        self.story = story

    async def acomplete(self, **_request):
        """Answer that the call is coherent."""
        self.story.life.at("before check")
        self.story.life.at("after check")
        return Message(
            Role.ASSISTANT, '{"coherent": true, "explanation": "asked for"}'
        ), UsageStats()


def play(*lines, text: str = "go", **config) -> tuple[Story, str]:
    """Run a story to its end; return it with its last text."""
    story = Story(Rig(), list(lines), **config)
    story.model = Away(list(lines), story.life)
    story.hear(text)
    return story, story.work_on()


def test_model_lost_after_an_effect_is_not_reported_as_nothing_done():
    """The post was sent, and a user who reads that nothing happened would repeat it."""
    story, words = play((call("post", what="b"),), None)
    assert (story.begun["b"], words) == (1, ENGLISH.model_lost())


@pytest.mark.parametrize("kind", ["busy", "refused", "too_long", "cut_off"])
def test_model_failure_after_an_effect_gives_its_reason(kind):
    """The text says that a part may be done; the operator finds the cause at the delivery."""

    class Failing(Script):
        async def acomplete(self, **request):
            answer, usage = await super().acomplete(**request)
            if answer.tool_calls is None:
                error = ProviderError(VENDORS_WORDS, retryable=False)
                error.kind, error.status, error.model = kind, 429, "m-1"
                raise error
            return answer, usage

    lines = [(call("post", what="b"),), None]
    story = Story(Rig(), lines)
    story.model = Failing(lines, story.life)
    story.hear("go")
    words = story.work_on()
    assert words == ENGLISH.model_lost(kind)
    assert words != ENGLISH.model_lost()
    (fate,) = story.rig.deliveries.statuses(CHAT.id)[0]
    assert fate.reason == f"kind={kind} status=429 model=m-1"


def test_model_lost_before_any_effect_says_so():
    """Only a read-only tool had run."""
    _, words = play((call("look", what="a"),), None)
    assert words == ENGLISH.model_failed()


def test_vendor_error_is_not_in_the_history():
    """The model could otherwise repeat it to the user."""
    story, words = play(None)
    story.model.lines = ["better"]
    seen = []
    complete = story.model.acomplete

    async def acomplete(**request):
        seen.extend(message.content for message in request["messages"])
        return await complete(**request)

    story.model.acomplete = acomplete
    story.hear("what was that?")
    assert (story.work_on(), VENDORS_WORDS in f"{words}{seen}") == ("better", False)


@pytest.mark.parametrize(
    ("lines", "acted"), [([" \n"], False), ([(call("post", what="b"),), ""], True)]
)
def test_empty_model_answer_is_replaced_with_a_message(lines, acted):
    """All tokens went into reasoning, or a filter removed the text."""
    _, words = play(*lines)
    assert words == (ENGLISH.model_lost() if acted else ENGLISH.model_failed())


def test_file_alone_is_an_answer():
    """A file needs no text beside it."""
    story, words = play((call("draw", what="cat"),), "")
    assert (words, story.channel.sent[-1].reply.media.filename) == ("", "cat.png")


def test_step_limit_is_reported_in_the_users_language():
    """Every other ending is reported in that language too."""
    _, words = play(
        (call("look", what="a"),), (call("look", what="b"),), text=SPANISH, max_iterations=2
    )
    assert words == texts_for("es").too_many_steps()


@pytest.mark.parametrize("step", ["before check", "after check"])
@pytest.mark.parametrize("calls", ["post", "post wait"])
def test_call_that_was_only_being_checked_is_not_unclear(step, calls):
    """The worker was killed during the coherence check, so the call had certainly not started."""
    story = Story(Rig(), [tuple(call("post", what=what) for what in calls.split()), "all done"])
    story._config = story._config.__class__(
        max_retries=0,
        coherence=CoherenceCheck(provider=Checker(story), model="cheap"),
    )
    assert story.killed_at(step) == "all done"
    assert set(story.begun.values()) == {1}


def test_output_guardrails_leave_previews_and_outcomes_alone():
    """The user agrees to the exact preview and reads the exact outcome."""
    guardrails = GuardrailsPipeline(output=[LengthGuardrail(max_chars=1)])
    story, question = play((call("delete", what="x"),), guardrails=guardrails)
    assert question.startswith("Delete x")
    story.hear("yes")
    assert (story.work_on(), story.begun["x"]) == ("delete x ok", 1)


def test_terminal_result_is_sent_beside_a_question():
    """Another tool proposed an action and did not end the run. The result is a separate message, because the
    question is edited once it is decided.
    """

    @tool
    def prepare() -> str:
        """Prepare a payment."""
        stash_pending(kind="payment", preview="Pay 5", args={"cents": 500})
        return "asked"

    story = Story(
        Rig(),
        [(call("prepare"), call("show", what="x"))],
        tool_policy=ToolPolicy(allow=["*"]),
    )
    story.tools.append(prepare)
    story.hear()
    assert story.work_on().startswith("Pay 5")
    assert story.channel.texts[-2] == "show x ok"
