"""The register: what it finds, and that each platform keeps to its own folder."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import grimp
import pytest

from adapters.registry import (
    BUILT_IN,
    Platform,
    account_types,
    by_name,
    check,
    other_owner,
    platforms,
)

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = pytest.mark.parametrize("platform", platforms(), ids=lambda each: each.name)
LOADED = """
import sys
from adapters.registry import platforms
import gateway.app
print(*(package for each in platforms() for package in each.sdk if package in sys.modules))
"""


@cache
def imports() -> grimp.ImportGraph:
    """Return who imports whom in the product, SDKs included."""
    return grimp.build_graph("gateway", "agent", "adapters", include_external_packages=True)


def folder_of(module: str) -> str:
    """Return the first two names of a module."""
    return ".".join(module.split(".")[:2])


def test_every_folder_with_a_platform_file_is_found() -> None:
    """In the order of lists, the built-in chat first."""
    files = (ROOT / "adapters").glob("*/platform.py")
    assert sorted(by_name()) == sorted(file.parent.name for file in files)
    assert [each.name for each in platforms()] == ["web", "telegram", "discord", "slack"]
    assert [*account_types()] == [name for name in by_name() if name != BUILT_IN]


def test_the_gateway_loads_no_sdk() -> None:
    """A platform that is not configured costs nothing at the start."""
    done = subprocess.run(
        [sys.executable, "-c", LOADED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == []


@PLATFORMS
def test_its_name_is_its_folder(platform: Platform) -> None:
    """And its adapter offers `build` and `renderer`."""
    text = (ROOT / "adapters" / platform.name / "adapter.py").read_text("utf-8")
    assert "\ndef build(" in text
    assert "\ndef renderer(" in text


@PLATFORMS
def test_platforms_do_not_know_each_other(platform: Platform) -> None:
    """What two of them need stands beside the folders."""
    home = f"adapters.{platform.name}"
    inside = imports().find_descendants(home)
    used = {it for module in inside for it in imports().find_modules_directly_imported_by(module)}
    others = {f"adapters.{each.name}" for each in platforms() if each is not platform}
    assert {folder_of(module) for module in used} & others == set()


@PLATFORMS
def test_its_sdk_is_its_own(platform: Platform) -> None:
    """No other module imports it; each SDK that is named is used."""
    users = {
        package: {
            folder_of(module) for module in imports().find_modules_that_directly_import(package)
        }
        for package in platform.sdk
    }
    assert users == {package: {f"adapters.{platform.name}"} for package in platform.sdk}


@pytest.mark.parametrize("package", ["gateway", "agent"])
def test_only_the_built_in_chat_is_known_by_name(package: str) -> None:
    """No code beside `adapters/` has a platform's name as a value, or imports its folder.

    What another agent calls its platforms is its word: gateway/setup/hermes*.py read that.
    """
    names = "|".join(account_types())
    known = re.compile(rf"""["'](?:{names})["']|\badapters\.(?:{names})\b""")
    found = [
        f"{file.relative_to(ROOT)}: {line.strip()}"
        for file in sorted((ROOT / package).rglob("*.py"))
        if not file.name.startswith("hermes")
        for line in file.read_text("utf-8").splitlines()
        if known.search(line)
    ]
    assert found == []


def test_the_docs_have_a_column_and_a_page_for_each() -> None:
    """`docs/adapters.md` compares them in the order of the register."""
    text = (ROOT / "docs" / "adapters.md").read_text("utf-8")
    head = next(line for line in text.splitlines() if line.startswith("| |"))
    assert [cell.strip() for cell in head.strip("| ").split("|")] == [
        each.title for each in platforms()
    ]
    pages = {file.stem for file in (ROOT / "docs" / "platforms").glob("*.md")}
    assert pages >= set(account_types())


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("123456:AAHdqTcvCH1vGWJxfSeofSAs0K5PALDsaw", ""),
        ("xoxb-1-2-abc", "Slack's Bot User OAuth Token"),
        ("xapp-1-A0-abc", "Slack's App-Level Token"),
        ("MTIzNDU2.GaBcDe.abcdefghijklmnop", "Discord's bot token"),
        ("some new kind of token", ""),
    ],
)
def test_a_token_of_another_platform_is_known_by_its_looks(text: str, told: str) -> None:
    """Where Telegram's is asked for; what looks like none of them may be a new kind of it."""
    assert other_owner(text, "telegram", "token") == told


@PLATFORMS
def test_its_credentials_are_keys_of_its_account(platform: Platform) -> None:
    """The switch is one of them, and all of them can be set."""
    keys = [each.key for each in platform.credentials]
    if platform.account is None:
        assert keys == []
        return
    assert platform.account.switch in keys
    assert set(keys) <= set(platform.account.model_fields)


async def test_a_platform_without_a_question_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of somebody else may be."""
    monkeypatch.setattr("adapters.registry.find_spec", lambda _name: None)
    report = await check("telegram", account_types()["telegram"]())
    assert report.outcome == "not_checked"
