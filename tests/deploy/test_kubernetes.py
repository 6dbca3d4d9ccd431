"""deploy/kubernetes: valid for Kubernetes, within its strictest pod security standard, and run as a node would."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from sayso.config.settings.loader import load_settings
from sayso.config.settings.schema import WorkerSettings
from sayso.testing.platforms import webhooks as signing
from tests.deploy.conftest import SECRETS, Site, compose, example_environ, own, program
from tests.deploy.sandbox import ROOT
from tests.deploy.units import settings
from tests.flows.system import until

FOLDER = ROOT / "deploy" / "kubernetes"
#: The oldest version that has all we use (preStop.sleep), and the newest that the validator knows.
VERSIONS = ("1.30", "1.37")
#: How long a worker needs to end after its grace, in seconds.
ENDING = 10


def rendered(folder: Path) -> list[dict[str, Any]]:
    """Return the manifests of a kustomization."""
    done = subprocess.run(
        [program("kubectl"), "kustomize", folder], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Return the manifests of the example with the poller, by kind and name."""
    copy = shutil.copytree(FOLDER, tmp_path_factory.mktemp("copy") / "kubernetes")
    file = copy / "example" / "kustomization.yaml"
    file.write_text(file.read_text().replace("# components:", "components:"))
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in rendered(file.parent)}


