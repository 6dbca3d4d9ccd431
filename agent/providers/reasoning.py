"""ReasoningFilter: removes the reasoning that a model writes between tags such as <think>.

Most vendors report reasoning apart from the text of an answer. A local server that does not know
the tags of its model leaves the reasoning in the text, where a person would read it. Text that is
about such tags stays: in code, in quotes, or as a word of a sentence.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _TagForm:
    """One spelling of the tags around reasoning, as two regular expressions."""

    opening: str
    closing: str
    #: Whether the closing tag has no other meaning. Then it also ends reasoning without an opening
    #: tag: some servers write the opening tag into the prompt, so that the answer lacks it.
    ends_unopened: bool
    #: Whether the opening tag is a special token of a model. No sentence mentions it by chance.
    is_special_token: bool


#: The names of XML-like tags around reasoning, such as <think>, <seed:think>,
#: <antThinking> and <deep_think>.
_NAME = (
    r"(?:\w{1,20}[:_])?(?:ant)?"
    r"(?:think(?:ing)?|thoughts?|reasoning|reflection|scratchpad|monologue|chain[_-]?of[_-]?thoughts?|cot)"
    r"(?:_(?:content|process|block|steps))?"
)
_ATTRIBUTES = r"(?:\s[^<>]{0,100})?"

_XML_FORM = _TagForm(
    opening=rf"<{_NAME}{_ATTRIBUTES}(?<!/)>",
    closing=rf"</{_NAME}{_ATTRIBUTES}>",
    ends_unopened=True,
    is_special_token=False,
)
#: In capitals only, since [think] may be any text in brackets.
_MAGISTRAL_FORM = _TagForm(
    opening=r"\[(?-i:THINK|THINKING|REASONING)\]",
    closing=r"\[/(?-i:THINK|THINKING|REASONING)\]",
    ends_unopened=True,
    is_special_token=False,
)
_KIMI_FORM = _TagForm(
    opening=r"◁think(?:ing)?▷",
    closing=r"◁/think(?:ing)?▷",
    ends_unopened=True,
    is_special_token=False,
)
#: Cohere, OpenThinker and DeepSeek.
_PIPE_FORM = _TagForm(
    opening=(
        r"<[|\uff5c](?:(?:begin|start)[_\u2581](?:of[_\u2581])?)?"
        r"(?:think(?:ing)?|thought|reasoning)[|\uff5c]>"
    ),
    closing=(
        r"<[|\uff5c](?:end[_\u2581](?:of[_\u2581])?|/)"
        r"(?:think(?:ing)?|thought|reasoning)[|\uff5c]>"
    ),
    ends_unopened=True,
    is_special_token=True,
)
#: What gpt-oss writes into its channel "commentary" is a call, which is not for people either.
_GPT_OSS_FORM = _TagForm(
    opening=(
        r"(?:<\|start\|>assistant)?<\|channel\|>(?:analysis|commentary)[^<]{0,100}"
        r"(?:<\|constrain\|>\w{0,20})?<\|message\|>"
    ),
    closing=r"<\|(?:end|call)\|>",
    ends_unopened=False,
    is_special_token=True,
)
_GEMMA_FORM = _TagForm(
    opening=r"<\|channel>thought\b",
    closing=r"<channel\|>",
    ends_unopened=False,
    is_special_token=True,
)
_MEDGEMMA_FORM = _TagForm(
    opening=r"<unused94>thought\b",
    closing=r"<unused95>",
    ends_unopened=False,
    is_special_token=True,
)
_FORMS = (
    _XML_FORM,
    _MAGISTRAL_FORM,
    _KIMI_FORM,
    _PIPE_FORM,
    _GPT_OSS_FORM,
    _GEMMA_FORM,
    _MEDGEMMA_FORM,
)

#: What gpt-oss writes before its answer. No text before it belongs to the answer.
_ANSWER_START = r"(?:<\|end\|>)?(?:<\|start\|>\w*)?<\|channel\|>final[^<]{0,100}<\|message\|>"
#: Special tokens around the answer, which models of `_PIPE_FORM` and gpt-oss write.
_ANSWER_MARK = (
    r"<\|return\|>"
    r"|<[|\uff5c](?:begin|start|end)[_\u2581](?:of[_\u2581])?(?:solution|response)[|\uff5c]>"
)
#: Tags that some models write around the whole answer, directly after the reasoning.
_ANSWER_TAG = r"</?(?:(?:final_)?answer|final|response|output)>"
#: One tag in place of a pair without reasoning.
_EMPTY_TAG = rf"<{_NAME}\s?/>"

_CLOSING_PATTERNS = {form: re.compile(form.closing, re.IGNORECASE) for form in _FORMS}
#: Name of a group in `_TAG` -> the form whose opening or closing tag it matches.
_OPENING_GROUPS = {f"open{number}": form for number, form in enumerate(_FORMS)}
_CLOSING_GROUPS = {
    f"close{number}": form for number, form in enumerate(_FORMS) if form.ends_unopened
}
#: No two of them match at the same place, so their order does not matter.
_TAG_EXPRESSIONS = {
    **{group: form.opening for group, form in _OPENING_GROUPS.items()},
    **{group: form.closing for group, form in _CLOSING_GROUPS.items()},
    "answer_start": _ANSWER_START,
    "answer_mark": _ANSWER_MARK,
    "answer_tag": _ANSWER_TAG,
    "empty_tag": _EMPTY_TAG,
}
#: Any tag that means something outside of reasoning. The group that matched tells which.
_TAG = re.compile(
    "|".join(f"(?P<{group}>{expression})" for group, expression in _TAG_EXPRESSIONS.items()),
    re.IGNORECASE,
)
#: The beginning of what may become a tag, at the end of the text that has arrived. It must match
#: each beginning of each expression in `_TAG_EXPRESSIONS` and of each closing tag. Otherwise a tag
#: is missed where a piece of the answer ends inside it. So a new form may have to be added here.
_PARTIAL_TAG = re.compile(
    r"""(?:
        # <think, </think, <|end_of_
        < (?: [|\uff5c]?/? ) (?: [a-z][\w:\u2581/-]{0,60} [|\uff5c]? (?: \s[^<>]{0,100} )? )?
        # several tokens of gpt-oss and Gemma, with the names between them
        | <\|(?:start|channel|end)\|?> [^\n]{0,300}
        | <unused94> \w{0,10}
        | \[ /? [A-Z]{0,10}
        | ◁ /? \w{0,10}
    )\Z""",
    re.VERBOSE | re.IGNORECASE,
)
#: The characters that a tag begins with. An answer without them needs no slower search for a tag.
_FIRST_CHARS = re.compile(r"[<\[◁]")
#: Characters directly before a tag that a text quotes.
_BEFORE_QUOTED = frozenset("`\"'\u201c\u201e\u00ab\u2018(")
#: Characters directly after such a tag.
_AFTER_QUOTED = frozenset("`\"'\u201c\u201d\u00bb\u2019)")
#: Characters with which a sentence goes on after a tag.
_PUNCTUATION = frozenset(".,;:!?)")
#: What a line begins with that begins or ends a block of code.
_FENCES = ("```", "~~~")
#: How many characters of a line are looked at for a fence.
_LINE_START_CHARS = 40
#: How much white space may wait for the text after it, in characters. Without this limit, each
#: piece would cost more than the one before if a model writes nothing else.
_MAX_WHITE_SPACE = 1000


@dataclass(slots=True)
class _Line:
    """A line of Markdown that may still grow."""

    #: Its first characters, up to `_LINE_START_CHARS`.
    start: str = ""
    #: Its last character, "" for an empty line.
    last: str = ""
    #: How many backticks it has.
    backticks: int = 0

    def add(self, text: str) -> None:
        """Append a text without a line break."""
        if len(self.start) < _LINE_START_CHARS:
            self.start = (self.start + text)[:_LINE_START_CHARS]
        if text:
            self.last = text[-1]
        self.backticks += text.count("`")

    @property
    def is_blank(self) -> bool:
        """Whether the line has only white space so far."""
        return not self.start.strip()

    @property
    def is_fence(self) -> bool:
        """Whether the line begins or ends a block of code."""
        return self.start.lstrip().startswith(_FENCES)

    @property
    def is_in_code(self) -> bool:
        """Whether the next character stands between backticks."""
        return self.backticks % 2 == 1


class Retraction:
    """An item that a ReasoningFilter returns: all texts before it were reasoning, so drop them."""


#: The only instance of Retraction.
RETRACTION = Retraction()
#: What a ReasoningFilter returns: pieces of the answer in order.
FilteredItem = str | Retraction


class ReasoningFilter:
    """Removes the reasoning of one answer, which comes in pieces. A piece may end inside a tag.

    One filter reads one answer: call `feed` with each piece, then `end` once.

    Some models begin with reasoning and write only the closing tag, because the opening one is in
    their prompt. Until that tag arrives, such *unopened* reasoning looks like an answer. With
    `holds_back`, a text is withheld until that tag or the end of the answer. An answer that begins
    with an opening tag is not withheld. Without `holds_back` the reasoning is returned as text, and
    RETRACTION follows when the tag arrives.

    In the code, to show a text is to return it, or to withhold it where that is wanted.
    """

    def __init__(self, *, holds_back: bool = False) -> None:
        #: Whether the answer began with reasoning without an opening tag. The caller then holds
        #: back the later answers of this model.
        self.has_unopened_reasoning = False

        #: Whether text is withheld: what comes now may be unopened reasoning.
        self._holds_back = holds_back
        self._withheld: list[str] = []
        #: Text that has arrived and is neither shown nor skipped yet.
        self._unread = ""

        #: The form of the tag whose reasoning is being read; None outside of reasoning.
        self._open_form: _TagForm | None = None
        #: Of an undecided tag (see `_open`): the tag and what followed it, to be shown if it proves
        #: to be text. None if it is reasoning for certain, and outside of reasoning.
        self._possible_text: list[str] | None = None
        #: Whether the opening tag in `_possible_text` may be the first word of the answer.
        self._may_begin_sentence = False
        #: The forms with an opening tag that stayed as text: their next closing tag stays, too.
        self._mentioned_forms: set[_TagForm] = set()

        #: Whether a visible character of the answer was returned or withheld. Retracted text does
        #: not count.
        self._has_answer = False
        #: Whether reasoning was removed.
        self._has_removed = False
        #: Whether the white space that comes next is dropped: it stands between reasoning and
        #: answer.
        self._drops_white_space = False
        #: Whether an opening tag around the whole answer was removed.
        self._has_removed_answer_tag = False

        #: The line that the next text continues.
        self._line = _Line()
        #: Whether that line stands in a fenced block of code.
        self._is_fenced = False

    def feed(self, piece: str) -> list[FilteredItem]:
        """Return what can be shown now that this piece has arrived."""
        return self._read(piece, is_last=False)

    def end(self) -> list[FilteredItem]:
        """Return what can be shown at the end of the answer, withheld text included."""
        output = self._read("", is_last=True)
        withheld = self._withheld
        self._withheld = []
        return [*withheld, *output]

    def _read(self, piece: str, *, is_last: bool) -> list[FilteredItem]:
        """Return what can be shown or retracted. The rest stays in `_unread` for the next piece."""
        self._unread += piece
        output: list[FilteredItem] = []
        has_more = True
        while has_more:
            if self._open_form is None:
                has_more = self._read_text(output, is_last=is_last)
            else:
                has_more = self._skip_reasoning(self._open_form, output, is_last=is_last)
        return output

    def _read_text(self, output: list[FilteredItem], *, is_last: bool) -> bool:
        """Show the text up to the next tag, and decide about the tag.

        Return whether there is more to read.
        """
        if self._drops_white_space:
            self._unread = self._unread.lstrip()
        may_have_tag = _FIRST_CHARS.search(self._unread) is not None
        tag = None
        if may_have_tag:
            tag = _TAG.search(self._unread)

        if tag is None:
            text = self._unread
            if may_have_tag:
                text = self._before_partial_tag(is_last=is_last)
            # White space before the first word waits: if a tag follows, it is not shown. All
            # beyond the limit is dropped.
            if not self._has_answer and not is_last and not text.strip():
                self._unread = self._unread[-_MAX_WHITE_SPACE:]
                return False
            self._unread = self._unread[len(text) :]
            self._show(text, output)
            return False

        # Whether the tag is reasoning or a word depends on what follows it.
        after = self._unread[tag.end() :]
        if not is_last and _waits_for_text(after):
            return False

        # White space before the first word is shown only together with a tag that stays.
        before = self._unread[: tag.start()]
        if self._has_answer or before.strip():
            self._show(before, output)
            before = ""
        self._unread = after
        if not self._remove_tag(tag, after, output):
            self._show(before + tag[0], output)
        return True

    def _skip_reasoning(self, form: _TagForm, output: list[FilteredItem], *, is_last: bool) -> bool:
        """Skip reasoning up to its closing tag. Return whether there is more to read."""
        closing = _CLOSING_PATTERNS[form].search(self._unread)
        if closing:
            after = self._unread[closing.end() :]
            # Whether the pair of tags belongs to a sentence depends on what follows it.
            if self._may_begin_sentence and not is_last and _waits_for_text(after):
                return False

            inside = self._unread[: closing.start()]
            self._unread = after
            if self._is_text_about_tags(inside, after):
                text = "".join([*(self._possible_text or ()), inside, closing[0]])
                self._open_form = None
                self._possible_text = None
                self._show(text, output)
            else:
                self._end_reasoning()
            return True

        skipped = self._before_partial_tag(is_last=is_last)
        self._unread = self._unread[len(skipped) :]
        if self._possible_text is None:
            return False

        self._possible_text.append(skipped)
        if is_last:  # the tag was never closed, so the text was about it
            text = "".join(self._possible_text)
            self._open_form = None
            self._possible_text = None
            self._show(text, output)
        return False

    def _is_text_about_tags(self, inside: str, after: str) -> bool:
        """Return whether a pair of tags is part of a sentence: "Use <think>...</think> for it".

        `inside` is the unread text before the closing tag, and `after` the text after that tag.
        """
        if self._possible_text is None:
            return False
        content = "".join([*self._possible_text[1:], inside])
        if self._may_begin_sentence and _continues_sentence(after) and "\n" not in content:
            return True
        if not self._has_answer:
            return False
        # Between tags that a sentence mentions there are dots or such, and no letter or digit. A
        # pair with nothing inside is what a model writes that did not reason.
        has_words = any(map(str.isalnum, content))
        return bool(content.strip()) and not has_words

    def _before_partial_tag(self, *, is_last: bool) -> str:
        """Return the unread text before the beginning of a tag whose end has not arrived yet."""
        if is_last:
            return self._unread
        partial_tag = _PARTIAL_TAG.search(self._unread)
        if partial_tag is None:
            return self._unread
        return self._unread[: partial_tag.start()]

    def _end_reasoning(self) -> None:
        """Note that what comes next is the answer, or goes on with it."""
        self._open_form = None
        self._possible_text = None
        self._has_removed = True
        self._drops_white_space = not self._has_answer
        # Withheld text before this reasoning may still prove to be unopened reasoning. So what
        # comes next is withheld behind it.
        if not self._has_answer:
            self._holds_back = False

    def _remove_tag(self, tag: re.Match[str], after: str, output: list[FilteredItem]) -> bool:
        """Begin or end reasoning at a tag, or drop a tag around the answer.

        Return whether the tag is removed. A tag that a text is about stays.
        """
        group = str(tag.lastgroup)
        if group in _OPENING_GROUPS:
            return self._open(_OPENING_GROUPS[group], tag[0], after)
        if group in _CLOSING_GROUPS:
            return self._close_unopened(_CLOSING_GROUPS[group], after, output)
        if group == "answer_start":
            return self._begin_answer(output)
        # Without reasoning before it, the mark is text.
        if group == "answer_mark":
            return self._has_removed
        if group == "answer_tag":
            return self._remove_answer_tag(tag[0])

        # An empty tag before the answer stands in place of reasoning.
        self._drops_white_space = not self._has_answer
        return not self._has_answer

    @property
    def _is_quoted(self) -> bool:
        """Whether the next character stands in code or directly after a quotation mark."""
        return self._is_fenced or self._line.is_in_code or self._line.last in _BEFORE_QUOTED

    def _begin_answer(self, output: list[FilteredItem]) -> bool:
        """Retract all text before a mark that begins an answer. Return False if it is quoted."""
        if self._is_quoted:
            return False
        self._retract(output)
        return True

    def _remove_answer_tag(self, tag: str) -> bool:
        """Return whether a tag stands around the whole answer, so that it is removed."""
        is_closing = tag.startswith("</")
        if not is_closing:
            self._has_removed_answer_tag = self._has_removed and not self._has_answer
        return self._has_removed_answer_tag

    def _open(self, form: _TagForm, tag: str, after: str) -> bool:
        """Begin reasoning at an opening tag. Return False for a tag that a text is about.

        *Undecided* means that the tag and what follows are kept in `_possible_text` until the
        closing tag (`_is_text_about_tags`) or the end of the answer shows what they are.
        *After text* means after a visible character of the answer (`_has_answer`). The first row
        that fits counts:

        | where the tag is       | the tag is a  | what follows it        | it begins |
        |------------------------|---------------|------------------------|-----------|
        | in code or quotes      | any           | anything               | text      |
        | before all text        | any           | the rest of a sentence | undecided |
        | before all text        | any           | anything else          | reasoning |
        | after text             | special token | anything               | reasoning |
        | after text             | other         | a space                | text      |
        | at the start of a line | other         | anything else          | reasoning |
        | behind text in a line  | other         | anything else          | undecided |
        """
        # A space after the tag makes it a word of a sentence: "Use <think> to start".
        is_before_space = after[:1].isspace() and after[:1] != "\n"
        is_word = self._has_answer and is_before_space and not form.is_special_token
        if self._is_quoted or is_word:
            self._mentioned_forms.add(form)
            return False

        self._open_form = form
        self._may_begin_sentence = not self._has_answer and _continues_sentence(after)
        is_at_beginning = not self._has_answer or self._line.is_blank
        is_certain = is_at_beginning or form.is_special_token
        self._possible_text = None
        if self._may_begin_sentence or not is_certain:
            self._possible_text = [tag]
        return True

    def _close_unopened(self, form: _TagForm, after: str, output: list[FilteredItem]) -> bool:
        """Retract all text before a closing tag without an opening one.

        Return False for a tag that a text is about. A tag inside code counts, too: the reasoning
        may have left a block of code open.
        """
        if form in self._mentioned_forms:  # it closes an opening tag that stayed
            self._mentioned_forms.discard(form)
            return False
        if self._line.last in _BEFORE_QUOTED and after[:1] in _AFTER_QUOTED:
            return False
        if self._is_closing_tag_a_word(after):  # "the tag </think> ends it"
            return False
        if self._has_removed and not after.strip():  # a stray tag at the end of an answer
            return True

        # In "<think>plan</think>more plan</think>Hello" reasoning was removed before this tag. What
        # lies between is reasoning too, but the model does write opening tags. So the flag stays
        # off, and the later answers of this model are not held back.
        if not self._has_removed:
            self.has_unopened_reasoning = True
        self._retract(output)
        return True

    def _is_closing_tag_a_word(self, after: str) -> bool:
        """Return whether a closing tag is a word of a sentence: "It writes </think> at the end".

        Such a tag has a space and a word before it, and the sentence goes on behind it.
        """
        if not self._has_answer:
            return _continues_sentence(after)
        is_after_a_word = self._line.last.isspace() and not self._line.is_blank
        ends_line = not after.strip() or after.lstrip(" \t")[:1] == "\n"
        is_before_a_sentence = after[:1] == " " and after.lstrip()[:1].isupper()
        return is_after_a_word and not ends_line and not is_before_a_sentence

    def _retract(self, output: list[FilteredItem]) -> None:
        """Take back all text that was returned or withheld. What comes next is the answer."""
        if self._has_answer and not self._holds_back:
            output[:] = [RETRACTION]
        self._withheld.clear()
        self._has_answer = False
        self._is_fenced = False
        self._line = _Line()
        self._end_reasoning()

    def _show(self, text: str, output: list[FilteredItem]) -> None:
        """Append a text of the answer to the output, or withhold it."""
        if not text:
            return
        self._drops_white_space = False
        self._has_answer = self._has_answer or bool(text.strip())
        self._read_lines(text)
        if self._holds_back:
            self._withheld.append(text)
        else:
            output.append(text)

    def _read_lines(self, text: str) -> None:
        """Note where the text leaves off: in which line, and whether in a block of code."""
        *line_ends, last_line = text.split("\n")
        for line_end in line_ends:
            self._line.add(line_end)
            if self._line.is_fence:
                self._is_fenced = not self._is_fenced
            self._line = _Line()
        self._line.add(last_line)


def _waits_for_text(after: str) -> bool:
    """Return whether to wait for the text after a tag: only white space has arrived so far."""
    return len(after) <= _MAX_WHITE_SPACE and not after.strip()


def _continues_sentence(after: str) -> bool:
    """Return whether the text after a tag continues a sentence.

    It does if it begins with punctuation, or with a space and a small letter.
    """
    if after[:1] == " ":
        return after.lstrip()[:1].islower()
    return after[:1] in _PUNCTUATION


def split_reasoning(answer: str) -> tuple[str, bool]:
    """Return a whole answer without its reasoning, and whether the reasoning had no opening tag."""
    if not _FIRST_CHARS.search(answer):
        return answer, False
    reasoning_filter = ReasoningFilter()
    texts: list[str] = []
    for item in (*reasoning_filter.feed(answer), *reasoning_filter.end()):
        if isinstance(item, Retraction):
            texts.clear()
        else:
            texts.append(item)
    return "".join(texts), reasoning_filter.has_unopened_reasoning


def without_reasoning(answer: str) -> str:
    """Return a whole answer without the reasoning that the model wrote into it."""
    return split_reasoning(answer)[0]
