"""What a view still knows after compactions without any model: shares of answers' rare words.

A probe is a question, its answer and the messages that the answer rests on. Of the words of the
answer those count that stand in these messages, are rare in the conversation and do not stand in
the question; a probe's score is the share of them that stands in the view.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agent.compression.extract import extract
from agent.messages import ChatMessage, text_of
from agent.tokens import estimate_message
from tests.bench.figures import Figure
from tests.support.shared import SHARED

WINDOWS = {200_000: 0.90, 100_000: 0.80}
FURTHER = 10
_WORD = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Probe:
    """A question about a conversation; `evidence` are positions of messages."""

    question: str
    answer: str
    evidence: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages and what is asked about them."""

    name: str
    messages: list[ChatMessage]
    probes: list[Probe]


def full_text(message: ChatMessage) -> str:
    """Return the text of a message and of its calls."""
    calls = message.get("tool_calls") or ()
    return " ".join([text_of(message), *(call["function"]["arguments"] for call in calls)])


def words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))


def keys(conversation: Conversation) -> list[set[str]]:
    """Return the words that each probe asks for; probes without any are left out."""
    bags = [words(full_text(message)) for message in conversation.messages]
    frequency = Counter(word for bag in bags for word in bag)
    limit = max(3, 0.02 * len(bags))
    found = []
    for probe in conversation.probes:
        evidence = set().union(*(bags[n] for n in probe.evidence))
        asked = (words(probe.answer) & evidence) - words(probe.question)
        found.append({word for word in asked if frequency[word] <= limit})
    return [key for key in found if key]


def score(wanted: Sequence[set[str]], view: set[str]) -> float:
    return sum(len(key & view) / len(key) for key in wanted) / len(wanted)


class View:
    """A conversation under compaction: head, summary, tail."""

    def __init__(self, context_length: int) -> None:
        self.limit = context_length // 2
        self.tail_tokens = self.limit // 5
        self.budget = min(context_length // 20, 12_000)
        self.messages: list[ChatMessage] = []
        self.sizes: list[int] = []
        self.summary = ""
        self.cut = 3

    def add(self, message: ChatMessage) -> None:
        self.messages.append(message)
        self.sizes.append(estimate_message(message))

    @property
    def tokens(self) -> int:
        return sum(self.sizes[:3]) + sum(self.sizes[self.cut :]) + self.budget

    def compact(self) -> None:
        start, left = len(self.messages), self.tail_tokens
        while start > self.cut and (left > 0 or len(self.messages) - start < 20):
            start -= 1
            left -= self.sizes[start]
        entries = [(n + 1, self.messages[n]) for n in range(self.cut, start)]
        self.summary = extract(entries, self.summary, self.budget).text
        self.cut = start

    def words(self) -> set[str]:
        shown = [*self.messages[:3], *self.messages[self.cut :]]
        return words("\n".join([self.summary, *map(full_text, shown)]))


# ---- sources


def tau(half: int) -> list[list[ChatMessage]]:
    data = json.loads((SHARED / "tau-bench/gpt-4o-airline.json").read_text())
    out = []
    for item in data[half::2]:
        msgs = []
        for m in item["traj"]:
            m = {k: v for k, v in m.items() if v is not None or k == "content"}
            if m["role"] != "system":
                msgs.append(m)
        out.append(msgs)
    return out


def pi(name: str) -> list[ChatMessage]:
    out = []
    for line in (SHARED / f"pi/{name}.jsonl").read_text().splitlines():
        item = json.loads(line)
        if item["type"] != "message":
            continue
        m = item["message"]
        if "content" not in m:
            continue
        parts = m["content"] if isinstance(m["content"], list) else [{"type": "text", "text": m["content"]}]
        text = "\n".join(p["text"] for p in parts if p["type"] == "text")
        if m["role"] == "toolResult":
            out.append({"role": "tool", "tool_call_id": m["toolCallId"], "name": m["toolName"], "content": text})
        else:
            msg = {"role": m["role"], "content": text}
            calls = [{"id": p["id"], "type": "function", "function": {"name": p["name"], "arguments": json.dumps(p["arguments"])}} for p in parts if p["type"] == "toolCall"]
            if calls:
                msg["tool_calls"] = calls
            out.append(msg)
    return out


def swe(name: str) -> list[ChatMessage]:
    d = json.loads((SHARED / f"swe-agent/{name}.traj").read_text())
    out = []
    for m in d["history"]:
        c = m.get("content") or ""
        if isinstance(c, list):
            c = "\n".join(p.get("text", "") for p in c)
        if m["role"] == "system":
            continue
        msg = {"role": m["role"], "content": c}
        if m.get("tool_calls"):
            msg["tool_calls"] = [{"id": k["id"], "type": "function", "function": {"name": k["function"]["name"], "arguments": k["function"]["arguments"] if isinstance(k["function"]["arguments"], str) else json.dumps(k["function"]["arguments"])}} for k in m["tool_calls"]]
        if m["role"] == "tool":
            msg["tool_call_id"] = (m.get("tool_call_ids") or ["x"])[0]
        out.append(msg)
    return out


HEAD: list[ChatMessage] = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello! How can I help?"},
]