def pods(manifests: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the pods' specifications by their workloads."""
    return {
        name: each["template"]["spec"]
        for name, each in specs(manifests).items()
        if "template" in each
    }


def specs(manifests: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the specifications of all manifests that have one."""
    return {name: each["spec"] for name, each in manifests.items() if "spec" in each}


def test_manifests_are_valid(manifests: dict[str, dict[str, Any]]):
    """Each key is known to Kubernetes, and has its type."""
    validator = pytest.importorskip("kubernetes_validate")
    for version in VERSIONS:
        for each in manifests.values():
            validator.validate(each, version, strict=True)
    wrong = json.loads(
        json.dumps(manifests["Deployment/sayso-web"]).replace("readinessProbe", "readynessProbe")
    )
    with pytest.raises(validator.ValidationError, match="readynessProbe"):
        validator.validate(wrong, VERSIONS[0], strict=True)


def test_the_example_as_it_stands_renders_without_the_poller():
    """A bot whose platforms send webhooks needs none, and `sayso poll` would refuse to start."""
    names = {each["metadata"]["name"] for each in rendered(FOLDER / "example")}
    assert {"sayso-web", "sayso-worker", "sayso"} <= names
    assert "sayso-poll" not in names


def test_example_bot_is_valid(tmp_path: Path):
    """The configuration in the ConfigMap passes the check of a start."""
    settings = load_settings(FOLDER / "example" / "sayso.yaml", example_environ())
    assert settings.media.store.startswith("s3://")
    assert (
        "sayso.yaml"
        in yaml.safe_load((FOLDER / "example" / "kustomization.yaml").read_text())[
            "configMapGenerator"
        ][0]["files"]
    )


def test_pods_meet_the_restricted_standard(manifests: dict[str, dict[str, Any]]):
    """They have no root user, no capability, no writable root and no token of the cluster."""
    assert len(pods(manifests)) == 3
    for pod in pods(manifests).values():
        (container,) = pod["containers"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert not pod["automountServiceAccountToken"]
        assert not pod[
            "enableServiceLinks"
        ]  # a variable SAYSO_... of a Service would be read as a setting
        assert {"requests", "limits"} <= set(container["resources"])


def test_selectors_find_their_pods_and_no_others(manifests: dict[str, dict[str, Any]]):
    """The services and disruption budgets of the web do not match workers."""
    labels = {
        n: each["template"]["metadata"]["labels"]
        for n, each in specs(manifests).items()
        if "template" in each
    }
    for name, spec in specs(manifests).items():
        if name.startswith(("Service/", "PodDisruptionBudget/")):
            selector = spec["selector"].get("matchLabels", spec["selector"])
            found = [
                workload for workload, its in labels.items() if selector.items() <= its.items()
            ]
            assert [workload.partition("/")[2] for workload in found] == [name.partition("/")[2]]


def test_only_the_readiness_probe_depends_on_redis(manifests: dict[str, dict[str, Any]]):
    """An outage of Redis must not restart the web."""
    (web,) = pods(manifests)["Deployment/sayso-web"]["containers"]
    paths = {
        name: web[name]["httpGet"]["path"]
        for name in ("readinessProbe", "livenessProbe", "startupProbe")
    }
    assert paths == {
        "readinessProbe": "/readyz",
        "livenessProbe": "/healthz",
        "startupProbe": "/healthz",
    }


def test_network_policies_open_only_the_ports_in_use(manifests: dict[str, dict[str, Any]]):
    """Each pod has a policy: its own ports, and the port of the metrics for Prometheus."""
    policies = [
        spec for name, spec in specs(manifests).items() if name.startswith("NetworkPolicy/")
    ]
    for workload, pod in pods(manifests).items():
        labels = specs(manifests)[workload]["template"]["metadata"]["labels"]
        rules = [
            rule
            for policy in policies
            if selects(policy["podSelector"], labels)
            for rule in policy["ingress"]
        ]
        (container,) = pod["containers"]
        open_to_all = [
            port["port"] for rule in rules if "from" not in rule for port in rule["ports"]
        ]
        assert open_to_all == [port["name"] for port in container.get("ports", [])]
        assert [port["port"] for rule in rules if "from" in rule for port in rule["ports"]] == [
            9464
        ]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a label selector finds these labels."""
    assert all(each["operator"] == "In" for each in selector.get("matchExpressions", []))
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in selector.get("matchExpressions", [])
    )


def test_workers_have_time_to_end_before_they_are_killed(manifests: dict[str, dict[str, Any]]):
    """In every deployment the grace period is longer than a worker needs to hand over its work."""
    needed = WorkerSettings().grace_seconds + ENDING
    assert pods(manifests)["StatefulSet/sayso-worker"]["terminationGracePeriodSeconds"] >= needed
    assert int(compose()["services"]["worker"]["stop_grace_period"].removesuffix("s")) >= needed
    assert int(settings("sayso-worker@.service")["TimeoutStopSec"][0]) >= needed


def test_pods_answer_a_message(manifests: dict[str, dict[str, Any]], site: Site):
    """Web and worker run with the arguments, user and volumes of their pods. Each has a disk of its own."""
    with ExitStack() as stack:
        run_pod(site, stack, manifests, "Deployment/sayso-web")
        until(site.is_ready)
        run_pod(site, stack, manifests, "StatefulSet/sayso-worker")
        before = len(site.platforms.sent)
        headers, body = signing.telegram_hook(
            SECRETS["TELEGRAM_SECRET"], signing.telegram_text(31, "count the apples")
        )
        assert (
            site.post("http://127.0.0.1:8000/hooks/tg", headers=headers, content=body).status_code
            == 200
        )
        until(lambda: "There are 3 apples." in json.dumps(site.platforms.sent[before:]))


def test_a_pod_with_a_random_user_takes_webhooks(manifests: dict[str, dict[str, Any]], site: Site):
    """OpenShift runs pods as a user that is not in /etc/passwd. Some runtimes set no HOME for it."""
    context = {"runAsUser": 1000650000, "runAsGroup": 0, "fsGroup": 0}
    with ExitStack() as stack:
        run_pod(
            site,
            stack,
            manifests,
            "Deployment/sayso-web",
            context=context,
            prefix=["env", "-u", "HOME"],
        )
        until(site.is_ready)
        body = signing.slack_text("1795204800.000200", "hello")
        headers, body = signing.slack_hook(SECRETS["SLACK_SIGNING_SECRET"], body, time.time())
        assert (
            site.post("http://127.0.0.1:8000/hooks/desk", headers=headers, content=body).status_code
            == 200
        )


def run_pod(
    site: Site, stack: ExitStack, manifests: dict[str, dict[str, Any]], name: str, *,
    context: Mapping[str, int] | None = None, prefix: Sequence[str] = (),
) -> None:  # fmt: skip
    """Run the container of a pod until the stack closes. Its volumes are prepared as a node does for its fsGroup."""
    pod = pods(manifests)[name]
    (container,), context = pod["containers"], context or pod["securityContext"]
    mounts = {"/tmp": "tmp"}
    for mount in container["volumeMounts"]:
        if mount["name"] == "bot":
            mounts[mount["mountPath"]] = "bot"
        elif mount["name"] == "data":
            mounts[mount["mountPath"]] = disk = (
                f"disk-{name.partition('/')[2]}-{context['runAsUser']}"
            )
            own(site.sandbox.layer(disk), f"0:{context['fsGroup']}", 0o2775)
    stack.enter_context(
        site.sandbox.running(
            [*prefix, *site.image.entrypoint, *container["args"]], layers=site.image.layers, cwd=site.image.cwd,
            user=f"{context['runAsUser']}:{context['runAsGroup']}", mounts=mounts, log=site.log(name.partition("/")[2]),
            environ={**site.image.environ, **example_environ(), "REDIS_URL": "redis://:hush@127.0.0.1:6379/0"},
        )
    )  # fmt: skip
