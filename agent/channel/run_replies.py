"""RunReplies: what a person reads of a run of the agent."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sayso.agent.agent import Agent
from sayso.agent.channel.approval_questions import ApprovalQuestions
from sayso.agent.channel.context import TurnAnswer, TurnContext, paragraphs, text_change
from sayso.agent.channel.outcome_history import OutcomeHistory
from sayso.agent.channel.questions import Questions
from sayso.agent.channel.standing_yeses import CoveredCalls
from sayso.agent.channel.turn_files import TurnFiles
from sayso.agent.channel.value_changes import ChangeHandler
from sayso.agent.messages import Message, Role
from sayso.agent.result import AgentResult
from sayso.agent.tools.previews import literal
from sayso.agent.tools.proposal_draft import PreviewRefused
from sayso.agent.tools.result_texts import WITHOUT_VALUE, result_text
from sayso.agent.tools.screening import unfenced
from sayso.agent.tools.tool import Tool
from sayso.channels.i18n.invisible import shows_nothing
from sayso.channels.i18n.texts import Texts
from sayso.channels.markdown.literal import as_markdown
from sayso.channels.markdown.outcome_signs import without_signs
from sayso.channels.types import Reply
from sayso.pending.approval_rule import ApprovalRule
from sayso.pending.executors import Ambiguous, NotFound
from sayso.pending.plans import Proposal
from sayso.pending.turn_changes import TurnChange, TurnReply

#: Characters of a text about an earlier action that stand in a question, above its preview.
MAX_PREFACE_CHARS = 1000

#: How the typed results begin which say that there is nothing to ask for, as JSON.
_NO_TARGET = tuple(f'{{"kind": "{each.kind}"' for each in (NotFound, Ambiguous, PreviewRefused))
#: Reasons to end a run whose reply is the agent's own text.
_OWN_REPLY_REASONS = ("answer", "terminal")


class RunReplies:
    """Writes the replies to the runs of one channel. Lives as long as its agent.

    A run ends with a text, or with a proposal, whose question its person must answer. A proposal that
    a standing yes covers has no question: it is carried out in a turn that follows. Above the
    text or the question is what else they must know: the outcome of an earlier action (the
    *preface*), calls with an unknown outcome, and results that the model had no chance to report
    because the run ended with the question.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        questions: Questions,
        changes: ChangeHandler,
        files: TurnFiles,
        approvals: ApprovalQuestions,
        outcomes: OutcomeHistory,
        covered: CoveredCalls,
    ) -> None:
        self._agent = agent
        self._questions = questions
        self._changes = changes
        self._files = files
        self._approvals = approvals
        self._outcomes = outcomes
        self._covered = covered

    async def reply(
        self,
        context: TurnContext,
        result: AgentResult,
        proposal: Proposal | None,
        preface: str,
        *,
        goes_on: bool,
    ) -> TurnAnswer:
        """Return the replies to a run, including its question.

        * `proposal`: the action or plan that the run proposes; None if it proposes nothing.
        * `preface`: what is said above everything else; "" for nothing.
        * `goes_on`: the run went on after the decision about an action, so something may have been
          done even if it called no tool.
        """
        media = await self._files.store_all(result.artifacts, context.turn)
        files = tuple(TurnReply(Reply(media=each)) for each in media)
        content = self._content(context, result, goes_on=goes_on)
        reports = self._reports(context, result, proposal)

        # A model must not write the signs that stand before outcomes. The preview of a question may
        # have them, and `prompt_in` looks for the preview in the text, so this comes first.
        prompt = ""
        if proposal:
            prompt = without_signs(as_markdown(proposal.prompt_in(content)))
        if not context.returns_text:  # a caller of `ask_channel` gets what the model wrote
            content = without_signs(content)
            reports = without_signs(reports)

        if proposal is None:
            change = text_change(paragraphs([preface, reports, content]), result.failure_cause)
            answer = TurnAnswer(replace(change, replies=(*change.replies, *files)), result)
            if result.choices and result.stop_reason in _OWN_REPLY_REASONS:
                return self._questions.offer_choices(context, answer, result.choices)
            return answer

        # A question is sent in full. A long text above it would bury what is asked.
        if len(preface) > MAX_PREFACE_CHARS:
            reports = paragraphs([preface, reports])
            preface = ""
        names = tools_already_run(result, self._agent.tools, proposal)
        proposal = replace(proposal, head=replace(proposal.head, ran_beside=names))
        covered = await self._covered.change_for(context, proposal)
        if covered is not None:
            text = paragraphs([preface, reports, prompt])
            replies = (*text_change(text).replies, *files)
            return TurnAnswer(replace(covered, replies=replies), result)

        question, change = await self._ask(context, proposal, preface, prompt)
        # Choices that tools offer are left out: only the question can be answered.
        replies = (*text_change(reports).replies, *files, question)
        return TurnAnswer(replace(change, replies=replies), result)

    def _content(self, context: TurnContext, result: AgentResult, *, goes_on: bool) -> str:
        """Return the text that ends the run: the model's, a tool's, or why there is none."""
        if result.stop_reason == "terminal":
            return terminal_text(result, context.texts)
        has_acted = goes_on
        if result.tool_calls and not has_acted:
            # Tools that are not read-only may have changed something.
            acting = {tool.name for tool in self._agent.tools if not tool.read_only}
            has_acted = any(call.tool_name in acting for call in result.tool_calls)
        return reply_text(result, context.texts, has_acted=has_acted)

    def _reports(self, context: TurnContext, result: AgentResult, proposal: Proposal | None) -> str:
        """Return what is said above the text or the question that ends the run.

        These are calls with an unknown outcome, and, if the run ends with a question, the results
        that its model could not report.
        """
        texts = context.texts
        # The person is told of unknown outcomes, whatever the model writes about them.
        unknown = [texts.unknown(literal(call.tool_name)) for call in result.unknown_outcomes]
        terminal_texts: Sequence[str] = result.terminal_texts
        results: list[str] = []
        if proposal:
            if result.stop_reason == "terminal":
                terminal_texts = [result.content]
            results = [
                *read_results(result, self._agent.tools, shown=terminal_texts),
                *calls_without_effect(result, self._agent.tools, proposal, texts),
            ]
        # A tool that returned no value needs no text: the question names each tool that has run.
        with_value = [each for each in terminal_texts if each != WITHOUT_VALUE]
        terminal_results = [as_markdown(result_text(unfenced(each))) for each in with_value]
        return paragraphs([*unknown, *results, *terminal_results])

    async def _ask(
        self,
        context: TurnContext,
        proposal: Proposal,
        preface: str,
        prompt: str,
    ) -> tuple[TurnReply, TurnChange]:
        """Return the question of a proposal, and the change to store."""
        rule = proposal.head.approval_rule
        if rule:
            return await self._ask_others(context, proposal, rule, preface)
        proposal, changes_text = await self._changes.mark_changes(context, proposal)
        question, actions = await self._questions.ask(
            context, proposal, preface, prompt, changes_text=changes_text
        )
        await self._questions.note_question(context.turn, question.action_id)
        return question, TurnChange(new_actions=actions)

    async def _ask_others(
        self, context: TurnContext, proposal: Proposal, rule: ApprovalRule, preface: str
    ) -> tuple[TurnReply, TurnChange]:
        """Return what the person reads while other people decide, and the change to store."""
        head = proposal.head
        ids = {each.pending_action_id for each in (head, *proposal.steps)}
        asked = await self._approvals.ask(context, proposal, rule, preface)
        if isinstance(asked, str):
            self._outcomes.write_outcomes(context, ids, "replaced", context.received_at)
            return TurnReply(Reply(paragraphs([preface, asked]))), TurnChange()
        self._outcomes.write_waiting(context, ids)
        return asked


