"""Optional libraries: imports those of an extra, or says which command installs what is missing.

An *extra* is a group of optional libraries in Python's packaging, such as `otel` in `sayso[otel]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from importlib.util import find_spec

#: A requirement of an extra, as a package's metadata lists it: `mcp>=2.3; extra == "mcp"`.
_OF_AN_EXTRA = re.compile(r"(?P<requirement>[^;]+);.*\bextra\s*==\s*['\"](?P<extra>[\w-]+)['\"]")
#: A requirement that is another extra of Sayso itself.
_OWN_EXTRA = re.compile(r"sayso\[(?P<extra>[\w-]+)\]")


class LibraryError(ImportError):
    """Raised when a library of an extra is missing or cannot be imported.

    The message has the command that installs it.
    """


def import_libraries(extra: str, *modules: str) -> None:
    """Import these modules, which need the libraries of an extra. Raises LibraryError."""
    for module in modules:
        try:
            import_module(module)
        except Exception as exc:
            # A broken library may raise any error: ImportError, OSError, AttributeError.
            raise LibraryError(_why_not_imported(exc, extra)) from exc


def missing_library(module: str, extra: str) -> str:
    """Return the text which says that a module is missing, and how to install its extra."""
    problem = f"the module {module!r} is missing, which the extra {extra!r} brings"
    return f"{problem}: {install_command(extra)}"


def _why_not_imported(exc: Exception, extra: str) -> str:
    """Return the message for an import that failed: a library is missing, or it is broken."""
    missing = _missing_module(exc)
    if missing:
        return missing_library(missing, extra)
    reinstall = install_command(extra).replace("pip install", "pip install --force-reinstall", 1)
    return (
        f"a library of the extra {extra!r} is installed and cannot be imported "
        f"({type(exc).__name__}: {exc}): install it again: {reinstall}"
    )


def _missing_module(exc: BaseException | None) -> str:
    """Return the module that is not installed at all; "" if a library is installed and broken.

    Libraries wrap the error in one with their own advice, so the first cause counts.
    """
    missing = ""
    while exc is not None:
        if isinstance(exc, ModuleNotFoundError) and exc.name:
            missing = exc.name
        exc = exc.__cause__ or exc.__context__
    parent = missing.rpartition(".")[0]
    if is_installed(missing) or (parent and not _is_namespace(parent)):
        return ""  # a part of an installed library is missing: another version, or a damaged one
    return missing


def _is_namespace(package: str) -> bool:
    """Return whether several distributions may have parts of this package, as `google` has."""
    try:
        spec = find_spec(package)
    except (ModuleNotFoundError, ValueError):
        return True
    return spec is None or spec.origin is None


def is_installed(module: str) -> bool:
    """Return whether a module can be imported. Only its parent package is imported for that."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the parent package is missing
        return False
    except ValueError:  # `sys.modules` has None for the module, which forbids to import it
        return False


def install_command(extra: str) -> str:
    """Return the command that installs the libraries of an extra, such as `pip install 'mcp>=2.3'`.

    It names the libraries themselves, because `sayso[mcp]` cannot be installed from a package index
    where Sayso came from a file or a checkout.
    """
    try:
        requirements = requires("sayso") or []
    except PackageNotFoundError:  # run from a checkout that is not installed
        return f"pip install '.[{extra}]'"
    libraries = sorted(set(_libraries(extra, requirements)))
    return " ".join(["pip install", *(f"'{each}'" for each in libraries)])


def _libraries(extra: str, requirements: list[str]) -> Iterator[str]:
    """Yield the libraries of an extra, out of all requirements of the package.

    A requirement may be another extra of Sayso: then the libraries of that one are meant.
    """
    for requirement in requirements:
        match = _OF_AN_EXTRA.fullmatch(requirement)
        if match is None or match["extra"] != extra:
            continue
        library = match["requirement"].strip()
        other_extra = _OWN_EXTRA.fullmatch(library)
        if other_extra:
            yield from _libraries(other_extra["extra"], requirements)
        else:
            yield library
