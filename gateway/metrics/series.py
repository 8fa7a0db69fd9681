"""The series of `/metrics` with their sources, labels and counters.

docs/metrics.md is generated from the tables. Log events update `EVENTS`, spans update `SPANS`; a
scrape reads `STATE` (gateway/metrics/instruments.py). Label values are configured names and code
words, never ids of chats or people. A label with a list of known values (platforms, accounts,
models, tools) accepts no others; other labels accept `MOST_VALUES` values that look like code
words. Everything else is `other`.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

from prometheus_client import CollectorRegistry, Counter, Histogram, disable_created_metrics

from agent.models import base
from agent.spans import Span
from agent.tools.execute import TOOL_NAME
from gateway.logging.recent import EVERYTHING

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
"""Upper bounds of histogram buckets."""
PREFIX = "parley_"
MOST_VALUES = 300
OTHER = "other"
NONE = "none"
_VALUE = re.compile(r"[A-Za-z0-9_.:/#+-]{1,80}")
_SOURCE = re.compile(r"([\w*]+)(?:\[(\w+)=(\w+)\])?(?:\.([\w.]+))?(?:=(\w+))?")
_OF_SPANS = {"model": base.MODEL, "purpose": base.PURPOSE, "tool": TOOL_NAME}
"""Span attributes with a different name than their label."""

Labels = tuple[str, ...]
Scope = Literal["process", "database"]
Count = Callable[[Mapping[str, Any], float], None]
"""Counts an event or span by its fields; the number is a histogram's default observation."""

# No additional `_created` series.
disable_created_metrics()  # type: ignore[no-untyped-call]


class Mover(NamedTuple):
    """An event or span that updates a series.

    Attributes:
        field: A field that must equal `wanted`; "" counts every event.
        amount: The field to add or observe (`…_ms` converted to seconds); for "" a counter adds 1
            and a histogram observes the span's duration.
        word: The value of the label `kind`; "" if a field provides it.
    """

    name: str
    field: str
    wanted: str
    amount: str
    word: str


@dataclass(frozen=True, slots=True)
class Series:
    """A metric family.

    Attributes:
        name: The scraped name, without a counter's `_total`.
        scope: Whether it counts this process or the database shared by all replicas.
        fields: The event or span field of each label.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    about: str
    labels: tuple[str, ...] = ()
    scope: Scope = "process"
    fields: tuple[str, ...] = ()
    sources: tuple[Mover, ...] = ()


def _gauge(name: str, about: str, labels: str = "", scope: Scope = "process") -> Series:
    return Series(PREFIX + name, "gauge", about, tuple(labels.split()), scope)


def _moved(table: str, renamed: Mapping[str, str]) -> tuple[Series, ...]:
    """Parse a table of counters and histograms (of seconds).

    Lines: `name{label label}: event event[field=wanted].amount=word`, then an indented description.
    """
    found = []
    for row in re.split(r"\n(?=\w)", table.strip()):
        head, _, rest = row.partition(": ")
        by, _, about = rest.partition("\n    ")
        name, _, words = head.rstrip("}").partition("{")
        labels = tuple(words.split())
        found.append(
            Series(
                PREFIX + name,
                "histogram" if name.endswith("_seconds") else "counter",
                " ".join(about.split()),
                labels,
                fields=tuple(renamed.get(label, label) for label in labels),
                sources=tuple(Mover(*each.groups("")) for each in re.finditer(_SOURCE, by)),
            )
        )
    return tuple(found)


EVENTS = _moved(
    """
log_events{event level}: *
    Events of the log (docs/logging.md), written or not.
log_errors: *[level=error]
    Those of level error.
log_lines_left_out: log_lines_left_out.lines
    Lines not written since their event came too often.
turns{platform account outcome}: turn_finished
    Turns that ended.
turn_seconds{platform}: turn_finished.duration_ms
    From the begin of a turn's last attempt to its end.
turn_iterations{platform}: turn_finished.iterations
    Calls of models that the turns made.
