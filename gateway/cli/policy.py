"""`parley policy`: the calls that tools may make."""

from typing import Annotated

import typer

from agent.settings import ToolSettings
from agent.tools import policy
from agent.tools.catalog import BUILTIN, builtin_tools
from agent.tools.policy import FETCH, NOTES, SIDE_EFFECT, WORLD, Facts, Rule
from gateway.cli.common import AsJson, loaded, out, show_json, show_table
from gateway.errors import NotFound

CHOICES = {"role": policy.ROLES, "destination": policy.DESTINATIONS}

policy_app = typer.Typer(no_args_is_help=True)


@policy_app.command("show")
def policy_show(context: typer.Context, json: AsJson = False) -> None:
    """Print the table as it is in force, and where each row comes from; the strictest decides."""
    found = loaded(context)
    rows = policy.of_settings(found.settings.tools)
    if json:
        show_json([row.model_dump() | {"origin": _origin(row, found.origins)} for row in rows])
        return
    columns = ("row", "tool", "role", "tainted", "destination", "group", "then", "from")
    tainted = {None: "*", True: "yes", False: "no"}
    cells = [
        (
            *(row.name, row.tool, row.role, tainted[row.tainted], row.destination),
            *(row.group, row.then, _origin(row, found.origins)),
        )
        for row in rows
    ]
    show_table(columns, cells, "There are no rows.")


@policy_app.command("explain")
def policy_explain(  # noqa: PLR0913 - an option each
    context: typer.Context,
    tool: Annotated[str, typer.Option(help="Which tool is called.")],
    role: Annotated[str, typer.Option(help="owner, member or guest.")] = "member",
    destination: Annotated[
        str, typer.Option(help="Of fetch_url: listed, named, linked or new.")
    ] = "none",
    group: Annotated[str, typer.Option(help="platform:chat; empty: a direct chat.")] = "",
    *,
    tainted: Annotated[bool, typer.Option(help="The turn has read strangers' text.")] = False,
    json: AsJson = False,
) -> None:
    """Say what becomes of a call, and which row of the table decides."""
    for name, value in (("role", role), ("destination", destination)):
        if value not in CHOICES[name]:
            raise NotFound(f"--{name} is one of {', '.join(sorted(CHOICES[name]))}, not {value!r}")
    tools = loaded(context).settings.tools
    facts = Facts(
        tool=tool,
        classes=_classes(tool, tools),
        roles=frozenset({role}),
        tainted=tainted,
        destination=destination,
        group=group,
    )
    decision = policy.decide(policy.of_settings(tools), facts)
    if json:
        show_json({"verdict": decision.then, "rule": decision.name})
        return
    out.print(f"{decision.then}: {_WORDS[decision.then]} (row {decision.name})")
    if tool not in BUILTIN:
        out.print(f"{tool} is not built in: it counts as one with side effects here")


_WORDS = {
    "allow": "it runs without a question",
    "ask": "somebody who may act is asked",
    "ask_owner": "an owner is asked",
    "deny": "it does not run",
}


def _classes(name: str, tools: ToolSettings) -> frozenset[str]:
    """Return the classes of a call; a tool that is not built in counts as a side effect."""
    # `terminal` has the same classes, and cannot be made on every machine.
    if name not in BUILTIN or name == "terminal":
        return frozenset({SIDE_EFFECT, WORLD})
    made = builtin_tools(tools.model_copy(update={"enabled": (name,)}))
    classes = {SIDE_EFFECT} if made.effect(name) == "side_effect" else set()
    classes |= {WORLD} if made.restricted(name) else set()
    classes |= {FETCH} if name in policy.FETCHING else set()
    return frozenset(classes | ({NOTES} if name == "memory" else set()))


def _origin(row: Rule, origins: dict[str, str]) -> str:
    """Return the file, variable or option that set a row, or "default"."""
    key = row.name.replace("[", ".").replace("]", "")
    if key.startswith("tools.approval"):
        key = "tools.approval"
    said = (origin for name, origin in origins.items() if name == key or name.startswith(f"{key}."))
    return next((origin for origin in said if origin != "default"), "default")
