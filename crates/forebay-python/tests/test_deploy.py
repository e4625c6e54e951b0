"""The files for Kubernetes in deploy/: its schemas accept them, and the objects that kustomize builds fit together."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")
schemas: Any = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")

DEPLOY = pathlib.Path(__file__).parents[3] / "deploy"
# The oldest version that docs/how-to/kubernetes.md promises, and the newest that the package knows.
VERSIONS = ["1.29", schemas.latest_version()]
MONITORING = "- ../../components/monitoring"


def load(path: pathlib.Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def resources() -> list[pathlib.Path]:
    """The files that kustomizations name as resources; patches are not complete by themselves."""
    found = []
    for path in DEPLOY.glob("**/kustomization.yaml"):
        found += [path.parent / name for name in load(path).get("resources", []) if name.endswith(".yaml")]
    return sorted(found)


def validate(document: dict[str, Any]) -> None:
    """Compares with the published schema; the operator's kinds are in no package, so their required fields are named here."""
    kind, spec = document["kind"], document.get("spec", {})
    if kind == "ServiceMonitor":
        assert spec.keys() <= {"jobLabel", "selector", "endpoints"} and spec["selector"]
        assert all(endpoint.keys() == {"port", "path", "interval"} for endpoint in spec["endpoints"])
    elif kind == "PrometheusRule":
        for group in spec["groups"]:
            assert group.keys() == {"name", "rules"}
            for rule in group["rules"]:
                assert {"alert", "expr", "annotations"} <= rule.keys() <= {"alert", "expr", "for", "labels", "annotations"}
                assert all(isinstance(value, str) for value in [rule["expr"], *rule["annotations"].values()])
    else:
        for version in VERSIONS:
            schemas.validate(document, version, strict=True)


def build(directory: pathlib.Path) -> list[dict[str, Any]]:
    """Builds the objects of a directory, and validates them."""
    for command in (["kustomize", "build"], ["kubectl", "kustomize"]):
        if shutil.which(command[0]):
            done = subprocess.run([*command, directory], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, done.stderr
            documents = list(yaml.safe_load_all(done.stdout))
            for document in documents:
                validate(document)
            return documents
    pytest.skip("neither kustomize nor kubectl is installed")


@pytest.fixture(scope="module", params=["shared-directory", "bucket"])
def servers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The objects of an overlay with all its components, by kind; of two ConfigMaps that of the servers."""
    overlay = tmp_path_factory.mktemp("servers") / "deploy/kubernetes/overlays" / request.param
    shutil.copytree(DEPLOY, overlay.parents[2])
    text = (overlay / "kustomization.yaml").read_text(encoding="utf-8")
    assert f"# {MONITORING}" in text
    (overlay / "kustomization.yaml").write_text(text.replace(f"# {MONITORING}", MONITORING), encoding="utf-8")
    documents = build(overlay)
    return {document["kind"]: document for document in documents if document["metadata"]["name"] != "forebay-dashboard"}


def pods(documents: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The specification of each pod, and of its container."""
    for document in documents:
        if document["kind"] in ("Deployment", "Job"):
            pod = document["spec"]["template"]["spec"]
            (container,) = pod["containers"]
            yield pod, container


@pytest.mark.parametrize("path", resources(), ids=lambda path: str(path.relative_to(DEPLOY)))
def test_schemas_accept_each_resource(path: pathlib.Path) -> None:
    validate(load(path))


def test_both_forms_of_the_alerts_are_equal() -> None:
    rule = load(DEPLOY / "kubernetes/components/monitoring/prometheusrule.yaml")
    assert rule["spec"] == load(DEPLOY / "prometheus/forebay.rules.yml")


def test_selectors_find_the_pods_and_the_service(servers: dict[str, dict[str, Any]]) -> None:
    deployment, service, monitor = servers["Deployment"]["spec"], servers["Service"], servers["ServiceMonitor"]["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    selectors = [deployment["selector"]["matchLabels"], service["spec"]["selector"]]
    selectors.append(servers["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])
    selectors.append(servers["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"])
    spread = deployment["template"]["spec"]["topologySpreadConstraints"]
    selectors += [constraint["labelSelector"]["matchLabels"] for constraint in spread]
    for selector in selectors:
        assert selector and selector.items() <= labels
        assert selector == selectors[0], "another group of servers may have the same name"
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    # The alert ForebayDown asks for this job.
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "forebay"


def test_ports_have_names_that_exist(servers: dict[str, dict[str, Any]]) -> None:
    ((_, container),) = pods([servers["Deployment"]])
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] == "health"
    service = {port["name"]: port["targetPort"] for port in servers["Service"]["spec"]["ports"]}
    assert set(service.values()) <= ports.keys()
    assert {endpoint["port"] for endpoint in servers["ServiceMonitor"]["spec"]["endpoints"]} <= service.keys()
    for rule in servers["NetworkPolicy"]["spec"]["ingress"]:
        assert {port["port"] for port in rule["ports"]} <= ports.keys()
    config = servers["ConfigMap"]["data"]["CONFIG.toml"]
    for name, key in [("batches", "listen"), ("admin", "admin_listen"), ("health", "health_listen")]:
        assert f'\n{key} = "0.0.0.0:{ports[name]}"\n' in config


def test_the_cache_fits_into_its_volume(servers: dict[str, dict[str, Any]]) -> None:
    ((pod, container),) = pods([servers["Deployment"]])
    (volume,) = [volume for volume in pod["volumes"] if volume["name"] == "cache"]
    (mount,) = [mount for mount in container["volumeMounts"] if mount["name"] == "cache"]
    env = {variable["name"]: variable["value"] for variable in container["env"]}
    assert env["FOREBAY_CACHE_DIR"].startswith(mount["mountPath"] + "/") and not mount.get("readOnly")
    limit = int(volume["emptyDir"]["sizeLimit"].removesuffix("Gi"))
    assert int(env["FOREBAY_CACHE_BYTES"].removesuffix("GiB")) < limit


def check_pods(documents: list[dict[str, Any]], count: int) -> None:
    """Checks what the restricted standard and the house ask of pods, and that their volumes and ConfigMaps exist."""
    configs = {document["metadata"]["name"] for document in documents if document["kind"] == "ConfigMap"}
    found = list(pods(documents))
    assert len(found) == count
    for pod, container in found:
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        own = container["securityContext"]
        assert own["readOnlyRootFilesystem"] and own["capabilities"] == {"drop": ["ALL"]}
        assert own["allowPrivilegeEscalation"] is False
        assert container["image"].partition(":")[2] not in ("", "latest")
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
        named = [volume["configMap"]["name"] for volume in pod["volumes"] if "configMap" in volume]
        named += [source["configMapRef"]["name"] for source in container.get("envFrom", []) if "configMapRef" in source]
        assert len(named) == 1 and configs.issuperset(named)


def test_pods_of_servers_are_restricted(servers: dict[str, dict[str, Any]]) -> None:
    check_pods(list(servers.values()), 1)


def test_pods_that_pack_are_restricted() -> None:
    check_pods(build(DEPLOY / "kubernetes/pack"), 3)
