"""deploy/kubernetes: sound for the API server, closed as can be, and what a stop needs."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from gateway.app import DELIVER_WITHIN_S
from gateway.settings.loading import load_settings
from gateway.settings.tree import Settings
from tests.deploy.manifests import FOLDER, Manifest, kustomization, of_kind, pods, resources

KUBECTL = shutil.which("kubectl")
VERSION = "1.32"
SECRET = "parley"
METADATA_ADDRESS = "169.254.0.0/16"


def settings(tmp_path: Path) -> Settings:
    """Return what a replica reads."""
    [told] = [each for each in resources() if each["kind"] == "ConfigMap"]
    (tmp_path / "parley.yaml").write_text(told["data"]["parley.yaml"])
    found = load_settings(
        environ={
            "PARLEY_HOME": str(tmp_path),
            "PARLEY_STORAGE__URL": "postgresql://parley:secret@database/parley",
            "PARLEY_WEB__TOKEN": "0123456789abcdef0123456789abcdef",
        }
    )
    # It is there in the container.
    assert found.warnings == ("agent.workspace: /config cannot be read: No such file or directory",)
    return found.settings


def container() -> Manifest:
    """Return a replica's container."""
    [found] = of_kind("Deployment")["spec"]["template"]["spec"]["containers"]
    return dict(found)


@pytest.mark.parametrize("manifest", resources(), ids=lambda each: each["kind"])
def test_each_object_is_one_that_the_api_server_takes(manifest: Manifest) -> None:
    """Strictly: a key that the schema does not have is an error (kubernetes-validate)."""
    kubernetes_validate.validate(manifest, VERSION, strict=True)
    wrong = manifest | {"kindd": "x"}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_the_schemas_refuse_what_is_wrong() -> None:
    """Else the test above would say nothing."""
    wrong = of_kind("Deployment")
    wrong["spec"]["template"]["spec"]["containers"][0]["imagee"] = "x"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSION, strict=True)


def test_all_files_of_the_folder_belong_to_it() -> None:
    """A file that nobody applies is a mistake."""
    told = kustomization()
    named = {*told["resources"], "kustomization.yaml", "secrets.example.txt"}
    named |= {
        each.rpartition("=")[2] for made in told["configMapGenerator"] for each in made["files"]
    }
    assert {each.name for each in FOLDER.iterdir()} == named


def test_kubectl_makes_the_same_of_it() -> None:
    """Where kubectl is there its kustomize is asked; else what these tests read is all there is."""
    ours = sorted(map(_comparable, resources()))
    if KUBECTL is None:
        assert len(ours) == len({*ours})
        return
    made = subprocess.run([KUBECTL, "kustomize", FOLDER], capture_output=True, check=True)
    text = re.sub(r"\bparley-[0-9a-z]{10}\b", "parley", made.stdout.decode())
    assert sorted(map(_comparable, yaml.safe_load_all(text))) == ours


def _comparable(manifest: Manifest) -> str:
    return json.dumps(manifest, sort_keys=True)


@pytest.mark.parametrize("pod", pods(), ids=lambda each: each["containers"][0]["name"])
def test_pods_may_do_nothing_that_they_need_not(pod: Manifest) -> None:
    """The profile `restricted` of Kubernetes' Pod Security Standards, and a file system to read."""
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for each in pod["containers"]:
        assert each["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"requests", "limits"} <= each["resources"].keys()
        written = {mount["mountPath"] for mount in each["volumeMounts"] if "readOnly" not in mount}
        assert written <= {"/data", "/tmp", "/shared"}  # noqa: S108 - of the pod


def test_secrets_are_only_named() -> None:
    """No value of one is in the folder; variables come from the Secret, which others make."""
    assert "Secret" not in {each["kind"] for each in resources()}
    for pod in pods():
        for each in pod["containers"]:
            assert each["envFrom"] == [{"secretRef": {"name": SECRET}}]
            assert {given["name"] for given in each["env"]} == {"PARLEY_HOME", "PARLEY_CONFIG"}


def test_the_settings_are_sound(tmp_path: Path) -> None:
    """Replicas wait for the migration, keep workspaces on the shared volume, and log to stdout."""
    found = settings(tmp_path)
    mounts = {each["name"]: each["mountPath"] for each in container()["volumeMounts"]}
    root = found.tools.workspace.root
    assert root is not None
    assert root.is_relative_to(mounts["shared"])
    assert found.storage.migrate == "wait"
    assert found.logging.file is False
    assert found.web.port == container()["ports"][0]["containerPort"]


def test_prometheus_finds_the_metrics(tmp_path: Path) -> None:
    """On the port of the page; with a token, since it does not ask from the pod itself."""
    told = of_kind("Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert told["prometheus.io/scrape"] == "true"
    assert told["prometheus.io/path"] == "/metrics"
    assert int(told["prometheus.io/port"]) == settings(tmp_path).web.port
    assert "PARLEY_METRICS__TOKEN" in (FOLDER / "secrets.example.txt").read_text()


def test_a_stop_has_all_the_time_that_it_may_take(tmp_path: Path) -> None:
    """Leaving the Service, running turns, the last deliveries: then the kernel may kill it."""
    pod = of_kind("Deployment")["spec"]["template"]["spec"]
    [_, pause_s] = container()["lifecycle"]["preStop"]["exec"]["command"]
    needed_s = int(pause_s) + settings(tmp_path).queue.grace_s + DELIVER_WITHIN_S
    assert pod["terminationGracePeriodSeconds"] >= needed_s + 5


@pytest.mark.parametrize(
    ("probe", "path"),
    [("startupProbe", "/healthz"), ("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")],
)
def test_probes_ask_what_there_is(probe: str, path: str) -> None:
    """A restart is for a process that does not answer, not for a platform that does not."""
    assert container()[probe]["httpGet"] == {"path": path, "port": "http"}


def test_all_selectors_find_the_replicas_alone() -> None:
    """Not the pod of the migration."""
    replica = of_kind("Deployment")["spec"]["template"]["metadata"]["labels"]
    migration = of_kind("Job")["spec"]["template"]["metadata"]["labels"]
    for kind, path in (("Deployment", "matchLabels"), ("PodDisruptionBudget", "matchLabels")):
        assert _selects(of_kind(kind)["spec"]["selector"][path], replica, migration)
    assert _selects(of_kind("Service")["spec"]["selector"], replica, migration)


def _selects(selector: dict[str, str], replica: Any, migration: Any) -> bool:
    return selector.items() <= replica.items() and not selector.items() <= migration.items()


def test_a_drained_node_takes_one_replica_at_a_time() -> None:
    """And an upgrade none before the next one is ready."""
    assert of_kind("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    spec = of_kind("Deployment")["spec"]
    assert spec["replicas"] >= 3
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}


def test_the_network_leads_to_no_keys_of_the_cloud() -> None:
    """Every way out that is open to the world leaves the link-local addresses out."""
    spec = of_kind("NetworkPolicy")["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    blocks = [to["ipBlock"] for rule in spec["egress"] for to in rule.get("to", [])]
    [world] = [each for each in blocks if each["cidr"] == "0.0.0.0/0"]
    assert world["except"] == [METADATA_ADDRESS]
    others = [rule for rule in spec["egress"] if "to" not in rule]
    assert {port["port"] for rule in others for port in rule["ports"]} == {53, 5432, 6432}
