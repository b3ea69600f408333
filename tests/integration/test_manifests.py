"""The manifests, the dashboard and the alerts of examples/ are what Kubernetes, KEDA, Grafana and Prometheus take."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from millpond.cli import main
from millpond.metrics._families import FAMILIES
from promql import EXAMPLES, alerting, dashboard, documents, scaling, shown

SCHEMAS = Path(__file__).parent / "schemas"
MANIFESTS = sorted((EXAMPLES / "kubernetes").glob("*.yaml"))
SUFFIXES = ("_bucket", "_count", "_sum")


def check(document: dict[str, Any]) -> None:
    """Raise where a manifest is not what its kind says."""
    kind = f"{document['apiVersion']} {document['kind']}"
    if kind == "keda.sh/v1alpha1 ScaledObject":
        schema = json.loads((SCHEMAS / "keda.json").read_text())
    else:
        schema = json.loads((SCHEMAS / "kubernetes.json").read_text())
        schema["$ref"] = f"#/definitions/{schema['kinds'][kind]}"
    jsonschema.Draft7Validator(schema).validate(document)


def pods(document: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = document["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_a_manifest_is_what_its_kinds_say(path):
    found = documents(path)
    assert found
    for document in found:
        check(document)


def test_the_check_sees_what_is_wrong():
    [worker, _, _] = documents(EXAMPLES / "kubernetes" / "worker.yaml")
    [scaled] = documents(EXAMPLES / "kubernetes" / "keda.yaml")
    for change in (
        lambda one: one["spec"].update(replica=3),
        lambda one: pods(one)["containers"][0]["livenessProbe"].update(periodSecond=1),
        lambda one: pods(one).update(terminationGracePeriodSeconds="45s"),
    ):
        wrong = copy.deepcopy(worker)
        change(wrong)
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)
    scaled["spec"]["maxReplicas"] = 3
    with pytest.raises(jsonschema.ValidationError):
        check(scaled)


def test_the_commands_of_the_manifests_are_commands():
    for path in MANIFESTS:
        for document in documents(path):
            if document["kind"] != "Deployment":
                continue
            [container] = pods(document)["containers"]
            line: list[str] = container["command"] + container["args"]
            program, verb, *arguments = line
            assert program == "millpond"
            if verb in main.commands:
                command = main.commands[verb]
                command.make_context(verb, arguments, resilient_parsing=False)
            else:  # a part that is not in this tree
                assert verb == "web"


def test_what_the_manifests_name_is_there():
    everything = [document for path in MANIFESTS for document in documents(path)]
    of_kind = {kind: [one for one in everything if one["kind"] == kind] for kind in {one["kind"] for one in everything}}
    deployments = {one["metadata"]["name"]: one for one in of_kind["Deployment"]}
    [secret] = of_kind["Secret"]
    for one in deployments.values():
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert one["spec"]["selector"]["matchLabels"].items() <= labels.items()
        [container] = pods(one)["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for probe in (value for name, value in container.items() if name.endswith("Probe")):
            assert probe["httpGet"]["port"] in ports
            assert probe["httpGet"]["path"] in ("/healthz", "/readyz")
        for variable in container["env"]:
            assert variable["valueFrom"]["secretKeyRef"]["key"] in secret["stringData"]
        assert any(str(port) in argument for argument in container["args"] for port in ports.values())
    for one in (*of_kind["Service"], *of_kind["PodDisruptionBudget"]):
        selector = one["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        assert any(selector.items() <= each["metadata"]["labels"].items() for each in deployments.values())
    [scaled] = of_kind["ScaledObject"]
    assert scaled["spec"]["scaleTargetRef"]["name"] in deployments


def test_a_worker_has_longer_to_end_than_what_it_runs():
    [worker, _, _] = documents(EXAMPLES / "kubernetes" / "worker.yaml")
    [container] = pods(worker)["containers"]
    [grace] = [float(each.partition("=")[2]) for each in container["args"] if each.startswith("--grace=")]
    assert pods(worker)["terminationGracePeriodSeconds"] >= grace + 10
    assert container["livenessProbe"]["timeoutSeconds"] > 5  # what /healthz takes to say that a loop is stuck


# --- the dashboard, the alerts and the scaler: every metric and label that they name exists ---------------------------


def family_of(name: str) -> str:
    return next((name.removesuffix(end) for end in SUFFIXES if name.removesuffix(end) in FAMILIES), name)


@pytest.mark.parametrize("expression", [*shown(), *alerting(), *scaling()])
def test_an_expression_names_metrics_and_labels_that_exist(expression):
    used = re.findall(r"\b(millpond_\w+)(?:\{([^}]*)\})?", expression)
    assert used
    labels: set[str] = set()
    for name, selector in used:
        family = FAMILIES[family_of(name)]
        assert {label for label, _ in re.findall(r"(\w+)\s*(=~|!~|!=|=)", selector)} <= set(family.labels)
        labels |= set(family.labels)
    grouped = {label.strip() for group in re.findall(r"\bby \(([^)]*)\)", expression) for label in group.split(",")}
    assert grouped <= labels | {"le"}


def test_the_dashboard_shows_every_metric_and_is_whole():
    board = dashboard()
    targets = [target for panel in board["panels"] for target in panel.get("targets", ())]
    named = {family_of(name) for target in targets for name in re.findall(r"\b(millpond_\w+)", target["expr"])}
    assert named == set(FAMILIES)
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers)) and board["schemaVersion"] >= 36 and board["uid"] == "millpond"
    for panel in board["panels"]:
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= 24
    variables = {one["name"] for one in board["templating"]["list"]}
    for target in targets:
        assert target["datasource"]["uid"] == "${datasource}"
        named = set(re.findall(r"\$(\w+)", target["expr"])) - {"__rate_interval"}
        assert named <= variables == {"datasource", "pool"}
        legend = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
        assert all(re.search(rf"\bby \([^)]*\b{label}\b", target["expr"]) for label in legend)