turn_tokens{platform kind}: turn_finished.input_tokens=input
  turn_finished.cache_read_tokens=cache_read turn_finished.cache_write_tokens=cache_write
  turn_finished.output_tokens=output
    Tokens of all calls of the turns that ended, lost ones and summaries included. kind: input
    (neither from a cache nor into one), cache_read, cache_write, output.
turn_cost_usd{platform}: turn_finished.cost_usd
    What turns have cost, where the prices are known.
turns_buried: turn_buried
    Turns given up: dead letters.
stuck_conversations: stuck_conversations_found.count
    Conversations that had lost their place in the line.
delegates{outcome}: delegate_finished
    Delegated children that ended.
compactions{trigger rung}: context_compressed
    Views that were made smaller.
compaction_seconds{trigger}: context_compressed.duration_ms
    Until the plan was there, its summary included.
compaction_tokens_before: context_compressed.tokens_before
    Tokens of the views that were made smaller.
compaction_tokens_after: context_compressed.tokens_after
    Tokens of these views afterwards.
compaction_cache_tokens_lost: context_compressed.cache_tokens_lost
    Tokens no prompt cache can serve any more.
cache_misses: cache_missed
    Calls that read much less from the prompt cache than the one before left in it.
cache_prefix_moves{reason}: cache_prefix_moved
    Requests that do not begin as the one before.
model_failures{model error action}: model_call_failed
    Failed calls of models, and what was done.
model_fallbacks{model}: model_call_failed[action=next_model]
    Failed calls that were left to the next model.
models_exhausted: no_model_answered
    Turns that no model answered.
images_left_out{model}: images_left_out.count
    Pictures a provider refused.
tool_failures{tool}: tool_failed
    Tools that raised what they should not.
questions_asked{kind}: inquiry_asked
    Questions of turns to people.
questions_expired{kind}: inquiry_expired
    Those nobody answered.
messages_sent{platform resent}: message_sent
    Messages that platforms took.
messages_buried{platform}: message_buried.letters
    Dead letters made of messages.
rate_limited{platform}: rate_limited
    Messages over a sender's limits.
pairing_requests{platform}: pairing_requested
    Strangers who asked in.
spend_limits_reached{scope}: spend_limit_reached
    Budgets that were used up.
adapter_troubles{adapter kind}: adapter_disconnected=disconnected adapter_failed=failed
  adapter_stopped=stopped
    Ends of an adapter's run. kind: disconnected, failed, stopped (refused).
account_silences{platform account}: account_silent
    Silences that began.
clients_replaced{platform}: client_replaced
    Clients of a platform replaced by fresh ones.
database_losses: database_lost
    Times the database's file was not the one.
http_refusals{kind reason}: connection_refused=refused connection_displaced=displaced
    Connections of the HTTP ports that were refused, or closed for new ones. kind: refused,
    displaced. reason: descriptors, all, address.
web_refusals{code}: web_request_refused
    Requests that the web chat refused.
web_sign_ins_refused{reason}: web_sign_in_refused
    Signs-in that were refused.
plugin_failures{plugin}: plugin_failed
    Failed calls of plugins.
mcp_losses{server}: mcp_lost
    Times an MCP server was not to be had.
pruned_bytes: storage_pruned.bytes
    Texts and files erased since they were too old, in bytes.
""",
    {},
)
SPANS = _moved(
    """
messages_admitted{platform account outcome}: admission
    Messages by what became of them.
admission_seconds{platform}: admission
    From a platform's update to its commit.
queued_seconds{platform}: queued
    From the commit of a message to the begin of its turn.
hygiene_seconds: hygiene
    The check of the window before a turn.
model_calls{model purpose error}: chat
    Calls of models. error: none, or a class.
model_seconds{model purpose}: chat
    Calls of models.
first_token_seconds{model purpose}: chat.parley.first_token_s
    From a request to its first text.
model_tokens{model purpose kind}: chat.gen_ai.usage.input_tokens=input
  chat.gen_ai.usage.output_tokens=output chat.gen_ai.usage.cache_read.input_tokens=cache_read
  chat.gen_ai.usage.cache_creation.input_tokens=cache_write
    Tokens of calls that were answered. kind: input (cached ones included), cache_read,
    cache_write, output.
