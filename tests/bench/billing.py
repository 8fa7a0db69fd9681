"""The billing simulator beside what Anthropic billed, and what Parley would have paid instead.

Recorded: each request of two real sessions of the pi client, which marked its system prompt and the
end of its newest message: whatever was read had ended where an earlier request ended.
Parley: the same conversations, called at the same places, in the product's own request bodies and
with its own breakpoints. Tokens of blocks are estimates, scaled to what was billed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, pairwise

from agent.messages import ChatMessage, Usage, decode, encode, user_message
from agent.models.anthropic.wire import request_body
from agent.models.base import ModelRequest
from agent.models.catalog import ModelFacts, find_facts
from agent.money.cache_simulator import (
    Block,
    CacheRules,
    Count,
    Minimum,
    PromptCache,
    Tally,
    blocks_of,
)
from agent.prompt_caching import apply_cache_control
from agent.settings import ToolSettings
from agent.tokens import estimate_message, estimate_tokens
from agent.tools.catalog import builtin_tools
from tests.bench.estimates import SESSIONS
from tests.bench.figures import Figure
from tests.bench.pi_sessions import Call, Session, load_session
from tests.support.shared import SHARED

BEGUN_S = 1.5
"""What was cut off sooner, before its report, is taken for unwritten. Source: these sessions; of
those that lasted longer most had written, some had not."""
RESTART_EVERY = 50
STEADY_S = 10.0
STRATEGIES = ("anchored", "system_and_3")
ENABLED = ("read_conversation", "current_time", "calculate")
TOOLS = builtin_tools(ToolSettings(enabled=ENABLED)).schemas
SYSTEM = "You are a coding agent. Answer briefly; use your tools."


def measure() -> Iterator[Figure]:
    """Yield how the simulator agrees with the bills, then what Parley would have paid."""
    if SHARED is None:
        return
    for name in SESSIONS:
        session = load_session(SHARED / "pi" / f"{name}.jsonl")
        yield from _recorded(name, session)
        yield from _parley(name, session)


def facts(session: Session) -> ModelFacts:
    """Return the table's row of the model that answered."""
    found = find_facts(session.model)
    assert found is not None
    return found


def _recorded(name: str, session: Session) -> Iterator[Figure]:
    compared = compare(session)
    tally = recorded_tally(session)
    agreeing = sum(row.reason is None for row in compared)
    yield Figure(f"{name}: requests with a report", len(compared), "")
    yield Figure(f"{name}: billed as simulated", agreeing, "requests")
    for reason, rows in _by_reason(compared).items():
        yield Figure(f"  {reason}", len(rows), "requests")
        yield Figure("    read less (-) or more than simulated", _surplus(rows) / 1e6, "M tokens")
    yield Figure(f"{name}: recorded client, billed / minimum", tally.ratio(), "x")
    yield Figure(f"{name}: recorded client, hit ratio", tally.hit_ratio, "")


@dataclass(frozen=True, slots=True)
class Compared:
    """A request as it was billed and as it was simulated; `reason` is None where they agree."""

    call: Call
    billed: Usage
    simulated: Usage
    reason: str | None


def compare(session: Session) -> list[Compared]:
    """Return every reported request beside its simulation."""
    cache = PromptCache(CacheRules.of(facts(session)))
    client = RecordedClient(session)
    compared: list[Compared] = []
    before: Call | None = None
    for call in session.calls:
        if call.usage is None and call.took_s < BEGUN_S:
            continue
        shrunk = client.send(call)
        simulated = cache.bill(client.blocks(call), call.at_s)
        if call.usage is not None:
            reason = _reason(call, call.usage, simulated, before, shrunk=shrunk)
            compared.append(Compared(call, call.usage, simulated, reason))
        before = call
    return compared


