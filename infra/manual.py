"""Where the pages of the documentation are: messages to operators name them."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "docs"


def manual(page: str, section: str = "") -> str:
    """Return where a page such as `reference/doctor.md` is: a file of the checkout, or an address.

    The wheel has no documentation. Its metadata have the address of the site. `section` is the
    anchor of a heading on the page, "" for the whole page.
    """
    place = f"docs/{page}"
    if not (_FOLDER / page).is_file():
        place = f"{_site()}/{page.removesuffix('.md')}/"
    if section:
        return f"{place}#{section}"
    return place


def _site() -> str:
    """Return the address of the documentation."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        links = metadata("sayso").get_all("Project-URL") or []
    except PackageNotFoundError:
        # The packages were copied without being installed.
        links = []
    addresses = dict(link.split(", ", 1) for link in links)
    return str(addresses.get("Documentation", "the documentation")).rstrip("/")
