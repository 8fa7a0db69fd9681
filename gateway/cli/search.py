"""`parley search`: looks through all conversations; builds the index of the search anew.

What it changes goes through the running gateway, or directly into the database where none runs.
"""

from typing import Annotated

import typer
from sqlalchemy import Connection

from agent.ports import PastMessage
from gateway.cli.common import AsLines, ConversationOption, act, opened, settings_of
from gateway.cli.output import NO_MORE, page_of, say, show_lines, show_next
from gateway.storage.conversation import conversations as conversations_module
from gateway.storage.reports import history
from gateway.storage.search import query as query_module
from gateway.storage.search.query import Match

SHOWN_CHARS = 300
HEADER = "conversation #message role time: text (~: only messages next to it hold the words)"

search_app = typer.Typer(help="Search what was said.", no_args_is_help=True)


@search_app.command("find")
def search_find(
    context: typer.Context,
    query: Annotated[str, typer.Argument(help="Words, or a plain question.")],
    *,
    conversation: ConversationOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=50)] = 10,
    after: Annotated[
        int, typer.Option(min=0, help="Leave out so many of the best, which were shown.")
    ] = 0,
    json: AsLines = False,
) -> None:
    """Find messages by their words, best first: everybody's, unlike the agent's own search."""
    chosen = None if conversation is None else [conversation]
    with opened(settings_of(context)) as conn:
        if conversation is not None:
            # An unknown conversation is an error, not one in which nothing was found.
            history.overview(conn, conversation)
        matches = _found(conn, chosen, query, (after, after + limit + 1))
        missing: int = conversations_module.count_unsearched(conn, chosen)
    found, following = page_of(matches, limit, lambda _: after + limit)
    if json:
        show_lines(_plain(*each) for each in found)
        return
    if found:
        say(HEADER)
    for match, past in found:
        say(_line(match, past))
    if not found:
        say(NO_MORE if after else "nothing was found")
    show_next(following)
    if missing:
        say(f"{missing} messages are not in the index yet; `parley run` feeds it")


def _found(
    conn: Connection, conversations: list[int] | None, query: str, ranks: tuple[int, int]
) -> list[tuple[Match, PastMessage]]:
    """Return the matches from one rank on, up to the one before another, with their texts."""
    matches = query_module.find(conn, conversations, query, limit=ranks[1])[ranks[0] :]
    texts: dict[int, list[PastMessage]] = query_module.around(conn, matches, 0)
    return [(matches[n], past) for n in sorted(texts) for past in texts[n]]


def _plain(match: Match, past: PastMessage) -> dict[str, object]:
    return {
        "conversation": match.conversation,
        "seq": past.seq,
        "role": past.role,
        "at": past.at,
        "text": past.text,
        "holds": match.holds,
    }


def _line(match: Match, past: PastMessage) -> str:
    text = " ".join(past.text.split())
    if len(text) > SHOWN_CHARS:
        text = f"{text[:SHOWN_CHARS]}…"
    mark = " " if match.holds else "~"
    return f"{mark} {match.conversation} #{past.seq} {past.role} {past.at}: {text}"


@search_app.command("reindex")
def search_reindex(context: typer.Context) -> None:
    """Build the index anew from the transcripts; chats go on meanwhile."""
    fed: int = act(settings_of(context), "reindex-search")
    say(f"{fed} messages were read again")