def replies(messages, offset, earlier):
    """question = user message; answer = next assistant text; evidence = earlier messages."""
    probes = []
    for n, m in enumerate(messages):
        if m["role"] != "user":
            continue
        ans = []
        for k in range(n + 1, len(messages)):
            if messages[k]["role"] == "user":
                break
            if messages[k]["role"] == "assistant":
                ans.append(k)
        ans = [k for k in ans if text_of(messages[k])]
        if ans:
            k = ans[-1]
            low = max(0, k - earlier)
            probes.append(Probe(text_of(m), text_of(messages[k]), tuple(offset + j for j in range(low, k))))
    return probes


def chunks(dialogues, tokens):
    """Groups of dialogues worth so many tokens."""
    group, size = [], 0
    for d in dialogues:
        group.append(d)
        size += sum(map(estimate_message, d))
        if size >= tokens:
            yield group
            group, size = [], 0


def tau_conversations(half, tokens=150_000, count=2):
    for n, group in enumerate(list(chunks(tau(half), tokens))[:count]):
        msgs, probes = list(HEAD), []
        for d in group:
            probes += replies(d, len(msgs), 10_000)
            msgs += d
        yield Conversation(f"tau{n}", msgs, probes)


def tau_unsaid(half, tokens=150_000, count=2):
    """Every second reply was never given: it is asked for later."""
    for n, group in enumerate(list(chunks(tau(half), tokens))[:count]):
        msgs, probes = list(HEAD), []
        for d in group:
            offset = len(msgs)
            ps = replies(d, 0, 10_000)
            drop = {}
            for p in ps[1::2]:
                k = p.evidence[-1] + 1
                drop[k] = p
            place = {}
            kept = []
            for k, m in enumerate(d):
                if k in drop:
                    probes.append(Probe(drop[k].question, drop[k].answer, tuple(sorted({place[j] for j in drop[k].evidence if j in place}))))
                    m = {"role": "assistant", "content": "One moment."}
                place[k] = offset + len(kept)
                kept.append(m)
            msgs += kept
        yield Conversation(f"tau-unsaid{n}", msgs, probes)


def tau_chat(half, tokens=100_000, count=1):
    ds = [[{"role": m["role"], "content": m["content"]} for m in d if m["role"] in ("user", "assistant") and m["content"]] for d in tau(half)]
    for n, group in enumerate(list(chunks(ds, tokens))[:count]):
        msgs, probes = list(HEAD), []
        for d in group:
            probes += replies(d, len(msgs), 10_000)
            msgs += d
        yield Conversation(f"tau-chat{n}", msgs, probes)


def cloze(msgs, rng, count, roles):
    """Sentences of which one half is the question."""
    probes = []
    places = [n for n, m in enumerate(msgs) if n > 2 and m["role"] in roles and len(text_of(m)) > 30]
    for n in rng.sample(places, min(count, len(places))):
        sents = [s for s in re.split(r"(?<=[.!?])\s+|\n", text_of(msgs[n])) if len(s.split()) > 4]
        if not sents:
            continue
        s = rng.choice(sents).split()
        h = len(s) // 2
        a, b = (s[:h], s[h:]) if rng.random() < 0.5 else (s[h:], s[:h])
        probes.append(Probe(" ".join(a), " ".join(b), (n,)))
    return probes


