"""KeywordSelector: tools whose keywords the user's latest message has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sayso.agent.messages import Message, Role
from sayso.agent.selectors.scripts import has_word
from sayso.agent.tools.tool import Tool


class KeywordSelector:
    """Tools by words in the latest message (seed): upper and lower case are alike, in tool names too.

    Without messages no tool is shown; after anything but the user's words, such as a tool's result, all are; when
    nothing matches, none. A keyword counts anywhere in the text, "file" in "profile" too; with `whole_words` only as a
    word of its own, in scripts that have spaces between words. Raises ValueError for keywords that are no lists.
    """

    def __init__(self, keywords: Mapping[str, Sequence[str]], *, whole_words: bool = False) -> None:
        for name, words in keywords.items():
            if isinstance(words, str) or not all(isinstance(word, str) and word.strip() for word in words):
                raise ValueError(f"keywords of {name!r} are {words!r}: give a list of words, such as ['file', 'save']")
        self.keywords = {name.lower(): list(words) for name, words in keywords.items()}
        self.whole_words = whole_words

    async def select(self, messages: Iterable[Message], tools: Iterable[Tool]) -> Iterable[Tool]:
        """The tools of which a keyword was said."""
        said = list(messages)
        if not said:
            return []
        if said[-1].role != Role.USER:
            return tools
        text = said[-1].content.lower()
        return [tool for tool in tools if any(self._is_in(text, word) for word in self._words_of(tool))]

    def _words_of(self, tool: Tool) -> list[str]:
        return [word.lower() for word in self.keywords.get(tool.name.lower(), [])]

    def _is_in(self, text: str, word: str) -> bool:
        return has_word(text, word) if self.whole_words else word in text
