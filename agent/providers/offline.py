"""OfflineProvider: answers without a language model, by matching the user's words to tools."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from itertools import chain, pairwise, takewhile
from typing import Any

from sayso.agent.messages import Message, Role, ToolCall, UsageStats, without_notes
from sayso.agent.providers.base import Completion, ProviderRequest, ToolSchema
from sayso.agent.providers.offline_arguments import convert, read_arguments
from sayso.agent.tools.call_texts import result_text
from sayso.agent.tools.errors import issue_in_box
from sayso.channels.markdown.literal import as_markdown

#: Words that do not select a tool. Greetings, yes and no are among them,
#: so that small talk calls no tool.
STOP_WORDS = frozenset(
    """a all also am an and any are as at be been but by can could did do does for from had has have hello hey hi how
    i if in into is it its just kindly let like me my need no not now of off ok okay on one or our out please so some
    sorry sure than thank thanks that the their them then there these they this those to too up us want was we were
    what when where which who will with would yes you your bye good morning evening night nope yep about called named
    whose""".split()
)
#: General verbs, which match a tool only together with another word of its name.
WEAK_WORDS = frozenset(
    {"do", "get", "give", "look", "make", "run", "see", "set", "show", "tell", "use"}
)
#: The score of a word in a tool's name; a word in its description or parameters scores 1.
NAME_WEIGHT = 10
#: Negations. "Don't delete INV-42" contains every word of the request that it forbids.
_NEGATION = re.compile(
    r"\b(?:do|does|did|wo|would|should|must|could|have|has|was|were|is)n['\u2019]?t\b|\bcan(?:no|['\u2019])t\b"
    r"|\b(?:do|does|did|will|would|should|must|can|could|have|has) not\b|\bnever\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(
    r"\"([^\"]+)\"|(?<!\w)'([^']+)'(?!\w)|“([^”]+)”|([\w#$€£@+-][\w.:@/+#%$€£='\u2019-]*)"
)
#: A reversing beginning apart from its word: "un-delete".
_HYPHEN = re.compile(r"\b(un|de|dis)-(?=\w)", re.IGNORECASE)
_NOT_WORDS = re.compile(r"[\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Names of parameters by what they mean.
_ID_PARAMETER = re.compile(r"(^|_)(id|ids|number|no|nr|code|ref|reference|key|uuid|sku)$")
_DATE_PARAMETER = re.compile(r"(^|_)(date|day|on|due|since|until)(_|$)")
_MOMENT_PARAMETER = re.compile(r"(^|_)when(_|$)")
_CURRENCY_PARAMETER = re.compile(r"(^|_)currency(_|$)")
#: Values in a text.
_NUMBER = re.compile(r"[$€£]?([+-]?\d+(?:\.\d+)?)[$€£%]?")
_BARE_NUMBER = re.compile(r"#*(\d+)")
_ID = re.compile(r"(?=\S*\d)(?=\S*[A-Za-z_@-])\S+|\S+@\S+")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}(T[\d:.]+)?")
_DAY = r"(?:(?:on )?(?:today|tomorrow|(?:mon|tues|wednes|thurs|fri|satur|sun)day|\d{4}-\d\d-\d\d))"
_TIME = r"(?:\d{1,2}(?::\d\d)?(?: ?[ap]m)?|noon|midnight)"
_DELAY = r"in (?:\d+|an?|one|half an) (?:second|minute|hour|day|week)s?"
#: A point in time: "in 20 minutes", "tomorrow at 9", "at 9 on friday", "2026-12-24T18:00".
_MOMENT = re.compile(
    rf"{_DELAY}|{_DAY}(?: (?:at )?{_TIME})?|at {_TIME}(?: {_DAY})?|\d{{4}}-\d\d-\d\dT[\d:.+-]+Z?",
    re.IGNORECASE,
)
#: How many tools are named to a user whose text matches none.
MAX_NAMED_TOOLS = 12
#: Commands that list the tools. Telegram sends /start when a user opens the bot.
HELP_COMMANDS = frozenset({"help", "start"})
#: Calls of one tool: its schema, and the arguments of each call.
_Step = tuple[ToolSchema, list[dict[str, Any]]]
#: The tools that the current user may not use, as plain data.
HiddenTools = Callable[[], Awaitable[Sequence[ToolSchema]]]
#: The answer to a request for one of them. It does not name the tool: a role may hide what others
#: use.
NOT_ALLOWED = "That is not allowed here. /help says what is."
#: Example values by JSON type.
_SAMPLES = {"integer": "3", "number": "19.90", "boolean": "yes", "array": "a,b", "object": "'{}'"}


class OfflineProvider:
    """A deterministic replacement for a model, at no cost.

    The same transcript and tools give the same answer.
    """

    #: Its answer is the result itself, so it is given more of it than a model, which is paid for.
    shows_results = True

    def __init__(self, *, today: Callable[[], date] = date.today) -> None:
        self._today = today
        self._hidden_tools: HiddenTools | None = None

    def with_hidden_tools(self, hidden_tools: HiddenTools) -> OfflineProvider:
        """Return a provider that also knows the tools that its user may not use.

        It answers a request for one of them with a refusal, and never with a call of another tool
        that has some of the same words.
        """
        provider = copy(self)
        vars(provider)["_hidden_tools"] = hidden_tools
        return provider

    async def acomplete(self, **kwargs: Any) -> Completion:
        """Answer a request.

        A command or a matching text is answered with tool calls, tool results with their text, and
        other text with help.
        """
        request = ProviderRequest(**kwargs)
        tools = request.tools or ()
        if self._hidden_tools:
            all_hidden = await self._hidden_tools()
        else:
            all_hidden = ()
        hidden = [each for each in all_hidden if each not in tools]
        answer = self._answer(request.messages, tools, hidden)
        prompt_words = sum(len(message.content.split()) for message in request.messages)
        answer_words = len(answer.content.split())
        usage = UsageStats(
            prompt_words, answer_words, prompt_words + answer_words, 0.0, "offline", "offline"
        )
        return answer, usage

    def _answer(
        self,
        messages: Sequence[Message],
        tools: Sequence[ToolSchema],
        hidden: Sequence[ToolSchema],
    ) -> Message:
        if messages and messages[-1].role is Role.TOOL:
            recent = list(
                takewhile(lambda message: message.role is not Role.USER, reversed(messages))
            )
            results = [each for each in reversed(recent) if each.role is Role.TOOL]
            # An answer of a model is Markdown.
            texts = [as_markdown(_in_words(each, tools)) for each in results]
            return Message(Role.ASSISTANT, "\n".join(texts))
        user_message = next((each for each in reversed(messages) if each.role is Role.USER), None)
        step = self._next_step(user_message, tools, hidden)
        if isinstance(step, str):
            return Message(Role.ASSISTANT, step)
        tool, calls = step
        missing = [name for name in tool["parameters"].get("required", ()) if name not in calls[0]]
        if missing:
            properties = tool["parameters"]["properties"]
            unknown = [repr(name) for name in calls[0] if name not in properties]
            given = ""
            if unknown:
                given = f", and has no {' or '.join(unknown)}"
            example = example_command(tool, calls[0])
            needs = f"{tool['name']} needs {' and '.join(missing)}{given}."
            return Message(Role.ASSISTANT, f"{needs} For example: {example}")
        first_id = f"call_{len(messages)}"
        ids = [first_id, *(f"{first_id}_{number}" for number in range(2, len(calls) + 1))]
        tool_calls = [
            ToolCall(tool["name"], args, id_) for args, id_ in zip(calls, ids, strict=True)
        ]
        return Message(Role.ASSISTANT, tool_calls=tuple(tool_calls))

    def _next_step(
        self,
        user_message: Message | None,
        tools: Sequence[ToolSchema],
        hidden: Sequence[ToolSchema],
    ) -> _Step | str:
        """Return the tool calls that the user asks for, or a text for the user."""
        text = ""
        if user_message:
            text = without_notes(user_message.content).strip()
        if text.startswith("/") and text[1:2].isalpha():
            return _command(text[1:], tools, hidden)
        all_matches = match_tools(text, [*tools, *hidden])
        if not all_matches:
            return _no_match_text(user_message, tools)
        matches = [each for each in all_matches if each not in hidden]
        if not matches:
            return NOT_ALLOWED
        if len(matches) == 1 and len(all_matches) > 1:
            # The text may mean the tool that its user may not use,
            # so the other one does not run for it.
            return f"Did you mean /{matches[0]['name']}?"
        if len(matches) > 1:
            *first, last = [f"/{tool['name']}" for tool in matches]
            return f"Did you mean {', '.join(first)} or {last}?"
        return matches[0], call_arguments(text, matches[0], self._today())


def _in_words(result: Message, tools: Sequence[ToolSchema]) -> str:
    """Return a tool's result for people. Wrong arguments become one line and an example."""
    issue = issue_in_box(result.content)
    if not issue:
        return result_text(result.content)
    tool = next((each for each in tools if each["name"] == result.tool_name), None)
    example = ""
    if tool:
        example = f" For example: {example_command(tool)}"
    return f"{result.tool_name} cannot run like this: {issue}.{example}"


