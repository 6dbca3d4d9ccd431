"""docs/reference/observability.md: it has all metrics of the code with their types and labels, and no others."""

from __future__ import annotations

import ast
import re

from sayso.infra.metrics import REGISTRY
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "reference" / "observability.md").read_text()
TABLES = PAGE.split("## Prometheus metrics")[1].split("## Events of a run")[0]
ROWS = re.findall(r"^\| (`sayso_[^|]*) \| (\w+) \| ?([^|]*?) ?\|", TABLES, re.MULTILINE)
#: Each metric on the page: its type and its labels.
SHOWN = {
    name: (kind, re.findall(r"`(\w+)`", labels))
    for names, kind, labels in ROWS
    for name in re.findall(r"`(\w+)`", names)
}


def counted() -> dict[str, tuple[str, list[str]]]:
    """Return the metrics that processes count."""
    return {
        f"{name}_total" if each._type == "counter" else name: (each._type, list(each._labelnames))
        for each, (name, *_) in REGISTRY._collector_to_names.items()
    }


def read_at_a_scrape() -> dict[str, tuple[str, list[str]]]:
    """Return the metrics that collectors compute when Prometheus scrapes, read from their source code."""
    tree = ast.parse((ROOT / "config" / "wiring" / "gauges.py").read_text())
    labels: dict[str, list[str]] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Name("GaugeMetricFamily"), args=[ast.Constant(name), *_], keywords=named
            ):
                (given,) = [each.value for each in named if each.arg == "labels"]
                labels[name] = ast.literal_eval(given)
            case ast.Constant(str(name)) if re.fullmatch(r"sayso_\w+", name):
                labels.setdefault(name, [])
    return {name: ("gauge", given) for name, given in labels.items()}


def test_the_tables_list_every_metric_with_its_type_and_labels() -> None:
    """The table is read as text, and the metrics from the code."""
    assert counted() | read_at_a_scrape() == SHOWN
    assert len(SHOWN) > 40


def test_names_follow_the_conventions_of_prometheus() -> None:
    """Counters end with _total, times are in seconds, sizes in bytes."""
    for name, (kind, _) in SHOWN.items():
        assert name.endswith("_total") == (kind == "counter"), name
        assert kind != "histogram" or name.endswith("_seconds"), name
        assert not re.search(r"_(ms|milliseconds|minutes|kb|mb|count|usd)(_|$)", name), name


def test_no_label_can_hold_a_person_or_a_text() -> None:
    """Labels hold names from the configuration, and outcomes."""
    known = {
        "channel",
        "outcome",
        "status",
        "model",
        "type",
        "tool",
        "state",
        "result",
        "error",
        "class",
        "answer",
        "form",
        "reason",
        "process",
        "version",
        "python",
    }
    assert {label for _, labels in SHOWN.values() for label in labels} <= known
