"""The pages of all findings: `python -m tests.gateway.findings.pages` writes them.

That is docs/doctor.md, and the table that docs/alerts.md ends with.
"""

from pathlib import Path

from gateway.findings import database, machine, models, people, settings
from gateway.findings.report import FINDINGS

DOCS = Path(__file__).parents[3] / "docs"
TITLES = {
    settings: "Settings",
    machine: "The machine: home, disks, sandbox, programs and plugins",
    database: "The database",
    models: "Models and money",
    people: "People and platforms",
}


def doctor() -> str:
    """Return docs/doctor.md."""
    parts = [_HEAD.format(count=len(FINDINGS))]
    for room, title in TITLES.items():
        parts.append(f"\n## {title}\n")
        parts += [
            f"\n### `{each.id}`\n\n{each.title}. {each.why} {each.remedy}\n"
            for each in FINDINGS.values()
            if each in vars(room).values()
        ]
        if room is settings:
            parts.append(_risks())
    return "".join(parts)


def _risks() -> str:
    rows = [
        f"| `{each.key}` | {each.level} | {each.costs} | {each.remedy} |" for each in settings.RISKS
    ]
    return "\n".join([
        "",
        "| setting | level | what it costs | what to do |",
        "|---|---|---|---|",
    ]) + ("\n" + "\n".join(rows) + "\n")


def alerts() -> str:
    """Return the table of docs/alerts.md."""
    rows = [
        f"| `{each.id}` | {each.level} | {_cell(each.text)} | {_cell(each.over) or '-'}"
        f" | {each.remedy} |"
        for each in FINDINGS.values()
        if each.told
    ]
    return "\n".join([_TABLE, *rows]) + "\n"


def _cell(text: str) -> str:
    return text.replace("{", "*").replace("}", "*")


_TABLE = """| id | level | what is told when it begins | and when it is over | what to do |
|---|---|---|---|---|"""
_HEAD = """# What `parley doctor` looks at

`parley doctor` checks settings, machine, database, models, platforms and safety. For each problem it says what it saw, why that matters, and how to
fix it. It changes nothing, unless `--fix` is given: then it fixes what is safe to fix (modes of files, a schema of an older version) and says what it did.

    parley doctor            # what needs attention, the worst first
    parley doctor --all      # what is fine as well
    parley doctor --offline  # without asking any provider
    parley doctor --deep     # reads the whole database
    parley doctor --json     # for programs: id, level, text, why, remedy, subject, since_s, fixable

Exit codes are those of monitoring plugins: 0 nothing to do, 1 warnings, 2 something is wrong, 3 nothing could be checked. Ids stay the same from version to version:
alerts, `parley status`, the console's overview and `/readyz` have the same ones.

This page has all {count} findings.
"""  # noqa: E501 - lines of a page

if __name__ == "__main__":
    (DOCS / "doctor.md").write_text(doctor(), "utf-8")
    told = DOCS / "alerts.md"
    before, head, _ = told.read_text("utf-8").partition(_TABLE)
    assert head
    told.write_text(before + alerts(), "utf-8")
