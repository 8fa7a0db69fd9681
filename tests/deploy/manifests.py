"""The Kubernetes folder as `kubectl apply -k` would send it, made without kubectl."""

from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"

Manifest = dict[str, Any]


def kustomization() -> Manifest:
    """Return what says which files belong together."""
    found: Manifest = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    return found


def resources() -> list[Manifest]:
    """Return all objects, with labels, images and the generated ConfigMap.

    As kustomize does it, but for the hash in the ConfigMap's name.
    """
    told = kustomization()
    [labels] = told["labels"]
    images = {each["name"]: f"{each['newName']}:{each['newTag']}" for each in told["images"]}
    made = [_config_map(each) for each in told["configMapGenerator"]]
    for name in told["resources"]:
        made += [each for each in yaml.safe_load_all((FOLDER / name).read_text()) if each]
    for each in made:
        _label(each["metadata"], labels["pairs"])
        template = each.get("spec", {}).get("template")
        if template is not None:
            _label(template["metadata"], labels["pairs"])
            for container in template["spec"]["containers"]:
                container["image"] = images.get(container["image"], container["image"])
    return made


def of_kind(kind: str) -> Manifest:
    """Return the one object of a kind."""
    [found] = [each for each in resources() if each["kind"] == kind]
    return found


def pods() -> list[Manifest]:
    """Return the specifications of all pods."""
    return [each["spec"]["template"]["spec"] for each in resources() if "template" in _spec(each)]


def _spec(resource: Manifest) -> Manifest:
    found: Manifest = resource.get("spec", {})
    return found


def _config_map(told: Manifest) -> Manifest:
    files = (each.rpartition("=") for each in told["files"])
    data = {key or path: (FOLDER / path).read_text() for key, _, path in files}
    named = {"name": told["name"]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": data}


def _label(metadata: Manifest, labels: dict[str, str]) -> None:
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