tool_calls{tool status}: execute_tool
    Tools that ran, by outcome.
tool_seconds{tool}: execute_tool
    How long tools ran.
send_seconds{platform outcome}: delivery
    One attempt at sending a message.
answer_seconds{platform}: message
    From a message's commit to its last receipt.
""",
    _OF_SPANS,
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
"""The gauges above, in order."""


class Vocabulary:
    """The allowed label values.

    Args:
        known: Returns the current lists of known values by label.
    """

    def __init__(self, known: Callable[[], Mapping[str, Collection[str]]]) -> None:
        self.known = known
        self._seen: defaultdict[str, dict[Any, str]] = defaultdict(dict)

    def folded(self, label: str, value: Any) -> str:
        """Return the label text of a value."""
        seen = self._seen[label]
        if (found := seen.get(value)) is None:
            found = self._judged(label, value, len(seen))
            # `other` is not stored, so a flood of values costs no memory.
            if found != OTHER:
                seen[value] = found
        return found

    def _judged(self, label: str, value: Any, seen: int) -> str:
        if value is None or value == "":
            return NONE
        text = str(value).lower() if isinstance(value, bool) else str(value)
        known = self.known().get(label)
        if known is not None:
            return text if text in known else OTHER
        return text if seen < MOST_VALUES and _VALUE.fullmatch(text) else OTHER


class Counts:
    """The counters since the start of this process; thread-safe.

    Attributes:
        events: The counting functions by log event.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self.registry = CollectorRegistry(auto_describe=False)
        self._moved: dict[str, Any] = {}
        for each in (*EVENTS, *SPANS):
            made = partial(Histogram, buckets=SECONDS) if each.kind == "histogram" else Counter
            moved = made(each.name, each.about, each.labels, registry=self.registry)
            self._moved[each.name] = moved
        self.events, self._spans = self._by_source(EVENTS), self._by_source(SPANS)

    def begin(self) -> None:
        """Initialize counters with one label to 0 for each known value and `other`.

        `increase()` misses a series' first value.
        """
        known = self._vocabulary.known()
        for each in EVENTS:
            if each.kind == "counter" and len(each.labels) == 1 and each.labels[0] in known:
                for value in (*known[each.labels[0]], OTHER):
                    self._moved[each.name].labels(value)

    def event(self, source: str, event: Mapping[str, Any]) -> None:
        """Count a log event."""
        for count in self.events[source]:
            count(event, 0.0)

    def span(self, span: Span) -> None:
        """Count a finished span."""
        told = {**span.attributes, "error": span.error} if span.error else span.attributes
        for count in self._spans.get(span.name, ()):
            count(told, span.duration_s)

    def _by_source(self, every: Iterable[Series]) -> dict[str, list[Count]]:
        found: defaultdict[str, list[Count]] = defaultdict(list)
        for series in every:
            for source in series.sources:
                name = EVERYTHING if source.name == "*" else source.name
                found[name].append(self._counting(series, source))
        return dict(found)

    def _counting(self, series: Series, source: Mover) -> Count:
        """Return the function that counts a source."""
        moved, folded = self._moved[series.name], self._vocabulary.folded
        is_counter, unit = series.kind == "counter", 1e-3 if source.amount.endswith("_ms") else 1.0
        pairs = [
            (label, "" if source.word and label == "kind" else field)
            for label, field in zip(series.labels, series.fields, strict=True)
        ]
        # Without labels the family is the counter.
        children: dict[Labels, Any] = {} if pairs else {(): moved}

        def count(told: Mapping[str, Any], took_s: float) -> None:
            if source.field and told.get(source.field) != source.wanted:
                return
            labels = tuple([
                folded(label, told.get(field)) if field else source.word for label, field in pairs
            ])
            child = children.get(labels)
            if child is None:
                child = children[labels] = moved.labels(*labels)
            amount = told.get(source.amount) if source.amount else 1.0 if is_counter else took_s
            if not isinstance(amount, int | float):
                return
            if not is_counter:
                child.observe(amount * unit)
            elif amount > 0:
                child.inc(amount * unit)

        return count