def _reason(
    call: Call, billed: Usage, simulated: Usage, before: Call | None, *, shrunk: bool
) -> str | None:
    if billed.cache_read_tokens == simulated.cache_read_tokens:
        return None
    if before is not None and before.usage is None and billed.cache_read_tokens:
        return "behind a request cut off unreported: what it wrote is a guess"
    if shrunk or billed.cache_read_tokens > simulated.cache_read_tokens:
        return "two clients on one session: the prompt shrank, or grew back"
    if billed.cache_read_tokens == 0 and call.asked:
        return "nothing read at a person's message: another prefix, or evicted"
    return "not explained"


def _by_reason(compared: Sequence[Compared]) -> dict[str, list[Compared]]:
    found: dict[str, list[Compared]] = {}
    for row in compared:
        if row.reason is not None:
            found.setdefault(row.reason, []).append(row)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _surplus(rows: Sequence[Compared]) -> int:
    return sum(row.billed.cache_read_tokens - row.simulated.cache_read_tokens for row in rows)


@dataclass(slots=True)
class RecordedClient:
    """What the recorded client sent, as blocks: one for its system prompt, one for each message.

    Sizes of messages are estimates, scaled so that each prompt has the size that was billed. The
    recording has no system prompt, and no summary of what a compaction left out: what the first
    report of a segment says beyond its messages is theirs.
    """

    session: Session
    segment: int = -1
    sizes: list[int] = field(default_factory=list)
    system_tokens: int = 0
    summary_tokens: int = 0
    marked_tokens: int = 0
    client: int = 0

    def send(self, call: Call) -> bool:
        """Learn the sizes of what a call sends; returns whether the prompt shrank."""
        fresh = call.segment != self.segment
        if fresh:
            self.segment, self.sizes = call.segment, []
        new = self.session.segments[call.segment][len(self.sizes) : call.messages]
        guesses = [estimate_message(message, self.session.model) for message in new]
        if call.usage is None:
            return False
        grown = call.marked_tokens - self.marked_tokens
        shrunk = not fresh and (grown < 0 or not new)
        self.sizes += guesses if fresh or shrunk else scaled(guesses, grown)
        self.marked_tokens = call.marked_tokens
        missing = call.marked_tokens - sum(self.sizes) - self.system_tokens - self.summary_tokens
        if fresh and not self.system_tokens:
            self.system_tokens = missing
        elif fresh:
            self.summary_tokens += missing
        elif shrunk:
            self.client += 1
            self.system_tokens += missing
        return shrunk

    def blocks(self, call: Call) -> list[Block]:
        """Return the blocks of a call; the last one is what follows the last breakpoint."""
        messages = self.session.segments[call.segment][: call.messages]
        unknown = [
            estimate_message(message, self.session.model) for message in messages[len(self.sizes) :]
        ]
        place = f"{self.client} {call.segment} {call.thinking}"
        sent = [Block(f"{place} summary".encode(), self.summary_tokens, "text")]
        for number, (message, tokens) in enumerate(
            zip(messages, [*self.sizes, *unknown], strict=True)
        ):
            kind = "tool_result" if message["role"] == "tool" else "text"
            sent.append(Block(f"{place} {number}".encode(), tokens, kind))
        framing = call.usage.input_tokens if call.usage else 0
        system = Block(f"system {self.client}".encode(), self.system_tokens, "text", "5m")
        sent[-1] = sent[-1]._replace(ttl="5m")
        return [system, *sent, Block(f"{call.at_s}".encode(), framing, "text")]


def scaled(guesses: Sequence[int], total: int) -> list[int]:
    """Return whole numbers in the proportion of the guesses, which sum up to `total`."""
    whole = sum(guesses)
    if not whole:
        return [total, *guesses[1:]] if guesses else []
    ends = [round(part * total / whole) for part in accumulate(guesses)]
    return [end - start for start, end in pairwise([0, *ends])]


