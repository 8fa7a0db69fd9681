"""Whether what is installed runs, and has no holes that are known."""

import json
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from importlib.metadata import Distribution, distributions

from agent.network import UnusableEnvironment, in_words, opener_for
from gateway.doctor.checks import Examined, Sight, check

ADVISORIES_URL = "https://api.osv.dev/v1/querybatch"
"""Of all ecosystems, without a key. Source: google.github.io/osv.dev/post-v1-querybatch."""
WITHIN_S = 10.0
MOST_BYTES = 4_000_000


@check(
    "versions-advisories",
    "No package that Parley uses has a known vulnerability",
    why="Anyone who knows the vulnerability can exploit it.",
    remedy="Update Parley, or that package within the versions that pyproject.toml allows.",
    needs="answers",
)
def _advisories(examined: Examined) -> Iterator[Sight]:
    if not examined.deep:
        yield Sight("unknown", f"skipped: --deep asks {ADVISORIES_URL}")
        return
    packages = sorted({_named(each) for each in distributions()})
    try:
        results = _asked(packages)
    except (UnusableEnvironment, OSError, ValueError, KeyError) as exc:
        yield Sight("unknown", f"nobody answers at {ADVISORIES_URL}: {in_words(exc)}")
        return
    for (name, version), found in zip(packages, results, strict=True):
        if found:
            yield Sight("warning", f"{name} {version}: {', '.join(sorted(found))}")


@check(
    "versions-running",
    "The running gateway has the installed version",
    why="An older process lacks the fixes of the newer version.",
    remedy="Restart Parley.",
    needs="gateway",
)
def _running(examined: Examined) -> Iterator[Sight]:
    here, at_work = metadata.version("parley"), examined.said.get("version", "")
    if at_work and at_work != here:
        yield Sight("note", f"{here} is installed, {at_work} runs")


def _named(package: Distribution) -> tuple[str, str]:
    return package.metadata["Name"], package.version


def _asked(packages: list[tuple[str, str]]) -> list[list[str]]:
    """Return the ids of the advisories for each package.

    Raises:
        OSError: Nobody answers, or with an error.
        ValueError, KeyError: The answer has another form.
    """
    queries = [
        {"package": {"name": name, "ecosystem": "PyPI"}, "version": version}
        for name, version in packages
    ]
    request = urllib.request.Request(
        ADVISORIES_URL,
        json.dumps({"queries": queries}).encode(),
        {"Content-Type": "application/json"},
    )
    with opener_for(ADVISORIES_URL).open(request, timeout=WITHIN_S) as answer:
        results = json.loads(answer.read(MOST_BYTES))["results"]
    if len(results) != len(packages):
        raise ValueError(f"{len(results)} answers to {len(packages)} questions")
    return [[each["id"] for each in result.get("vulns", ())] for result in results]