def _command(text: str, tools: Sequence[ToolSchema], hidden: Sequence[ToolSchema]) -> _Step | str:
    head, *rest = text.split(maxsplit=1)
    name = head.partition("@")[0]  # in Telegram groups commands are written /name@the_bot
    tool = next((tool for tool in tools if tool["name"] == name), None)
    if tool is not None:
        arguments = read_arguments("".join(rest), tool["parameters"])
        if arguments.issue:
            return _refused_text(tool, arguments.issue)
        return tool, [arguments.values]
    if any(each["name"] == name for each in hidden):
        return NOT_ALLOWED
    if name.lower() in HELP_COMMANDS:
        return _help_text(tools)
    return f"There is no command /{name}. /help lists them all."


def _refused_text(tool: ToolSchema, issue: str) -> str:
    """Return the answer to a command whose arguments cannot be read. Nothing runs."""
    spellings = [f"{name}=..." for name in tool["parameters"]["properties"]]
    cure = "it takes no arguments"
    if spellings:
        cure = f"write {' or '.join(spellings)}"
    problem = f"{tool['name']} cannot run like this: {issue}"
    return f"{problem}; {cure}. For example: {example_command(tool)}"


def _no_match_text(user_message: Message | None, tools: Sequence[ToolSchema]) -> str:
    """Return the user's own text and files, to show that they arrived.

    Behind them stands what the tools can do.
    """
    text = ""
    if user_message:
        text = user_message.content.strip()
    lines = [f"You said: {text}".rstrip()]
    for media in user_message.media if user_message else ():
        facts = (
            media.kind,
            media.mime_type,
            f"{media.size} bytes" if media.size else "",
            media.filename,
        )
        lines.append(f"[{' '.join(filter(None, facts))}]")
    if tools:
        names = [" ".join(words_of(tool["name"])) for tool in tools[:MAX_NAMED_TOOLS]]
        if len(tools) > MAX_NAMED_TOOLS:
            names.append(f"{len(tools) - MAX_NAMED_TOOLS} more")
        *first, last = names
        if first:
            abilities = f"{', '.join(first)} and {last}"
        else:
            abilities = last
        lines.append(
            "That matches none of my tools, and I am not a language model: I match words to tools, always in the same "
            f"way. I can {abilities}. For example: {example_command(tools[0])}"
        )
    return "\n".join(lines)