def pi_conversations(half, tokens=200_000):
    name = ("before-compaction", "large-session")[half]
    msgs = [*HEAD, *pi(name)]
    size, n = 0, 0
    while n < len(msgs) and size < tokens:
        size += estimate_message(msgs[n])
        n += 1
    msgs = msgs[:n]
    yield Conversation("pi", msgs, replies(msgs, 0, 60))
    yield Conversation("pi-cloze", msgs, cloze(msgs, random.Random(1), 300, ("user", "assistant")))


def swe_conversations(half):
    d = swe(("ctf-web-demo", "marshmallow-1867-function-calling")[half])
    d2 = pi(("before-compaction", "large-session")[half])[:250]
    msgs = [*HEAD, *d, *d2]
    probes = []
    for k, m in enumerate(msgs):
        if 3 < k < 3 + len(d) and m["role"] == "assistant" and text_of(m):
            probes.append(Probe(text_of(msgs[k - 1])[:0], text_of(m), tuple(range(3, k))))
    yield Conversation("swe", msgs, probes)


# synthetic


class Lexicon:
    def __init__(self, rng, size=16_000, s=1.0):
        self.rng = rng
        syl = [a + b for a in "b c d f g h k l m n p r s t v w br st tr pl sh ch".split() for b in "a e i o u ai e a i o er".split()]
        seen = set()
        self.wordlist = []
        while len(self.wordlist) < size:
            rank = len(self.wordlist)
            n = 1 if rank < 60 else 2 if rank < 3000 else rng.choice((2, 2, 3, 3, 4))
            w = "".join(rng.choice(syl) for _ in range(n)) + rng.choice(("", "", "", "", "s", "ed", "n", "r", "t", "l"))
            if w not in seen:
                seen.add(w)
                self.wordlist.append(w)
        cum, t = [], 0.0
        for r in range(size):
            t += 1 / (r + 2.7) ** s * min(1.0, 3000 / (r + 1)) ** 0.8
            cum.append(t)
        self.cum = cum

    def draw(self, n):
        return self.rng.choices(self.wordlist, cum_weights=self.cum, k=n)

    def content(self, n):
        out = []
        while len(out) < n:
            w = self.rng.choice(self.draw(2) + [self.wordlist[self.rng.randrange(200, 7000)]])
            if w not in self.wordlist[:200]:
                out.append(w)
        return out

    def sentence(self, n, *inserted):
        ws = self.draw(n)
        for x in inserted:
            ws.insert(self.rng.randrange(1, len(ws)), x)
        ws[0] = ws[0].capitalize()
        return " ".join(ws) + "."


def fact(rng, lex):
    kind = rng.randrange(5)
    months = "January February March April May June July August September October November December".split()
    if kind == 0:
        return f"{rng.randrange(1, 29)} {rng.choice(months)} {rng.randrange(1990, 2027)}"
    if kind == 1:
        return " ".join(w.capitalize() for w in lex.content(rng.choice((1, 2))))
    if kind == 2:
        return f"{rng.randrange(2, 900)} {lex.content(1)[0]}"
    if kind == 3:
        return " ".join(lex.content(3))
    return " and ".join(lex.content(2))


def friends(seed, tokens=120_000):
    rng = random.Random(seed)
    lex = Lexicon(rng)
    msgs, probes, size = list(HEAD), [], 0
    while size < tokens:
        role = ("user", "assistant")[len(msgs) % 2 == 0]
        sents = [lex.sentence(rng.randrange(5, 18)) for _ in range(rng.randrange(1, 4))]
        if rng.random() < 0.3:
            f = fact(rng, lex)
            topic = lex.content(1)[0]
            sents.insert(rng.randrange(len(sents) + 1), lex.sentence(rng.randrange(5, 12), f, topic))
            probes.append(Probe(topic, f, (len(msgs),)))
        msgs.append({"role": role, "content": " ".join(sents)})
        size += estimate_message(msgs[-1])
    yield Conversation("friends", msgs, probes)


