"""Parley's own series of `/metrics`, and what moves them: docs/metrics.md is made from this table.

`EVENTS` says which event of the log moves which series, `SPANS` which span does; `STATE` is read
when somebody scrapes (gateway/metrics/state.py). Labels hold what an operator has configured and
words of the code, never ids of chats or people (gateway/metrics/counts.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from agent.models import observed
from agent.tools.execute import TOOL, TOOL_NAME
from gateway.logging.taps import EVERYTHING

Kind = Literal["counter", "gauge", "histogram"]
Scope = Literal["process", "database"]
"""Whose figure it is: of this process alone, or of the database that all replicas share."""

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of the buckets of each histogram."""
MS = 1e-3
PREFIX = "parley_"


@dataclass(frozen=True, slots=True)
class Series:
    """A metric family.

    Attributes:
        name: As it is scraped, but for the `_total` of a counter.
    """

    name: str
    kind: Kind
    about: str
    labels: tuple[str, ...] = ()
    scope: Scope = "process"

    @property
    def shown(self) -> str:
        """The name that queries use; of a histogram without `_bucket`, `_sum` and `_count`."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


@dataclass(frozen=True, slots=True)
class Mover:
    """What moves a series: each event, or span, of this name.

    Attributes:
        fields: The field that holds a label, where it is not of the label's name; "=word" for a
            word that always stands there.
        amount: The field that is added or observed; "" for 1, or the duration of a span.
        scale: What that is multiplied with.
        only: A field and what it must hold.
    """

    source: str
    series: Series
    fields: Mapping[str, str] = field(default_factory=dict)
    amount: str = ""
    scale: float = 1.0
    only: tuple[str, str] | None = None


def _counter(name: str, about: str, labels: str = "") -> Series:
    return Series(PREFIX + name, "counter", about, tuple(labels.split()))


def _histogram(name: str, about: str, labels: str = "") -> Series:
    return Series(PREFIX + name, "histogram", about, tuple(labels.split()))


def _gauge(name: str, about: str, labels: str = "", scope: Scope = "process") -> Series:
    return Series(PREFIX + name, "gauge", about, tuple(labels.split()), scope)


TURN_TOKENS = _counter(
    "turn_tokens",
    "Tokens of all calls of the turns that ended, lost ones and summaries included."
    " kind: input (neither from a cache nor into one), cache_read, cache_write, output.",
    "platform kind",
)
SUMMARIES = _counter(
    "summaries_ahead",
    "Summaries written ahead of need. outcome: prepared, not_prepared, failed.",
    "outcome",
)
TOOL_DECISIONS = _counter(
    "tool_decisions",
    "Tool calls about which more was decided than that they may run."
    " outcome: refused (the policy), vetoed (a plugin), approved, denied (a person).",
    "outcome",
)
DATABASE_ERRORS = _counter(
    "database_errors",
    "What the database did not do at once and is tried again. work: claim, deliver, heartbeat,"
    " receipt, release, sweep, unsent.",
    "work",
)
ATTACHMENTS = _counter(
    "attachments",
    "Files that came with messages. outcome: stored, delayed, failed.",
    "outcome",
)
ADAPTER_TROUBLES = _counter(
    "adapter_troubles",
    "Ends of an adapter's run. kind: disconnected, failed, stopped (refused).",
    "adapter kind",
)
REPLICA_LOSSES = _counter(
    "replica_changes",
    "What became of replicas as this one saw it. kind: lost (this one), reaped (another one).",
    "kind",
)
HTTP_REFUSALS = _counter(
    "http_refusals",
    "Connections of the HTTP ports that were refused, or closed for new ones. kind: refused,"
    " displaced. reason: descriptors, all, address.",
    "kind reason",
)
BACKUPS = _counter("backups", "Backups on a timer. outcome: made, failed.", "outcome")
SENDS_PUT_OFF = _counter(
    "sends_put_off",
    "Sends that a platform did not take. kind: delayed (again later), unknown (it may be shown),"
    " failed (the adapter raised what it should not).",
    "kind",
)

EVENTS: tuple[Mover, ...] = (
    Mover(EVERYTHING, _counter("log_events", "Events of the log, written or not.", "level")),
    Mover(
        "log_lines_left_out",
        _counter("log_lines_left_out", "Lines not written since their event came too often."),
        amount="lines",
    ),
    Mover(
        "turn_finished",
        _counter("turns", "Turns that ended.", "platform account outcome"),
    ),
    Mover(
        "turn_finished",
        _histogram(
            "turn_seconds", "From the begin of a turn's last attempt to its end.", "platform"
        ),
        amount="duration_ms",
        scale=MS,
    ),
    Mover(
        "turn_finished",
        _counter("turn_iterations", "Calls of models that the turns made.", "platform"),
        amount="iterations",
    ),
    Mover("turn_finished", TURN_TOKENS, {"kind": "=input"}, amount="input_tokens"),
    Mover("turn_finished", TURN_TOKENS, {"kind": "=cache_read"}, amount="cache_read_tokens"),
    Mover("turn_finished", TURN_TOKENS, {"kind": "=cache_write"}, amount="cache_write_tokens"),
    Mover("turn_finished", TURN_TOKENS, {"kind": "=output"}, amount="output_tokens"),
    Mover(
        "turn_finished",
        _counter("turn_cost_usd", "What turns have cost, where the prices are known.", "platform"),
        amount="cost_usd",
    ),
    Mover("turn_suspended", _counter("turns_suspended", "Turns that began to wait for a person.")),
    Mover("turn_failed", _counter("turn_attempts_failed", "Attempts at a turn that are repeated.")),
    Mover("turn_buried", _counter("turns_buried", "Turns given up: dead letters.")),
    Mover(
        "stuck_conversations_found",
        _counter("stuck_conversations", "Conversations that had lost their place in the line."),
        amount="count",
    ),
    Mover(
        "delegate_finished",
        _counter("delegates", "Delegated children that ended.", "outcome"),
    ),
    Mover(
        "context_compressed",
        _counter("compactions", "Views that were made smaller.", "trigger rung"),
    ),
    Mover(
        "context_compressed",
        _histogram(
            "compaction_seconds", "Until the plan was there, its summary included.", "trigger"
        ),
        amount="duration_ms",
        scale=MS,
    ),
    Mover(
        "context_compressed",
        _counter("compaction_tokens_before", "Tokens of the views that were made smaller."),
        amount="tokens_before",
    ),
    Mover(
        "context_compressed",
        _counter("compaction_tokens_after", "Tokens of these views afterwards."),
        amount="tokens_after",
    ),
    Mover(
        "context_compressed",
        _counter("compaction_cache_tokens_lost", "Tokens no prompt cache can serve any more."),
        amount="cache_tokens_lost",
    ),
    Mover("context_floor_reached", _counter("context_floors", "Views no plan could bring down.")),
    Mover("context_pressure", _counter("context_pressures", "Views at 85 % of the threshold.")),
    Mover(
        "hygiene_without_effect",
        _counter("hygiene_without_effect", "Views over 85 % of the window that stayed so."),
    ),
    Mover("summary_prepared", SUMMARIES, {"outcome": "=prepared"}),
    Mover("summary_not_prepared", SUMMARIES, {"outcome": "=not_prepared"}),
    Mover("summary_preparation_failed", SUMMARIES, {"outcome": "=failed"}),
    Mover(
        "cache_missed",
        _counter(
            "cache_misses",
            "Calls that read much less from the prompt cache than the one before left in it."
            " reason: the provider's word, or none.",
            "reason",
        ),
        {"reason": "miss_reason"},
    ),
    Mover(
        "cache_prefix_moved",
        _counter("cache_prefix_moves", "Requests that do not begin as the one before.", "reason"),
    ),
    Mover(
        "model_call_failed",
        _counter(
            "model_failures", "Failed calls of models, and what was done.", "model error action"
        ),
    ),
    Mover(
        "model_call_failed",
        _counter("model_fallbacks", "Times a model was left for the next one.", "model"),
        only=("action", "next_model"),
    ),
    Mover("no_model_answered", _counter("models_exhausted", "Turns that no model answered.")),
    Mover(
        "images_left_out",
        _counter("images_left_out", "Pictures a provider refused.", "model"),
        amount="count",
    ),
    Mover(
        "tool_failed", _counter("tool_failures", "Tools that raised what they should not.", "tool")
    ),
    Mover("tool_refused", TOOL_DECISIONS, {"outcome": "=refused"}),
    Mover("tool_vetoed", TOOL_DECISIONS, {"outcome": "=vetoed"}),
    Mover("tool_approved", TOOL_DECISIONS, {"outcome": "=approved"}),
    Mover("tool_denied", TOOL_DECISIONS, {"outcome": "=denied"}),
    Mover("inquiry_asked", _counter("questions_asked", "Questions of turns to people.", "kind")),
    Mover("inquiry_expired", _counter("questions_expired", "Those nobody answered.", "kind")),
    Mover(
        "message_sent",
        _counter("messages_sent", "Messages that platforms took.", "platform resent"),
    ),
    Mover("send_delayed", SENDS_PUT_OFF, {"kind": "=delayed"}),
    Mover("send_outcome_unknown", SENDS_PUT_OFF, {"kind": "=unknown"}),
    Mover("send_failed", SENDS_PUT_OFF, {"kind": "=failed"}),
    Mover(
        "message_buried",
        _counter("messages_buried", "Dead letters made of messages.", "platform"),
        amount="letters",
    ),
    Mover("rate_limited", _counter("rate_limited", "Messages over a sender's limits.", "platform")),
    Mover("pairing_requested", _counter("pairing_requests", "Strangers who asked in.", "platform")),
    Mover(
        "spend_limit_reached",
        _counter("spend_limits_reached", "Budgets that were used up.", "scope"),
    ),
    Mover("adapter_disconnected", ADAPTER_TROUBLES, {"kind": "=disconnected"}),
    Mover("adapter_failed", ADAPTER_TROUBLES, {"kind": "=failed"}),
    Mover("adapter_stopped", ADAPTER_TROUBLES, {"kind": "=stopped"}),
    Mover(
        "account_silent", _counter("account_silences", "Silences that began.", "platform account")
    ),
    Mover(
        "client_replaced",
        _counter("clients_replaced", "Clients of a platform replaced by fresh ones.", "platform"),
    ),
    Mover("lease_lost", _counter("leases_lost", "Conversations another worker had taken.")),
    Mover("replica_lost", REPLICA_LOSSES, {"kind": "=lost"}),
    Mover("replica_reaped", REPLICA_LOSSES, {"kind": "=reaped"}),
    Mover(
        "database_lost", _counter("database_losses", "Times the database's file was not the one.")
    ),
    Mover("claim_failed", DATABASE_ERRORS, {"work": "=claim"}),
    Mover("delivery_failed", DATABASE_ERRORS, {"work": "=deliver"}),
    Mover("heartbeat_failed", DATABASE_ERRORS, {"work": "=heartbeat"}),
    Mover("receipt_not_stored", DATABASE_ERRORS, {"work": "=receipt"}),
    Mover("release_failed", DATABASE_ERRORS, {"work": "=release"}),
    Mover("sweep_failed", DATABASE_ERRORS, {"work": "=sweep"}),
    Mover("unsent_not_found", DATABASE_ERRORS, {"work": "=unsent"}),
    Mover("connection_refused", HTTP_REFUSALS, {"kind": "=refused"}),
    Mover("connection_displaced", HTTP_REFUSALS, {"kind": "=displaced"}),
    Mover(
        "web_request_refused",
        _counter("web_refusals", "Requests that the web chat refused.", "code"),
    ),
    Mover(
        "web_sign_in_refused",
        _counter("web_sign_ins_refused", "Signs-in that were refused.", "reason"),
    ),
    Mover("attachment_stored", ATTACHMENTS, {"outcome": "=stored"}),
    Mover("attachment_delayed", ATTACHMENTS, {"outcome": "=delayed"}),
    Mover("attachment_failed", ATTACHMENTS, {"outcome": "=failed"}),
    Mover("plugin_failed", _counter("plugin_failures", "Failed calls of plugins.", "plugin")),
    Mover("mcp_lost", _counter("mcp_losses", "Times an MCP server was not to be had.", "server")),
    Mover(
        "work_failed",
        _counter("search_index_failures", "Times the search index could not be fed."),
        only=("work", "search index"),
    ),
    Mover("backup_made", BACKUPS, {"outcome": "=made"}),
    Mover("backup_failed", BACKUPS, {"outcome": "=failed"}),
    Mover(
        "storage_pruned",
        _counter("pruned_bytes", "Texts and files erased since they were too old, in bytes."),
        amount="bytes",
    ),
)

MODEL_TOKENS = _counter(
    "model_tokens",
    "Tokens of calls that were answered. kind: input (cached ones included), cache_read,"
    " cache_write, output.",
    "model purpose kind",
)
_MODEL = {"model": observed.MODEL, "purpose": observed.PURPOSE}
_TOOL = {"tool": TOOL_NAME}

SPANS: tuple[Mover, ...] = (
    Mover(
        "admission",
        _counter(
            "messages_admitted", "Messages by what became of them.", "platform account outcome"
        ),
        amount="=1",
    ),
    Mover(
        "admission",
        _histogram("admission_seconds", "From a platform's update to its commit.", "platform"),
    ),
    Mover(
        "queued",
        _histogram(
            "queued_seconds", "From the commit of a message to the begin of its turn.", "platform"
        ),
    ),
    Mover("hygiene", _histogram("hygiene_seconds", "The check of the window before a turn.")),
    Mover(
        observed.CHAT,
        _counter("model_calls", "Calls of models. error: none, or a class.", "model purpose error"),
        _MODEL,
        amount="=1",
    ),
    Mover(observed.CHAT, _histogram("model_seconds", "Calls of models.", "model purpose"), _MODEL),
    Mover(
        observed.CHAT,
        _histogram("first_token_seconds", "From a request to its first text.", "model purpose"),
        _MODEL,
        amount=observed.FIRST_TEXT,
    ),
    Mover(observed.CHAT, MODEL_TOKENS, _MODEL | {"kind": "=input"}, amount=observed.INPUT),
    Mover(observed.CHAT, MODEL_TOKENS, _MODEL | {"kind": "=output"}, amount=observed.OUTPUT),
    Mover(
        observed.CHAT, MODEL_TOKENS, _MODEL | {"kind": "=cache_read"}, amount=observed.CACHE_READ
    ),
    Mover(
        observed.CHAT, MODEL_TOKENS, _MODEL | {"kind": "=cache_write"}, amount=observed.CACHE_WRITE
    ),
    Mover(TOOL, _counter("tool_calls", "Tools that ran, by outcome.", "tool status"), _TOOL, "=1"),
    Mover(TOOL, _histogram("tool_seconds", "How long tools ran.", "tool"), _TOOL),
    Mover(
        "delivery",
        _histogram("send_seconds", "One attempt at sending a message.", "platform outcome"),
    ),
    Mover(
        "message",
        _histogram("answer_seconds", "From a message's commit to its last receipt.", "platform"),
    ),
)

ADAPTER_STATE = _gauge(
    "adapter_state",
    "1 for the state that an adapter is in: connected, standby (another replica receives),"
    " connecting, refused (asked again for an hour), stopped.",
    "adapter state",
)
ACCOUNT_SILENT = _gauge(
    "account_silent_seconds", "How long an account sends nothing of what waits.", "platform account"
)
POOL_IN_USE = _gauge("pool_connections_in_use", "Connections to a platform.", "platform account")
POOL_LIMIT = _gauge("pool_connections_limit", "How many there can be.", "platform account")
TURNS_RUNNING = _gauge("turns_running", "Turns that run now.")
SERVED = _gauge("conversations_served", "Conversations in work here, those that wait included.")
TURN_PLACES = _gauge("turn_places", "Turns that may run at once.")
MODEL_RESTS = _gauge("model_rest_seconds", "How long a model is left alone yet.", "model")
CACHE_HIT_RATIO = _gauge(
    "cache_hit_ratio", "Share of the input tokens since the start that came from a cache."
)
LOOP_LAG = _gauge("event_loop_lag_seconds", "Longest delay of the event loop of late.")
DISK_FREE = _gauge("disk_free_bytes", "Room for PARLEY_HOME.")
DISK_SIZE = _gauge("disk_size_bytes", "Size of its disk.")
LOG_BYTES = _gauge("log_bytes", "The log file and its predecessors.")
BACKUP_AGE = _gauge(
    "backup_age_seconds", "Age of the newest backup in `backup.to`; +Inf where there is none."
)
SCRAPE = _gauge("database_look_seconds", "How long the look at the database took for this page.")
DATABASE_UP = _gauge("database_up", "Whether it could be read for this page.")
BUILD_INFO = _gauge("build_info", "1, with the versions as labels.", "version python database")

INBOX_DEPTH = _gauge("inbox_depth", "Messages to be answered, or being answered.", "", "database")
INBOX_AGE = _gauge("inbox_oldest_seconds", "Age of the oldest of them.", "", "database")
OUTBOX_DEPTH = _gauge("outbox_depth", "Messages still to be shown.", "platform account", "database")
OUTBOX_AGE = _gauge(
    "outbox_oldest_seconds", "Age of the oldest of them.", "platform account", "database"
)
ASKED = _gauge("approvals_waiting", "Questions of turns nobody has answered.", "", "database")
ASKED_AGE = _gauge("approvals_oldest_seconds", "Age of the oldest of them.", "", "database")
STRANGERS = _gauge("pairings_waiting", "Strangers who wait to be let in.", "", "database")
QUARANTINED = _gauge("quarantined_updates", "Updates nobody could read.", "", "database")
DEAD_LETTERS = _gauge("dead_letters", "What was given up. kind: turn, send.", "kind", "database")
UNSEARCHED = _gauge("search_lag_messages", "Messages not in the search index.", "", "database")
UNSEARCHED_IN = _gauge("search_lag_conversations", "Conversations they are in.", "", "database")
REPLICAS = _gauge("replicas", "Registered replicas. state: alive, late.", "state", "database")
LEASES = _gauge("leases", "Conversations that are held by a replica.", "", "database")
UNOWNED = _gauge("accounts_unowned", "Accounts nobody receives for.", "", "database")
SPENT = _gauge("spent_today_usd", "What today's calls have cost.", "", "database")
BUDGET = _gauge("budget_daily_usd", "budget.daily_usd; absent where none is set.", "", "database")
DATABASE_BYTES = _gauge("database_bytes", "Size of the database.", "", "database")
WAL_BYTES = _gauge("database_wal_bytes", "Size of its log; of SQLite alone.", "", "database")

STATE: tuple[Series, ...] = tuple(
    each for each in list(vars().values()) if isinstance(each, Series) and each.kind == "gauge"
)
"""All that are read: the gauges above, in their order."""