def _help_text(tools: Sequence[ToolSchema]) -> str:
    """Return what this provider is, and for each tool a command to copy."""
    intro = (
        "I am not a language model: I match your words to the tools below, always in the same way. "
        "Say it in your own words or use the command."
    )
    if not tools:
        return f"{intro}\nThere are no tools."
    summaries = ((tool, str(tool.get("description", "")).partition("\n")[0]) for tool in tools)
    return "\n".join(
        [intro, *(f"{example_command(tool)} - {summary}" for tool, summary in summaries)]
    )


def example_command(tool: ToolSchema, args: Mapping[str, Any] | None = None) -> str:
    """Return a command that calls the tool with the given arguments.

    Missing required ones get a sample.
    """
    args = args or {}
    parameters = tool["parameters"]
    names = [
        name
        for name in parameters["properties"]
        if name in args or name in parameters.get("required", ())
    ]
    values = {
        name: str(args.get(name) or _sample(name, parameters["properties"][name])) for name in names
    }
    quoted = {
        name: f"'{value}'" if re.search(r"\s", value) else value for name, value in values.items()
    }
    return " ".join([f"/{tool['name']}", *(f"{name}={value}" for name, value in quoted.items())])


def _sample(name: str, parameter: Mapping[str, Any]) -> str:
    if parameter.get("enum"):
        return str(parameter["enum"][0])
    if parameter.get("format") == "date":
        return "2026-01-31"
    if name.endswith("_id"):
        return f"{name[:3].upper()}-42"
    return _SAMPLES.get(str(parameter.get("type")), "...")