def assistant_chat(seed, tokens=180_000):
    rng = random.Random(seed)
    lex = Lexicon(rng, s=1.05)
    msgs, probes, size = list(HEAD), [], 0
    while size < tokens:
        user = [lex.sentence(rng.randrange(5, 18)) for _ in range(rng.randrange(1, 5))]
        ans = [lex.sentence(rng.randrange(8, 22)) for _ in range(rng.randrange(6, 25))]
        who = user if rng.random() < 0.8 else ans
        if rng.random() < 0.5:
            f = fact(rng, lex)
            topic = lex.content(1)[0]
            who.insert(rng.randrange(len(who) + 1), lex.sentence(rng.randrange(5, 12), f, topic))
            probes.append(Probe(topic, f, (len(msgs) + (who is ans),)))
        for role, s in (("user", user), ("assistant", ans)):
            msgs.append({"role": role, "content": " ".join(s)})
            size += estimate_message(msgs[-1])
    yield Conversation("assistant", msgs, probes)


def topics(seed, tokens=150_000):
    """English documentation as long answers; half-sentences are asked for."""
    from pydoc_data.topics import topics as docs

    rng = random.Random(seed)
    msgs, size = list(HEAD), 0
    paras = [p for k in sorted(docs) for p in docs[k].split("\n\n") if len(p) > 60]
    start = rng.randrange(len(paras) // 2)
    at = start
    while size < tokens and at < len(paras):
        n = rng.randrange(1, 6)
        ps = paras[at : at + n]
        at += n
        q = " ".join(rng.sample(ps[0].split(), min(6, len(ps[0].split()))))
        for m in ({"role": "user", "content": f"What about {q}?"}, {"role": "assistant", "content": "\n\n".join(ps)}):
            msgs.append(m)
            size += estimate_message(m)
    yield Conversation("topics", msgs, cloze(msgs, rng, 300, ("assistant",)))


def conversations(half: int) -> Iterator[Conversation]:
    yield from tau_conversations(half, count=1)
    yield from tau_unsaid(half, count=1)
    yield from tau_chat(half)
    yield from pi_conversations(half)
    yield from swe_conversations(half)
    yield from friends(half + 10)
    yield from assistant_chat(half + 20)
    yield from topics(half + 30)


def filler(half: int) -> list[ChatMessage]:
    """Real text that follows: sessions and dialogues of the other half."""
    other = 1 - half
    ds = tau(other)
    out = pi(("before-compaction", "large-session")[other])[:400]
    for d in ds[::-1]:
        out += d
    return out


def run(half: int, *, further: bool = False) -> None:
    total = Counter()
    after = filler(half) if further else []
    for conv in conversations(half):
        wanted = keys(conv)
        row = []
        for window in WINDOWS:
            v = View(window)
            for m in conv.messages:
                v.add(m)
            v.compact()
            full = score(wanted, v.words())
            row.append(full)
            if further:
                rest = iter(after)
                trace = []
                for _ in range(FURTHER):
                    n = 0
                    while v.tokens < v.limit:
                        m = next(rest, None)
                        if m is None:
                            rest = iter(after)
                            m = next(rest)
                        v.add(m)
                        n += 1
                    v.compact()
                    trace.append(score(wanted, v.words()))
                row.append(trace[0] - full)
                row.append(trace[-1] - full)
        for n, x in enumerate(row):
            total[n] += x
        total["n"] += 1
        size = sum(v.sizes[: len(conv.messages)]) // 1000
        types = len(set().union(*(words(full_text(m)) for m in conv.messages)))
        print(f"{conv.name:14} {types:6} {len(conv.messages):5} msgs {size:4}K probes {len(wanted):4} |K| {sum(map(len, wanted)) / len(wanted):5.1f} ", " ".join(f"{x:7.3f}" for x in row), flush=True)
    print("mean", " ".join(f"{total[n] / total['n']:.3f}" for n in range(len(row))))


if __name__ == "__main__":
    run(int(sys.argv[1]), further="further" in sys.argv)