def reply_text(result: AgentResult, texts: Texts, *, has_acted: bool) -> str:
    """Return the text for the user: the model's, or why there is none, in the user's language.

    An empty answer counts as no answer. If tools have acted (`has_acted`), the text never says that
    nothing was done.
    """
    match result.stop_reason:
        case "provider_error" if not result.refusal:  # the vendor failed
            if has_acted:
                return texts.model_lost(result.failure)
            return texts.model_failed(result.failure)
        case "provider_error":  # the model refused, and wrote why: its text comes first
            if has_acted:
                return f"{result.refusal}\n\n{texts.model_lost(result.failure)}"
            return result.refusal
        case "answer" if _is_empty(result):
            if has_acted:
                return texts.model_lost()
            return texts.model_failed()
        case "max_iterations":
            return texts.too_many_steps()
        case "budget":
            return texts.budget_spent()
        case "guardrail":
            return texts.refused()
        case "loop":
            return texts.in_circles()
        case "cancelled":
            return texts.stopped()
        case "answer" if result.finish_reason == "length":
            return f"{result.content}\n\n{texts.answer_cut()}"
    return result.content


def _is_empty(result: AgentResult) -> bool:
    """Return whether the user would see nothing: no text, no file and no choices."""
    return shows_nothing(result.content) and not (result.artifacts or result.choices)


