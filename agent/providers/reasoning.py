"""ReasoningFilter: removes the reasoning that a model writes between tags such as <think>.

Vendors report reasoning apart from the text of an answer. Local servers that do not know the tags
of a model leave it in the text, where a person would read it. Text about such tags stays: in code,
in quotes, or as a word of a sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

#: The names of XML-like tags around reasoning, such as <think>, <seed:think>,
#: <antThinking> and <deep_think>.
_NAME = (
    r"(?:\w{1,20}[:_])?(?:ant)?"
    r"(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|monologue|chain[_-]?of[_-]?thoughts?|cot)"
    r"(?:_(?:content|process|block|steps))?"
)
_ATTRIBUTES = r"(?:\s[^<>]{0,100})?"
#: The opening and the closing tag of each form: of most models; Magistral; Kimi; special tokens of
#: Cohere, OpenThinker and DeepSeek; gpt-oss; Gemma; MedGemma. What gpt-oss writes into its channel
#: "commentary" is a call.
_FORMS = (
    (rf"<{_NAME}{_ATTRIBUTES}(?<!/)>", rf"</{_NAME}{_ATTRIBUTES}>"),
    (r"\[(?-i:THINK|THINKING|REASONING)\]", r"\[/(?-i:THINK|THINKING|REASONING)\]"),
    (r"◁think(?:ing)?▷", r"◁/think(?:ing)?▷"),
    (
        r"<[|\uff5c](?:(?:begin|start)[_\u2581](?:of[_\u2581])?)?(?:think(?:ing)?|thought|reasoning)[|\uff5c]>",
        r"<[|\uff5c](?:end[_\u2581](?:of[_\u2581])?|/)(?:think(?:ing)?|thought|reasoning)[|\uff5c]>",
    ),
    (
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<]{0,100}"
        r"(?:<\|constrain\|>\w{0,20})?<\|message\|>",
        r"<\|(?:end|call)\|>",
    ),
    (r"<\|channel>thought\b", r"<channel\|>"),
    (r"<unused94>thought\b", r"<unused95>"),
)
#: The forms whose closing tag means nothing else. It also ends reasoning that has no opening tag.
_CLOSING_FORMS = range(4)
#: The forms that are special tokens of a model. A sentence does not mention them by chance.
_TOKEN_FORMS = range(3, len(_FORMS))
#: What gpt-oss writes before its answer. All text before it is none of the answer.
_ANSWER_START = r"(?:<\|end\|>)?(?:<\|start\|>\w*)?<\|channel\|>final[^<]{0,100}<\|message\|>"
#: What the same models write around the answer that follows the reasoning.
_ANSWER_MARK = r"<\|return\|>|<[|\uff5c](?:begin|start|end)[_\u2581](?:of[_\u2581])?(?:solution|response)[|\uff5c]>"
#: Tags that some models write around the whole answer, directly after the reasoning.
_ANSWER_TAG = r"</?(?:(?:final_)?answer|final|response|output)>"
#: One tag in place of a pair without reasoning.
_EMPTY = rf"<{_NAME}\s?/>"
_CLOSINGS = [re.compile(closing, re.IGNORECASE) for _, closing in _FORMS]
_TAG = re.compile(
    "|".join(
        [f"(?P<open{at}>{opening})" for at, (opening, _) in enumerate(_FORMS)]
        + [f"(?P<close{at}>{_FORMS[at][1]})" for at in _CLOSING_FORMS]
        + [
            f"(?P<start>{_ANSWER_START})",
            f"(?P<mark>{_ANSWER_MARK})",
            f"(?P<wrap>{_ANSWER_TAG})",
            f"(?P<empty>{_EMPTY})",
        ]
    ),
    re.IGNORECASE,
)
#: The beginning of what may become a tag, at the end of the text that has arrived.
_PARTIAL = re.compile(
    r"""(?:
        # <think, </think, <|end_of_
        < (?: [|\uff5c]?/? ) (?: [a-z][\w:\u2581/-]{0,60} [|\uff5c]? (?: \s[^<>]{0,100} )? )?
        | <\|(?:start|channel|end)\|?> [^\n]{0,300}  # several tokens of gpt-oss and Gemma
        | <unused94> \w{0,10}
        | \[ /? [A-Z]{0,10}
        | ◁ /? \w{0,10}
    )\Z""",
    re.VERBOSE | re.IGNORECASE,
)
#: The characters that a tag begins with. Most answers have none of
#: them and are not searched further.
_STARTS = re.compile(r"[<\[◁]")
#: Characters before and after a tag that is quoted.
_QUOTES = frozenset("`\"'\u201c\u201e\u00ab\u2018(")
_QUOTES_AFTER = frozenset("`\"'\u201c\u201d\u00bb\u2019)")
_PUNCTUATION = frozenset(".,;:!?)")
_FENCES = ("```", "~~~")
#: How many characters of a line are looked at for a fence.
_LINE_START_CHARS = 40
#: How much white space may arrive before something is decided. A model that writes nothing else
#: must not make each further piece cost more than the one before.
MAX_WHITE_SPACE = 1000


@dataclass(slots=True)
class _Line:
    """A line of Markdown while it arrives.

    `start` holds its first characters, `last` its last one, and `backticks` their number.
    """

    start: str = ""
    last: str = ""
    backticks: int = 0

    def add(self, text: str) -> None:
        if len(self.start) < _LINE_START_CHARS:
            self.start = (self.start + text)[:_LINE_START_CHARS]
        self.last = text[-1:] or self.last
        self.backticks += text.count("`")

    @property
    def is_blank(self) -> bool:
        return not self.start.strip()

    @property
    def is_fence(self) -> bool:
        """Return whether the line begins or ends a block of code."""
        return self.start.lstrip().startswith(_FENCES)

    @property
    def is_in_code(self) -> bool:
        """Return whether the next character stands between backticks."""
        return self.backticks % 2 == 1


class Voided:
    """What a ReasoningFilter returns among its texts when all texts before it were reasoning."""


#: The only instance of Voided.
VOIDED = Voided()


class ReasoningFilter:
    """Removes the reasoning of one answer, which comes in pieces. A piece may end inside a tag.

    Some models begin with reasoning and write only the closing tag, because the opening one is in
    their prompt. With `holds`, no text is given until that tag or the end of the answer. Without it
    the reasoning is given as text, and VOIDED follows when the tag arrives. `has_unopened` tells
    whether the answer had reasoning without an opening tag.
    """

    def __init__(self, *, holds: bool = False) -> None:
        self._holds = holds
        #: Text that `holds` keeps back.
        self._held: list[str] = []
        #: Text that has arrived and is not decided yet.
        self._rest = ""
        #: The form of the tag whose reasoning is being read; None outside of reasoning.
        self._form: int | None = None
        #: The reasoning so far, if it may turn out to be text about a tag; else None.
        self._doubtful: list[str] | None = None
        #: Whether the opening tag in `_doubtful` may be the first word of a sentence.
        self._begins_sentence = False
        #: Whether a tag was removed that stands before the whole answer.
        self._is_wrapped = False
        #: Whether text with a visible character was given, since reasoning was voided.
        self._has_shown = False
        #: Whether reasoning was removed.
        self._has_removed = False
        #: Whether the white space that comes next is dropped:
        #: it stands between reasoning and answer.
        self._may_strip = False
        #: The line that the next text goes on with, and whether it
        #: stands in a fenced block of code.
        self._line = _Line()
        self._is_fenced = False
        #: The forms with an opening tag that stayed as text: their next closing tag stays, too.
        self._mentioned: set[int] = set()
        self.has_unopened = False

    def feed(self, piece: str) -> list[str | Voided]:
        """Return what can be shown now that this piece has arrived."""
        return self._read(piece, is_last=False)

    def end(self) -> list[str | Voided]:
        """Return what can be shown at the end of the answer."""
        output = self._read("", is_last=True)
        held = self._held
        self._held = []
        return [*held, *output]

    def _read(self, piece: str, *, is_last: bool) -> list[str | Voided]:
        """Read as much as can be decided. What cannot stays in `_rest` until more has arrived."""
        self._rest += piece
        output: list[str | Voided] = []
        may_go_on = True
        while may_go_on:
            if self._form is None:
                may_go_on = self._read_text(output, is_last=is_last)
            else:
                may_go_on = self._skip_reasoning(self._form, output, is_last=is_last)
        return output

    def _skip_reasoning(self, form: int, output: list[str | Voided], *, is_last: bool) -> bool:
        """Skip reasoning up to its closing tag. Return whether there is more to read."""
        found = _CLOSINGS[form].search(self._rest)
        if found:
            after = self._rest[found.end() :]
            # What follows decides what it is.
            if self._begins_sentence and not is_last and not after.strip():
                return False
            inside = self._rest[: found.start()]
            self._rest = after
            if self._is_text_about_tags(inside, after):
                text = "".join([*(self._doubtful or ()), inside, found[0]])
                self._form = None
                self._doubtful = None
                self._show(text, output)
            else:
                self._end_reasoning()
            return True

        skipped = self._before_partial_tag(is_last=is_last)
        self._rest = self._rest[len(skipped) :]
        if self._doubtful is not None:
            self._doubtful.append(skipped)
        if is_last and self._doubtful is not None:  # it was never closed: a text about the tag
            self._form = None
            self._show("".join(self._doubtful), output)
        return False

    def _is_text_about_tags(self, inside: str, after: str) -> bool:
        """Return whether a pair of tags is part of a sentence: "Use <think>...</think> for it"."""
        if self._doubtful is None:
            return False
        content = "".join([*self._doubtful[1:], inside])
        if self._begins_sentence and _goes_on(after) and "\n" not in content:
            return True
        return self._has_shown and bool(content.strip()) and not any(map(str.isalnum, content))

    def _before_partial_tag(self, *, is_last: bool) -> str:
        """Return what has arrived before the beginning of a tag whose end has not arrived yet."""
        partial = None
        if not is_last:
            partial = _PARTIAL.search(self._rest)
        if partial:
            return self._rest[: partial.start()]
        return self._rest

    def _end_reasoning(self) -> None:
        """Note that what comes next is the answer."""
        self._form = None
        self._doubtful = None
        self._has_removed = True
        self._may_strip = not self._has_shown
        self._holds = False

    def _read_text(self, output: list[str | Voided], *, is_last: bool) -> bool:
        """Show the text up to the next tag, and decide about the tag.

        Return whether there is more to read.
        """
        if self._may_strip:
            self._rest = self._rest.lstrip()
        may_have_tag = _STARTS.search(self._rest) is not None
        if may_have_tag:
            found = _TAG.search(self._rest)
        else:
            found = None
        if found is None:
            text = self._rest
            if may_have_tag:
                text = self._before_partial_tag(is_last=is_last)
            # White space before the first word may stand before a tag.
            if not self._has_shown and not is_last and not text.strip():
                self._rest = self._rest[-MAX_WHITE_SPACE:]
                return False
            self._rest = self._rest[len(text) :]
            self._show(text, output)
            return False

        after = self._rest[found.end() :]
        # What follows the tag decides what it is.
        if not is_last and len(after) <= MAX_WHITE_SPACE and not after.strip():
            return False
        before = self._rest[: found.start()]
        if self._has_shown or before.strip():
            self._show(before, output)
            before = ""
        self._rest = after
        if not self._is_boundary(found, after, output):
            self._show(before + found[0], output)
        return True

    def _is_boundary(self, found: re.Match[str], after: str, output: list[str | Voided]) -> bool:
        """Begin or end reasoning at a tag.

        Return False for a tag that a text is about, which stays.
        """
        kind = str(found.lastgroup)
        if kind == "start":
            return self._begin_answer(output)
        if kind == "mark":
            return self._has_removed
        if kind == "empty":
            self._may_strip = not self._has_shown
            return not self._has_shown
        if kind == "wrap":
            return self._unwrap(found[0])
        form = int(kind.removeprefix("open").removeprefix("close"))
        if kind.startswith("open"):
            return self._open(form, found[0], after)
        return self._close(form, after, output)

    @property
    def _is_quoted(self) -> bool:
        """Return whether the next character stands in code or directly after a quotation mark."""
        return self._is_fenced or self._line.is_in_code or self._line.last in _QUOTES

    def _begin_answer(self, output: list[str | Voided]) -> bool:
        """Void all text before the mark of an answer.

        Return False for a mark that a text is about.
        """
        if self._is_quoted:
            return False
        self._void(output)
        return True

    def _unwrap(self, tag: str) -> bool:
        """Return whether a tag stands around the whole answer, so that it is removed."""
        if tag.startswith("</"):
            return self._is_wrapped
        self._is_wrapped = self._has_removed and not self._has_shown
        return self._is_wrapped

    def _open(self, form: int, tag: str, after: str) -> bool:
        """Begin reasoning at an opening tag. Return False for a tag that a text is about."""
        is_tight = not after[:1].isspace() or after[:1] == "\n"
        # "Use <think> to start".
        is_word = self._has_shown and not is_tight and form not in _TOKEN_FORMS
        if self._is_quoted or is_word:
            self._mentioned.add(form)
            return False
        self._form = form
        self._begins_sentence = not self._has_shown and _goes_on(after)
        is_certain = not self._has_shown or self._line.is_blank or form in _TOKEN_FORMS
        self._doubtful = None
        if self._begins_sentence or not is_certain:
            self._doubtful = [tag]
        return True

    def _close(self, form: int, after: str, output: list[str | Voided]) -> bool:
        """Void all text before a closing tag that has no opening one. Return False for other tags.

        A tag inside code counts, too: the reasoning may have left a block of code open.
        """
        if form in self._mentioned:
            self._mentioned.discard(form)
            return False
        if self._line.last in _QUOTES and after[:1] in _QUOTES_AFTER:
            return False
        if self._is_word(after):  # "the tag </think> ends it"
            return False
        if self._has_removed and not after.strip():  # a stray tag at the end of an answer
            return True
        self.has_unopened = self.has_unopened or not self._has_removed
        self._void(output)
        return True

    def _is_word(self, after: str) -> bool:
        """Return whether a closing tag is a word of a sentence."""
        if not self._has_shown:
            return _goes_on(after)
        ends_line = not after.strip() or after.lstrip(" \t")[:1] == "\n"
        begins_sentence = after[:1] == " " and after.lstrip()[:1].isupper()
        return (
            self._line.last.isspace()
            and not self._line.is_blank
            and not ends_line
            and not begins_sentence
        )

    def _void(self, output: list[str | Voided]) -> None:
        """Take back all text that was given or held back. What comes next is the answer."""
        if self._has_shown and not self._holds:
            output[:] = [VOIDED]
        self._held.clear()
        self._has_shown = False
        self._is_fenced = False
        self._line = _Line()
        self._end_reasoning()

    def _show(self, text: str, output: list[str | Voided]) -> None:
        """Give a text of the answer, or hold it back, and follow its lines for code and quotes."""
        if not text:
            return
        self._may_strip = False
        self._has_shown = self._has_shown or bool(text.strip())

        *ends, beginning = text.split("\n")
        for end in ends:
            self._line.add(end)
            self._is_fenced ^= self._line.is_fence
            self._line = _Line()
        self._line.add(beginning)

        if self._holds:
            self._held.append(text)
        else:
            output.append(text)


def _goes_on(after: str) -> bool:
    """Return whether a sentence goes on after a tag.

    It does with a small letter after a space, or with punctuation.
    """
    if after[:1] == " ":
        return after.lstrip()[:1].islower()
    return after[:1] in _PUNCTUATION


def split_reasoning(answer: str) -> tuple[str, bool]:
    """Return a whole answer without its reasoning, and whether the reasoning had no opening tag."""
    if not _STARTS.search(answer):
        return answer, False
    reading = ReasoningFilter()
    texts: list[str] = []
    for item in (*reading.feed(answer), *reading.end()):
        if isinstance(item, Voided):
            texts.clear()
        else:
            texts.append(item)
    return "".join(texts), reading.has_unopened


def without_reasoning(answer: str) -> str:
    """Return a whole answer without the reasoning that the model wrote into it."""
    return split_reasoning(answer)[0]