@dataclass(frozen=True, slots=True)
class Token:
    """A word of a text, or a whole quotation without its quotes."""

    text: str
    quoted: bool = False


def tokens(text: str) -> list[Token]:
    """Return the words and quotations of a text in order, without punctuation around them."""
    result = []
    for match in _TOKEN.finditer(text):
        *quotes, word = match.groups()
        quote = next((each for each in quotes if each), None)
        if quote is not None:
            result.append(Token(quote.strip(), quoted=True))
        elif stripped := word.rstrip(".:/=-'\u2019"):
            result.append(Token(stripped))
    return result


def words_of(text: str) -> list[str]:
    """Return the words of a text in lower case; snake_case and camelCase are several words."""
    return (
        _NOT_WORDS.sub(" ", _CAMEL_CASE.sub(" ", unicodedata.normalize("NFKC", text)))
        .casefold()
        .split()
    )


def stems(words: Iterable[str]) -> frozenset[str]:
    """Return the stems of all words but the stop words."""
    return frozenset(stem(word) for word in words if word.lower() not in STOP_WORDS)


def stem(word: str) -> str:
    """Return a word without plural, -ing and final e.

    It is the same for "deleting", "deletes" and "delete".

    Not Snowball's stem, which is the same for "remind" and "reminder".
    """
    word = word.lower()
    if len(word) > 3 and word.endswith("ies"):
        return word[:-3] + "y"
    if len(word) > 5 and word.endswith("ing"):
        word = word[:-3]
        if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "ls":  # "stopping"
            word = word[:-1]
    elif len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    if len(word) > 3 and word.endswith("e"):
        return word[:-1]
    return word


#: What a text says, and the verbs of tools that do the opposite. "Restore task 5" has the noun of
#: `delete_task`. What removes something may be the content of what `add_note` adds.
_OPPOSITES = (
    ("add create recover restore", "archive delete erase remove"),
    ("allow", "ban block deny"),
    ("ban block deny", "allow"),
    ("enable", "disable"),
    ("disable", "enable"),
    ("open reopen", "close"),
    ("close", "open reopen"),
    ("resume start", "pause stop"),
    ("pause stop", "resume start"),
)
#: Beginnings that reverse a word: "unblock", "deactivate", "disconnect".
_REVERSING = ("un", "de", "dis")
#: Words that reverse the next one, by their stems: "cancel the deletion".
_UNDOING = frozenset({"cancel", "revert", "stop", "undo"})
_OPPOSITE_STEMS = tuple((stems(words.split()), stems(verbs.split())) for words, verbs in _OPPOSITES)
_WEAK_STEMS = frozenset(stem(word) for word in WEAK_WORDS)


def match_tools(text: str, tools: Sequence[ToolSchema]) -> list[ToolSchema]:
    """Return the tools that a text may mean.

    Several are those that only the user can tell apart.
    """
    if _NEGATION.search(text):
        return []
    # What is quoted is data and says nothing about the tool.
    unquoted_tokens = [token.text for token in tokens(text) if not token.quoted]
    text_stems = stems(chain.from_iterable(map(words_of, unquoted_tokens)))
    matches = [_Match.of(text_stems, tool) for tool in tools]
    unquoted = " ".join(unquoted_tokens)
    words = words_of(unquoted)
    saying = [
        stem(word) for word in words_of(_HYPHEN.sub(r"\1", unquoted)) if word not in STOP_WORDS
    ]
    candidates = [match for match in matches if match.name_hits and match.is_distinct(frozenset())]
    candidates = [match for match in candidates if not _says_opposite(saying, match)]
    if not candidates:
        return []
    longest = max(_exact_words(match, words) for match in candidates)
    # One word of a name is in many sentences, so it must be all that the text says.
    has_whole_name = longest == 1 and len(_saying(words)) == 1
    if longest > 1 or has_whole_name:
        candidates = [match for match in candidates if _exact_words(match, words) == longest]
    best_score = max(match.score for match in candidates)
    best = [match for match in candidates if match.score == best_score]
    other_names = frozenset().union(*(match.name for match in matches if match is not best[0]))
    if len(best) == 1 and not best[0].is_distinct(other_names):
        best = [match for match in candidates if len(match.name_hits) == len(best[0].name_hits)]
    return [match.tool for match in best]


