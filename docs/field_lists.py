"""A griffe extension: lines of a docstring that explain a field, as in "`name`: what it is",
become a list.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

#: The place before an explained field: the end of a line, or of a sentence.
_BEFORE_FIELD = re.compile(r"(?:\n|(?<=\. ))(?=(?:`[^`\n]+`(?:, | and )?)+: )")


class FieldLists(griffe.Extension):
    """Changes docstrings of classes before they are rendered."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        """Put each explained field on a separate line."""
        if cls.docstring:
            cls.docstring.value = _BEFORE_FIELD.sub("\n\n* ", cls.docstring.value)