def recorded_tally(session: Session) -> Tally:
    """Return what was billed beside the least: what a prompt shares with the one before is read."""
    tally = Tally()
    before: Call | None = None
    for call in session.reported:
        follows = before is not None and before.segment == call.segment
        read = min(call.prompt_tokens, before.prompt_tokens) if before and follows else 0
        least = Usage(cache_read_tokens=read, cache_write_5m_tokens=call.prompt_tokens - read)
        tally += Tally(call.usage or Usage(), least)
        before = call
    return tally


def _parley(name: str, session: Session) -> Iterator[Figure]:
    sizes = block_sizes(session)
    recorded = [call.at_s for call in session.reported]
    steady = [STEADY_S * number for number in range(len(recorded))]
    for strategy in STRATEGIES:
        whole = replayed(session, sizes, strategy, steady)
        yield Figure(f"{name}: {strategy}, gap-free", whole.ratio(), "x", at_most=1.05)
        yield Figure(f"{name}: {strategy}, hit ratio", whole.hit_ratio, "", at_least=0.97)
        again = replayed(session, sizes, strategy, steady, restart_every=RESTART_EVERY)
        title = f"{name}: {strategy}, restart every {RESTART_EVERY} requests"
        yield Figure(title, again.ratio(), "x", at_most=1.10)
        paused = replayed(session, sizes, strategy, recorded)
        yield Figure(f"{name}: {strategy}, recorded gaps", paused.ratio(), "x")
        yield Figure(f"{name}: {strategy}, recorded gaps, hit ratio", paused.hit_ratio, "")


def replayed(
    session: Session,
    sizes: dict[bytes, int],
    strategy: str,
    times_s: Sequence[float],
    restart_every: int | None = None,
) -> Tally:
    """Return what Parley pays for the recorded requests at these times.

    `sizes` are those of `block_sizes`. A restart reads all messages anew from their stored form;
    the provider's cache goes on.
    """
    rules = CacheRules.of(facts(session))
    cache, minimum = PromptCache(rules), Minimum(rules)
    tally = Tally()
    for number, (call, at_s) in enumerate(zip(session.reported, times_s, strict=True)):
        if restart_every and number % restart_every == 0:
            session = restarted(session)
        marked = apply_cache_control(_request(session, call), strategy=strategy)
        blocks = _sized(_read(marked, session.model), sizes)
        tally += Tally(cache.bill(blocks, at_s), minimum.bill(blocks))
    return tally


def restarted(session: Session) -> Session:
    """Return the session as another process reads it from its database."""
    parts = [[decode(encode(message)) for message in part] for part in session.segments]
    return Session(session.model, parts, session.calls)


def block_sizes(session: Session) -> dict[bytes, int]:
    """Return the tokens of every block that Parley sends, by its key.

    What is new in a request shares what its prompt has grown by; where that is nothing, estimates
    stand.
    """
    count = partial(estimate_tokens, model=session.model)
    sizes: dict[bytes, int] = {}
    for call in session.reported:
        blocks = _read(_request(session, call), session.model, count)
        grown = call.prompt_tokens - sum(sizes.get(block.key, 0) for block in blocks)
        new = {block.key: block.tokens for block in blocks if block.key not in sizes}
        known = scaled(list(new.values()), grown) if grown > 0 else new.values()
        sizes.update(zip(new, known, strict=True))
    return sizes


def _request(session: Session, call: Call) -> list[ChatMessage]:
    """Return what Parley sends in place of a recorded call."""
    messages = session.segments[call.segment][: call.messages]
    system = ChatMessage(role="system", content=SYSTEM)
    if not call.segment:
        return [system, *messages]
    return [system, user_message(f"[summary {call.segment}]"), *messages]


def _read(messages: list[ChatMessage], model: str, count: Count = len) -> list[Block]:
    return blocks_of(request_body(ModelRequest(messages, TOOLS), model), count)


def _sized(blocks: Sequence[Block], sizes: dict[bytes, int]) -> list[Block]:
    return [block._replace(tokens=sizes[block.key]) for block in blocks]