def terminal_text(result: AgentResult, texts: Texts) -> str:
    """Return what the user reads of a tool's result that ended the run.

    It is what the model would read. If the tool returned no value, the text says that it is done; a
    file or choices of the tool say that themselves.
    """
    text = result_text(unfenced(result.content))
    if text != WITHOUT_VALUE:
        return as_markdown(text)
    if result.artifacts or result.choices:
        return ""
    return texts.done(literal(result.tool_calls[-1].tool_name), "")


def read_results(
    result: AgentResult, tools: Iterable[Tool], *, shown: Collection[str]
) -> list[str]:
    """Return the results of read-only tools in the model's last answer with calls, as texts.

    If that answer also proposed an action, the run has ended before a model could report them.
    Errors are for models and are left out, and so are results that are `shown` already, and
    proposals of read-only tools that ask first.
    """
    reading = {tool.name for tool in tools if tool.read_only}
    texts: list[str] = []
    for message in _last_round(result):
        is_reading = message.role is Role.TOOL and message.tool_name in reading
        if not is_reading or not message.has_result or message.content in shown:
            continue
        text = as_markdown(result_text(unfenced(message.content)))
        if text:
            texts.append(text)
    return texts


def _last_round(result: AgentResult) -> Sequence[Message]:
    """Return the last answer of the model that has calls, and all messages behind it."""
    for at in reversed(range(len(result.messages))):
        if result.messages[at].tool_calls:
            return result.messages[at:]
    return ()


def calls_without_effect(
    result: AgentResult, tools: Iterable[Tool], proposal: Proposal, texts: Texts
) -> list[str]:
    """Return what the user reads about calls that did nothing, in the same answer as a question.

    These calls failed, or found no target. The run has ended before a model could report them.
    Calls of tools that only read are left out. So are the names of failed tools that the question
    is about: the user would think that the question had failed.
    """
    asking: set[str] = set()
    for action in proposal.steps or (proposal.head,):
        asking |= {action.kind, action.asked_by}
    acting = {tool.name for tool in tools if not tool.read_only}
    unknown = {call.id for call in result.unknown_outcomes}
    failed_tools: list[str] = []
    reports: list[str] = []
    for message in _last_round(result):
        may_have_acted = message.has_result or message.actions or message.tool_call_id in unknown
        if message.tool_name not in acting or may_have_acted:
            continue
        content = unfenced(message.content)
        if content.startswith(_NO_TARGET):
            reports.append(as_markdown(result_text(content)))
        elif content.startswith("Error") and message.tool_name not in asking:
            failed_tools.append(f"`{message.tool_name}`")
    if failed_tools:
        reports.append(texts.failed_beside(", ".join(dict.fromkeys(failed_tools))))
    return reports


def tools_already_run(result: AgentResult, tools: Iterable[Tool], proposal: Proposal) -> str:
    """Return the names of the tools that may have changed something in a run before its question.

    The names are Markdown, and "" if there are none. A tool whose code asked the question itself
    did nothing else, so it is left out.
    """
    actions = proposal.steps or (proposal.head,)
    asking = {action.asked_by for action in actions if action.kind != action.asked_by}
    acting = {tool.name for tool in tools if not (tool.read_only or tool.proposes)} - asking
    results = [message for message in result.messages if message.role is Role.TOOL]
    has_run = [each.tool_name for each in results if each.has_result and each.tool_name in acting]
    return ", ".join(f"`{name}`" for name in dict.fromkeys(has_run))