def _says_opposite(text: Sequence[str], match: _Match) -> bool:
    """Return whether a text, as its stems in order, asks for the opposite of a tool."""
    verb = stem(words_of(match.tool["name"])[0])
    for word, following in pairwise(text):
        if word in _UNDOING - match.name and following.startswith(verb):
            return True
    said = set(text) - match.name
    opposites: set[str] = set()
    for words, verbs in _OPPOSITE_STEMS:
        if said & words:
            opposites |= verbs
    for start in _REVERSING:
        opposites |= {word.removeprefix(start) for word in said if word.startswith(start)}
        opposites |= {f"{start}{word}" for word in said}
    # A text that has the tool's own word, too, may ask for both.
    return bool(opposites & (match.name - set(text)))


def _exact_words(match: _Match, words: Sequence[str]) -> int:
    """Return how many words the tool's name has, if the text has them in a row, else 0.

    They are spelled the same. Words that say nothing may stand between them: "delete the task" has
    the words of `delete_task`.
    """
    name = words_of(match.tool["name"])
    text = [word for word in words if word not in STOP_WORDS or word in name]
    starts = range(len(text) - len(name) + 1)
    if any(text[start : start + len(name)] == name for start in starts):
        return len(name)
    return 0


def _saying(words: Sequence[str]) -> list[str]:
    """Return the words that say what to do: no stop words, and no identifiers or amounts."""
    return [word for word in words if word not in STOP_WORDS and not any(map(str.isdigit, word))]


@dataclass(frozen=True, slots=True)
class _Match:
    """How well a text matches a tool.

    It has the stems of the tool's name, and those of them that the text contains.
    """

    tool: ToolSchema
    name: frozenset[str]
    name_hits: frozenset[str]
    score: int

    @classmethod
    def of(cls, text_stems: frozenset[str], tool: ToolSchema) -> _Match:
        """Return how well the stems of a text match a tool."""
        name = frozenset(stem(word) for word in words_of(tool["name"]))
        context = words_of(str(tool.get("description", "")))
        for parameter, schema in tool.get("parameters", {}).get("properties", {}).items():
            context += words_of(parameter)
            context += [word for choice in schema.get("enum", ()) for word in words_of(str(choice))]
        name_hits = name & text_stems
        context_hits = (text_stems & stems(context)) - name
        return cls(tool, name, name_hits, NAME_WEIGHT * len(name_hits) + len(context_hits))

    def is_distinct(self, other_names: frozenset[str]) -> bool:
        """Return whether the text contains the tool's whole name.

        A specific word of it that no other name has counts as well.
        """
        return self.name_hits == self.name or bool(self.name_hits - other_names - _WEAK_STEMS)


def call_arguments(text: str, tool: ToolSchema, today: date) -> list[dict[str, Any]]:
    """Return the arguments of each call that a text asks for.

    Arguments that it does not contain are left out.

    A text with several identifiers ("delete INV-1 and INV-2") asks for one call each,
    if the tool requires only an identifier.
    """
    text_tokens = tokens(text)
    identifiers = list[Token]()
    parameters = tool["parameters"]
    match parameters.get("required", ()):
        case [name] if (
            _ID_PARAMETER.search(name) and parameters["properties"][name].get("type") == "string"
        ):
            identifiers = [token for token in text_tokens if _identifier(token)]
    if len(identifiers) < 2:
        return [ArgumentExtractor(tool, text_tokens, today).extract()]
    others = [token for token in text_tokens if token not in identifiers]
    return [
        ArgumentExtractor(tool, [*others, each], today).extract()
        for each in dict.fromkeys(identifiers)
    ]


