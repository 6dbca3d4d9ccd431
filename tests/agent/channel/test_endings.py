"""Endings on a channel: whatever ends a turn early, its person hears what is true, in their own language."""

from __future__ import annotations

import pytest

from sayso.agent import GuardrailsPipeline, LengthGuardrail, Message, Role, ToolPolicy, UsageStats, tool
from sayso.agent.providers.base import ProviderError
from sayso.channels.i18n.texts import texts_for
from sayso.pending import stash_pending
from tests.contracts.rigs import CHAT, ENGLISH, MemoryRig
from tests.workers.story import Script, Story, call

#: What nobody but the operator is to read.
VENDORS_WORDS = "401: no such key sk-12"
SPANISH = "¿Qué es esto y por qué? Muéstrame la factura, por favor."


class Away(Script):
    """A model that answers where its line is None with an error of its vendor's."""

    async def acomplete(self, **request):
        """The next line, or the error."""
        answer, usage = await super().acomplete(**request)
        if answer.tool_calls is None:
            raise ProviderError(VENDORS_WORDS)
        return answer, usage


class Checker:
    """Finds every call in order; its caller may die before and after."""

    def __init__(self, story: Story) -> None:
        self.story = story

    async def acomplete(self, **_request):
        """Yes."""
        self.story.life.at("before check")
        self.story.life.at("after check")
        return Message(Role.ASSISTANT, '{"coherent": true, "explanation": "asked for"}'), UsageStats()


def told(*lines, text: str = "go", **config) -> tuple[Story, str]:
    """A story that was told to its end, and its last words."""
    story = Story(MemoryRig(), list(lines), **config)
    story.model = Away(list(lines), story.life)
    story.hear(text)
    return story, story.work_on()


def test_model_that_goes_away_once_tools_have_acted_never_means_that_nothing_was_done():
    """The post is out; the person would order it again."""
    story, words = told((call("post", what="b"),), None)
    assert (story.begun["b"], words) == (1, ENGLISH.model_lost())


@pytest.mark.parametrize("kind", ["busy", "refused", "too_long", "cut_off"])
def test_model_that_fails_once_tools_have_acted_is_told_with_its_reason(kind):
    """Whatever it is, a part may be done; the operator finds the cause at the delivery."""

    class Failing(Script):
        async def acomplete(self, **request):
            answer, usage = await super().acomplete(**request)
            if answer.tool_calls is None:
                error = ProviderError(VENDORS_WORDS, retryable=False)
                error.kind, error.status, error.model = kind, 429, "m-1"
                raise error
            return answer, usage

    lines = [(call("post", what="b"),), None]
    story = Story(MemoryRig(), lines)
    story.model = Failing(lines, story.life)
    story.hear("go")
    words = story.work_on()
    assert words == ENGLISH.model_lost(kind)
    assert words != ENGLISH.model_lost()
    (fate,) = story.rig.deliveries.statuses(CHAT.id)[0]
    assert fate.reason == f"kind={kind} status=429 model=m-1"


def test_model_that_goes_away_before_anything_was_changed_says_so():
    """It has only looked."""
    _, words = told((call("look", what="a"),), None)
    assert words == ENGLISH.model_away()


def test_vendors_error_is_not_in_the_history():
    """The next answer could repeat it to the person."""
    story, words = told(None)
    story.model.lines = ["better"]
    seen = []
    complete = story.model.acomplete

    async def acomplete(**request):
        seen.extend(message.content for message in request["messages"])
        return await complete(**request)

    story.model.acomplete = acomplete
    story.hear("what was that?")
    assert (story.work_on(), VENDORS_WORDS in f"{words}{seen}") == ("better", False)


@pytest.mark.parametrize(("lines", "acted"), [([" \n"], False), ([(call("post", what="b"),), ""], True)])
def test_model_that_says_nothing_leaves_nobody_without_a_word(lines, acted):
    """Its tokens went into thinking, or a filter took them."""
    _, words = told(*lines)
    assert words == (ENGLISH.model_lost() if acted else ENGLISH.model_away())


def test_file_is_an_answer_without_words():
    """Nothing needs to be said beside it."""
    story, words = told((call("draw", what="cat"),), "")
    assert (words, story.channel.sent[-1].reply.media.filename) == ("", "cat.png")


def test_run_that_takes_too_many_steps_says_so_in_the_persons_language():
    """As every other ending does."""
    _, words = told((call("look", what="a"),), (call("look", what="b"),), text=SPANISH, max_iterations=2)
    assert words == texts_for("es").too_many_steps()


@pytest.mark.parametrize("step", ["before check", "after check"])
@pytest.mark.parametrize("calls", ["post", "post wait"])
def test_call_that_was_only_being_checked_is_not_unclear(step, calls):
    """Its worker died while a model was asked whether it fits: it has certainly not begun."""
    story = Story(MemoryRig(), [tuple(call("post", what=what) for what in calls.split()), "all done"])
    story._config = story._config.__class__(
        max_retries=0, coherence_check=True, coherence_provider=Checker(story), coherence_model="cheap"
    )
    assert story.killed_at(step) == "all done"
    assert set(story.begun.values()) == {1}


def test_preview_is_shown_as_it_is_whatever_the_output_guardrails_make_of_answers():
    """What a person agrees to is what would be done, and what became of it is told as it is."""
    guardrails = GuardrailsPipeline(output=[LengthGuardrail(max_chars=1)])
    story, question = told((call("delete", what="x"),), guardrails=guardrails)
    assert question.startswith("Delete x")
    story.hear("yes")
    assert (story.work_on(), story.begun["x"]) == ("delete x ok", 1)


def test_what_a_terminal_tool_says_is_not_lost_beside_a_question():
    """Another tool asked by itself, in words of its own, and ended nothing. They are a message of their own: the
    question is edited once it is decided.
    """

    @tool
    def prepare() -> str:
        """Prepare a payment."""
        stash_pending(kind="payment", preview="Pay 5", args={"cents": 500})
        return "asked"

    story = Story(MemoryRig(), [(call("prepare"), call("show", what="x"))], tool_policy=ToolPolicy(allow=["*"]))
    story.tools.append(prepare)
    story.hear()
    assert story.work_on().startswith("Pay 5")
    assert story.channel.texts[-2] == "show x ok"
