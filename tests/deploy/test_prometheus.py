"""The alert rules of deploy/prometheus, checked and tried by Prometheus' own tool."""

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "deploy" / "prometheus"
PROMTOOL = shutil.which("promtool", path="/usr/bin:/usr/local/bin")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="promtool is missing: apt-get install prometheus"
)


def promtool(*command: str) -> str:
    """Run the tool in the folder of the rules; returns what it says, and fails where it does."""
    assert PROMTOOL is not None
    told = subprocess.run(
        (PROMTOOL, *command), cwd=FOLDER, capture_output=True, text=True, check=False
    )
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


@needs_promtool
def test_the_rules_are_valid() -> None:
    """Queries, durations and templates."""
    assert "SUCCESS" in promtool("check", "rules", "alerts.yaml")


@needs_promtool
def test_the_example_is_a_configuration_of_prometheus(tmp_path: Path) -> None:
    """All jobs have the name that the rules ask for; the token's file is the operator's.

    Debian builds Prometheus without Kubernetes: that job is looked at without its discovery.
    """
    told = yaml.safe_load((FOLDER / "prometheus.yaml").read_text("utf-8"))
    for job in told["scrape_configs"]:
        job.pop("kubernetes_sd_configs", None)
        named = [each.get("replacement") for each in job.get("relabel_configs", [])]
        assert "parley" in {job["job_name"], *named}
        assert "credentials_file" in job["authorization"]
    told["rule_files"] = [str(FOLDER / each) for each in told["rule_files"]]
    (tmp_path / "prometheus.yaml").write_text(yaml.safe_dump(told))
    assert "SUCCESS" in promtool("check", "config", "--syntax-only", f"{tmp_path}/prometheus.yaml")


@needs_promtool
def test_the_rules_fire_when_they_should() -> None:
    """Once for all replicas, after their time, and never where all is well."""
    assert "SUCCESS" in promtool("test", "rules", "alerts.test.yaml")


def test_each_alert_says_what_to_do() -> None:
    """At 3 am: how bad it is, what it is about, and where to look."""
    [group] = yaml.safe_load((FOLDER / "alerts.yaml").read_text("utf-8"))["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 15
    for rule in group["rules"]:
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert set(rule["annotations"]) == {"summary", "description"}
