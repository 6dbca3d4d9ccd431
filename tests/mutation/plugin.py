"""Plugin: runs pytest for mutmut, so that each mutant meets every test that could detect it, the fast ones first.

mutmut runs all tests once and assigns to each function the tests that called it. It would miss calls at the import of
a test module, and calls that a cache answers; this plugin counts them.
"""

from __future__ import annotations

import os
import sys
from collections import Counter, defaultdict
from collections.abc import Generator

import pytest
from hypothesis import settings
from mutmut.state import state

settings.register_profile(
    "mutation", max_examples=20, derandomize=True, database=None, deadline=None
)
settings.load_profile("mutation")

#: Modules that work differently on Redis, or only there.
ON_REDIS = (
    "sayso.pending.repository",
    "sayso.pending.redis_repository",
    "sayso.pending.store",
    "sayso.pending.audit",
)

_at_import: dict[str, set[str]] = defaultdict(set)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Count the calls at a test module's import as calls of each of its tests."""
    state()._stats.clear()
    report = yield
    if isinstance(collector, pytest.Module):
        _at_import[collector.nodeid] |= state()._stats
    state()._stats.clear()
    return report


#: Parameters that try every position of a long value; here the first, the last and two of ten are enough.
PLACES = frozenset({"index", "left", "place"})


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Drop most positions of such tests, and start with tests without a server, which kill most mutants."""
    left_out = [item for item in items if _is_one_of_many(item)]
    config.hook.pytest_deselected(items=left_out)
    cases: Counter[str] = Counter()
    order: dict[pytest.Item, tuple[bool, int]] = {}
    for item in items:
        name = item.nodeid.partition("[")[0]
        order[item] = (
            "redis" in item.nodeid or "redis_client" in getattr(item, "fixturenames", ()),
            cases[name],
        )
        cases[name] += 1
    items[:] = sorted((item for item in items if item not in left_out), key=order.__getitem__)


def _is_one_of_many(item: pytest.Item) -> bool:
    given = getattr(item, "callspec", None)
    places = [given.params[name] for name in PLACES & set(given.params)] if given else []
    return any(isinstance(place, int) and place > 2 and place % 10 < 8 for place in places)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Clear the caches while calls are counted, so that no test uses another's result."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        _clear_caches()
        state()._stats |= _at_import[item.nodeid.partition("::")[0]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Count a Redis variant only where Redis matters: elsewhere the memory variant makes the same calls."""
    if "[redis" in item.nodeid:
        state()._stats -= {name for name in state()._stats if not name.startswith(ON_REDIS)}


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Report a mutant as killed if a test module fails to import; pytest would report a usage error."""
    if report.failed and "__mutmut_" in os.environ.get("MUTANT_UNDER_TEST", ""):
        os._exit(pytest.ExitCode.TESTS_FAILED)


def _clear_caches() -> None:
    for name, module in list(sys.modules.items()):
        if name.startswith("sayso.pending"):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear"):
                    value.cache_clear()
