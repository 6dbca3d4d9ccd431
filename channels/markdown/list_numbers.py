"""The numbers that the items of ordered lists are shown with."""

from __future__ import annotations

import re
from collections.abc import Sequence

from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from sayso.channels.markdown.parser import parser, source_lines


def list_numbers(items: Sequence[SyntaxTreeNode | Token]) -> list[str]:
    """Return the numbers of an ordered list, each with its sign and a space.

    `items` are the items as the parser returns them: `info` are the digits, and `markup` is the
    sign behind them. The numbers stay as they were written, such as "3. ", "5) " and "007. ". Only
    a list that repeats one number in each item is counted up from that number: this is how Markdown
    leaves the counting to the reader.
    """
    numbers = [item.info for item in items]
    if len(set(numbers)) == 1:
        first = int(numbers[0])
        numbers[1:] = [str(first + place) for place in range(1, len(numbers))]
    return [f"{number}{item.markup} " for number, item in zip(numbers, items, strict=True)]


#: The number of an item of an ordered list, behind the signs of the quotes and bullets around it.
_ITEM_NUMBER = re.compile(r"^[ >]*(?:[-+*] +)*(\d{1,9}[.)])(?=\s)", re.MULTILINE)


def with_shown_numbers(md: str) -> str:
    """Return Markdown in which each item of an ordered list has the number that it is shown with.

    A part of the text then shows the same numbers as the whole.
    """
    # Only a list that repeats a number is counted up, so most texts need no parsing.
    lines = source_lines(md)
    written = _ITEM_NUMBER.findall("\n".join(lines))
    if len(set(written)) == len(written):
        return md

    for node in SyntaxTreeNode(parser().parse(md)).walk():
        if node.type != "ordered_list":
            continue
        numbers = list_numbers(node.children)
        for item, number in zip(node.children, numbers, strict=True):
            old = f"{item.info}{item.markup}"
            new = number.rstrip()
            if item.map and new != old:
                first, end = item.map
                lines[first] = re.sub(rf"(?<!\d){re.escape(old)}", new, lines[first], count=1)
                # The other lines of the item stay below its first word.
                indent = " " * (len(new) - len(old))
                for place in range(first + 1, end):
                    if lines[place].startswith(" "):
                        lines[place] = indent + lines[place]
    return "\n".join(lines)