@dataclass(slots=True)
class ArgumentExtractor:
    """Finds the arguments of one call in a text. `tokens` are those that no argument has taken yet.

    Values of a recognizable type are taken first, so that a plain string
    parameter gets only the words left over.
    """

    tool: ToolSchema
    tokens: list[Token]
    today: date
    args: dict[str, Any] = field(default_factory=dict)

    def extract(self) -> dict[str, Any]:
        """Return the arguments by parameter name, in the order of the parameters."""
        properties = self.tool["parameters"]["properties"]
        # Those that name their parameter come first, such as `invoice_id=INV-42`
        for token in list(self.tokens):
            name, _, value = token.text.partition("=")
            if value and name in properties and not token.quoted:
                self.args[name] = convert(value, properties[name])
                self.tokens.remove(token)
        for name, parameter in self._open_parameters():
            if _MOMENT_PARAMETER.search(name):
                self._take_moment(name)
            else:
                self._take_first(
                    name, partial(_value, name=name, parameter=parameter, today=self.today)
                )
        for name, parameter in self._open_parameters():
            if (
                name in self.tool["parameters"].get("required", ())
                and parameter.get("type") == "string"
            ):
                self._take_string(name, parameter)
        return {name: self.args[name] for name in properties if name in self.args}

    def _open_parameters(self) -> list[tuple[str, Mapping[str, Any]]]:
        parameters = self.tool["parameters"]["properties"].items()
        return [(name, parameter) for name, parameter in parameters if name not in self.args]

    def _take_first(self, name: str, read: Callable[[Token], Any]) -> None:
        """Take the first token that `read` has a value for."""
        for index, token in enumerate(self.tokens):
            value = read(token)
            if value is not None:
                self.args[name] = value
                del self.tokens[index]
                return

    def _take_moment(self, name: str) -> None:
        """Take the first and then longest run of tokens that is a point in time."""
        count = len(self.tokens)
        for start, end in (
            (first, last) for first in range(count) for last in range(count, first, -1)
        ):
            run = self.tokens[start:end]
            text = " ".join(token.text for token in run)
            if _MOMENT.fullmatch(text) and not any(token.quoted for token in run):
                self.args[name] = text
                del self.tokens[start:end]
                return

    def _take_string(self, name: str, parameter: Mapping[str, Any]) -> None:
        """Take a quotation, a bare number for an identifier, or the words that are left over.

        These are all from the first to the last word that is no stop word:
        "Bank of America" keeps its "of".
        """
        if "enum" in parameter or "format" in parameter or _MOMENT_PARAMETER.search(name):
            return
        self._take_first(name, lambda token: token.text if token.quoted else None)
        if name not in self.args and _ID_PARAMETER.search(name):
            self._take_first(
                name,
                lambda token: number[1] if (number := _BARE_NUMBER.fullmatch(token.text)) else None,
            )
        if name in self.args or _ID_PARAMETER.search(name):
            return
        tool_stems = {stem(word) for word in words_of(self.tool["name"])}
        words = [token for token in self.tokens if stem(token.text) not in tool_stems]
        meaningful = [
            index for index, token in enumerate(words) if token.text.lower() not in STOP_WORDS
        ]
        if meaningful:
            taken = words[meaningful[0] : meaningful[-1] + 1]
            self.args[name] = " ".join(token.text for token in taken)
            self.tokens = [token for token in self.tokens if token not in taken]


def _value(token: Token, name: str, parameter: Mapping[str, Any], today: date) -> Any:
    """Return the token as a value of the parameter; None if it is no such value."""
    text = token.text
    word = token.text.lower()
    kind = parameter.get("type")
    if "enum" in parameter:
        return {str(choice).lower(): choice for choice in parameter["enum"]}.get(word)
    if kind in ("integer", "number"):
        if token.quoted:
            match = None
        else:
            match = _NUMBER.fullmatch(text)
        if match is None or (kind == "integer" and "." in match[1]):
            return None
        if "." in match[1]:
            return float(match[1])
        return int(match[1])
    if kind != "string":  # a boolean is taken from commands only: "on Monday" switches nothing on
        return None
    if parameter.get("format") in ("date", "date-time") or _DATE_PARAMETER.search(name):
        days = {"today": 0, "tomorrow": 1, "yesterday": -1}.get(word)
        if days is None:
            named = ""
        else:
            named = (today + timedelta(days)).isoformat()
        if _ISO_DATE.fullmatch(text):
            return text
        return named or None
    if _CURRENCY_PARAMETER.search(name):
        return text if re.fullmatch("[A-Z]{3}", text) else None
    if _ID_PARAMETER.search(name) or "email" in name:
        return _identifier(token)
    return None


def _identifier(token: Token) -> str | None:
    is_typed = _ISO_DATE.fullmatch(token.text) or _NUMBER.fullmatch(token.text)
    if token.quoted or (_ID.fullmatch(token.text) and not is_typed):
        return token.text.lstrip("#")
    return None
