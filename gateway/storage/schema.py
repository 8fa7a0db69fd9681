"""The schema: all tables (gateway/storage/tables), by name.

Uniqueness rules are indexes; `message` rows are never updated.

Times are seconds since the epoch by the database's clock (`now_s`), except where a comment says so.
"""

from gateway.storage.tables.columns import Whole, metadata
from gateway.storage.tables.conversations import (
    SEARCH_INDEX,
    alias,
    blob,
    compaction,
    conversation,
    message,
    node,
    prompt_base,
    prompt_text,
    search_row,
    session,
    summary_candidate,
    todo,
    topic,
    view_plan,
)
from gateway.storage.tables.costs import (
    MEASURES,
    PICO,
    SIZES,
    SLOT_S,
    ledger,
    rollup_triggers,
    slots_sql,
    spent_by,
    spent_slot,
)
from gateway.storage.tables.files import (
    LARGE_BYTES,
    attachment,
    attachment_part,
    file_is_awaited,
    is_large,
    stored_object,
)
from gateway.storage.tables.functions import greatest, iso_time, now, now_s, octets
from gateway.storage.tables.people import (
    audit_head,
    audit_log,
    member,
    memory,
    pairing,
    web_link,
    web_session,
    web_user,
)
from gateway.storage.tables.queue import (
    UNSENT,
    adapter_lease,
    chat_preview,
    chat_watch,
    cursor,
    identity,
    inbox,
    is_noted,
    is_pending,
    is_said,
    is_unsent,
    news,
    outbox,
    quarantine,
    replica,
)
from gateway.storage.tables.turns import inquiry, is_of_tool, is_running, is_unanswered, step, turn

__all__ = [
    "FLOOR",
    "LARGE_BYTES",
    "MEASURES",
    "PICO",
    "REVISION",
    "SEARCH_INDEX",
    "SIZES",
    "SLOT_S",
    "UNSENT",
    "Whole",
    "adapter_lease",
    "alias",
    "attachment",
    "attachment_part",
    "audit_head",
    "audit_log",
    "blob",
    "chat_preview",
    "chat_watch",
    "compaction",
    "conversation",
    "cursor",
    "file_is_awaited",
    "greatest",
    "identity",
    "inbox",
    "inquiry",
    "is_large",
    "is_noted",
    "is_of_tool",
    "is_pending",
    "is_running",
    "is_said",
    "is_unanswered",
    "is_unsent",
    "iso_time",
    "ledger",
    "member",
    "memory",
    "message",
    "metadata",
    "news",
    "node",
    "now",
    "now_s",
    "octets",
    "outbox",
    "pairing",
    "prompt_base",
    "prompt_text",
    "quarantine",
    "replica",
    "rollup_triggers",
    "search_row",
    "session",
    "slots_sql",
    "spent_by",
    "spent_slot",
    "step",
    "stored_object",
    "summary_candidate",
    "todo",
    "topic",
    "turn",
    "view_plan",
    "web_link",
    "web_session",
    "web_user",
]

REVISION = "0026"
"""The alembic revision that this code needs; a test holds it equal to the newest migration."""
FLOOR = "0023"
"""The oldest revision whose program runs on this schema, beside this version's or behind it: from
there on migrations only add (docs/operations.md, *Rolling upgrades*). One that takes something away
raises it to its own revision."""
