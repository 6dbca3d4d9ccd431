"""Where the documentation is that a message names."""

from __future__ import annotations

from pathlib import Path

_FOLDER = Path(__file__).resolve().parents[1] / "docs"


def manual(page: str, section: str = "") -> str:
    """Return where a page such as `reference/doctor.md` is: a file of the checkout,
    else an address.

    The wheel has no documentation. Its metadata have the address of the site.
    """
    place = f"docs/{page}"
    if not (_FOLDER / page).is_file():
        place = f"{_site()}/{page.removesuffix('.md')}/"
    if section:
        return f"{place}#{section}"
    return place


def _site() -> str:
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        links = metadata("sayso").get_all("Project-URL") or []
    except PackageNotFoundError:  # a copy of the packages alone
        links = []
    addresses = dict(link.split(", ", 1) for link in links)
    return str(addresses.get("Documentation", "the documentation")).rstrip("/")
