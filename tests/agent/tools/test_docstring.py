"""Docstrings: all that an author wrote reaches the model, each part where it belongs."""

from __future__ import annotations

import functools

import pytest

from sayso.agent import Tool
from sayso.agent.tools.signature import read_docstring

GOOGLE = """Delete a file.

It is gone for good.

Args:
    path: Where it is,
        from the root.

    mode (str): How.

Never call this for anything under /keep.

Returns:
    str: What was deleted.

Raises:
    OSError: It is not there.

Example:
    delete("/tmp/x")
"""
NUMPY = """Delete a file.

It is gone for good.

Parameters
----------
path : str
    Where it is,
    from the root.
mode : {'now', 'later'}, optional
    How.

Never call this for anything under /keep.

Returns
-------
str
    What was deleted.

Raises
------
OSError
    It is not there.

Warnings
--------
There is no way back.
"""
SPHINX = """Delete a file.

It is gone for good.

:param str path: Where it is,
    from the root.
:param mode: How.
:type mode: str
:raises OSError: It is not there.
:returns: What was deleted.

Never call this for anything under /keep.
"""


def documented(docstring):
    """A function that says this."""

    def delete(path: str, mode: str = "now") -> str:
        return path + mode

    delete.__doc__ = docstring
    return delete


@pytest.mark.parametrize(
    ("docstring", "last"),
    [
        (GOOGLE, 'delete("/tmp/x")'),
        (NUMPY, "There is no way back."),
        (SPHINX, "anything under /keep."),
    ],
    ids=["google", "numpy", "sphinx"],
)
def test_all_that_is_written_reaches_the_model(docstring, last):
    """What stands behind the parameters too: that is where warnings are. Errors are nothing that a model handles."""
    description, described = read_docstring(documented(docstring))
    assert described == {"path": "Where it is, from the root.", "mode": "How."}
    assert description.startswith("Delete a file.\n\nIt is gone for good.\n\n")
    assert "Never call this for anything under /keep." in description
    assert "What was deleted." in description
    assert description.endswith(last)
    for theirs in ("Where", "How", "OSError", "Args", "Parameters", "Raises", ":type", "\n\n\n"):
        assert theirs not in description


def test_an_entry_for_several_parameters_describes_each():
    """NumPy allows it."""
    text = "Move.\n\nParameters\n----------\nx, y : int\n    In millimeters.\nz: int\n    Up.\n"
    assert read_docstring(documented(text)) == (
        "Move.",
        {"x": "In millimeters.", "y": "In millimeters.", "z": "Up."},
    )


def test_a_warning_with_a_colon_behind_numpy_entries_stays():
    """It looks like the first line of an entry, but a blank line parts it from them."""
    parameters = "Parameters\n----------\npath: str\nmode:str\n    How.\n"
    warning = "Warning: this cannot be undone."
    for behind in (warning, f"{warning}\n\nReturns\n-------\nstr\n    What."):
        description, described = read_docstring(documented(f"Delete.\n\n{parameters}\n{behind}"))
        assert description == f"Delete.\n\n{behind}"
        assert described == {"mode": "How."}


def test_a_docstring_of_parameters_alone_describes_nothing_else():
    """The tool is then described by its name, as one without a docstring."""
    made = Tool.from_function(documented("Args:\n    path: Where.\n"))
    assert made.description == "Delete"
    assert made.parameters[0].description == "Where."


@pytest.mark.parametrize(
    "words", ["Parameters: as you like.", "Args:\nnone at all", "Parameters\nare rare"]
)
def test_words_that_begin_no_section_stay(words):
    """A section has something indented, or a line under its title."""
    description, _ = read_docstring(documented(f"Delete.\n\n{words}"))
    assert description == f"Delete.\n\n{words}"


def test_a_partial_is_described_as_its_function():
    """And not as Python describes partials."""
    assert read_docstring(functools.partial(documented("Delete."), "x"))[0] == "Delete."
