"""The page of all checks: `python -m tests.gateway.doctor.page > docs/doctor.md` writes it."""

import sys

from gateway.doctor import database, home, models, people, safety, settings, versions
from gateway.doctor.checks import CHECKS, in_order

TITLES = {
    settings: "Settings",
    home: "The home and the machine",
    database: "The database",
    models: "Models and money",
    people: "People and platforms",
    safety: "Tools and the sandbox",
    versions: "Versions",
}


def page() -> str:
    """Return docs/doctor.md."""
    parts = [_HEAD.format(count=len(CHECKS))]
    for room, title in TITLES.items():
        parts.append(f"\n## {title}\n")
        parts += [
            f"\n### `{each.id}`\n\n{each.title}. {each.why} {each.remedy}\n"
            for each in in_order()
            if room.__name__.endswith(f".{each.room}")
        ]
    return "".join(parts)


_HEAD = """# What `parley doctor` looks at

`parley doctor` checks settings, machine, database, models, platforms and safety. For each problem it says what it saw, why that matters, and how to
fix it. It changes nothing, unless `--fix` is given: then it fixes what is safe to fix (modes of files, a schema of an older version) and says what it did.

    parley doctor            # what needs attention, the worst first
    parley doctor --all      # what is fine as well
    parley doctor --offline  # without asking any provider
    parley doctor --deep     # reads the whole database, and asks osv.dev for known holes of packages
    parley doctor --json     # for programs: id, level, text, why, remedy

Exit codes are those of monitoring plugins: 0 nothing to do, 1 warnings, 2 something is wrong, 3 nothing could be checked. Ids stay the same from version to version.

This page has all {count} checks.
"""  # noqa: E501 - lines of a page

if __name__ == "__main__":
    sys.stdout.write(page())
