"""Small pages for people in a browser: how an installation ended, or that a link leads nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import flask
from flask import Flask, Response
from jinja2 import Environment, PackageLoader, Template
from werkzeug.exceptions import HTTPException, MethodNotAllowed

#: The icon of all pages: a white check mark on blue. Each page contains it, so no path serves it.
ICON = (
    "data:image/svg+xml,%3Csvg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 32 32'"
    "%3E%3Crect width='32' height='32' rx='10' fill='%234f46e5'/%3E%3Cpath d='m9 16.5"
    " 5 5 9.5-11' fill='none' stroke='white' stroke-width='3.5' stroke-linecap='round"
    "' stroke-linejoin='round'/%3E%3C/svg%3E"
)
#: The page loads nothing but its own styles and its icon, and no other page shows it.
_CSP = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
#: What people read who open a link that leads nowhere, by HTTP status: a title and a line.
_ERRORS = {
    404: (
        "Not found",
        "There is nothing at this address. Look for a part that was lost when the link was copied.",
    ),
    405: ("Nothing to see here", "This address is for programs."),
    410: ("This file is gone", "Links to files work for a while. Ask the bot for the file again."),
    500: ("That did not work", "Something went wrong here. Try again in a minute."),
}


class Link(NamedTuple):
    """A link of a page."""

    url: str
    label: str


def small_page(
    title: str,
    lines: Sequence[str],
    *,
    status: int = 200,
    link: Link | None = None,
) -> Response:
    """Return a page with a title, some lines and a link, None for no link.

    It loads nothing, and no cache stores it.
    """
    text = _template().render(title=title, lines=lines, link=link, icon=ICON)
    return harden(flask.make_response(text, status))


def harden(response: Response) -> Response:
    """Return the answer with headers that let its page load nothing, and hide its address.

    The address may hold a secret, such as an invitation.
    """
    response.headers["Content-Security-Policy"] = _CSP
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-store"
    return response


def add_error_pages(app: Flask) -> None:
    """Show a page where a browser opens a link that leads nowhere.

    Webhooks keep their short answers.
    """

    @app.errorhandler(HTTPException)
    def show(error: HTTPException) -> Response | HTTPException:
        page = _ERRORS.get(error.code or 0)
        # A person opens a link with GET. An error with a response has its own page.
        is_reading = flask.request.method in ("GET", "HEAD")
        if page is None or error.response is not None or not is_reading:
            return error
        title, line = page
        answer = small_page(title, [line], status=error.code or 500)
        if isinstance(error, MethodNotAllowed) and error.valid_methods:
            answer.headers["Allow"] = ", ".join(sorted(error.valid_methods))
        return answer


@cache
def _template() -> Template:
    pages = Environment(loader=PackageLoader("sayso.channels.web"), autoescape=True)
    return pages.get_template("page.html")
