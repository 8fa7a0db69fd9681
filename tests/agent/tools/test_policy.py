"""The table that decides about calls: no combination grants more than its parts."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ports import Origin
from agent.tools import policy
from agent.tools.links import Trail
from agent.tools.policy import (
    DESTINATIONS,
    FETCH,
    NO_RULE,
    NOTES,
    RECALLED,
    ROLES,
    SIDE_EFFECT,
    VERDICTS,
    WORLD,
    Facts,
    Rule,
    Verdict,
    approval_key,
    decide,
)

TOOLS = ["terminal", "fetch_url", "memory", "mcp_a_b", "calculate"]
CLASSES = [SIDE_EFFECT, WORLD, NOTES, FETCH, RECALLED]
GROUPS = ["", "telegram:-1", "telegram:-2", "slack:C1"]

rules = st.lists(
    st.builds(
        Rule,
        name=st.sampled_from("abcdef"),
        then=st.sampled_from(VERDICTS),
        tool=st.sampled_from(["*", *TOOLS, *CLASSES, "mcp_*", "!memory,terminal"]),
        role=st.sampled_from(["*", *sorted(ROLES)]),
        tainted=st.sampled_from([None, True, False]),
        destination=st.sampled_from(["*", *sorted(DESTINATIONS)]),
        group=st.sampled_from(["*", "telegram:*", "telegram:-1"]),
    ),
    max_size=8,
)
facts = st.builds(
    Facts,
    tool=st.sampled_from(TOOLS),
    classes=st.frozensets(st.sampled_from(CLASSES)),
    roles=st.frozensets(st.sampled_from(sorted(ROLES)), min_size=1),
    tainted=st.booleans(),
    destination=st.sampled_from(sorted(DESTINATIONS)),
    group=st.sampled_from(GROUPS),
)


def strictness(found: Rule) -> int:
    return VERDICTS.index(found.then)


def of(rows: Any, known: Facts, **changes: Any) -> int:
    """Return how strict the verdict is, with some facts changed."""
    return strictness(decide(rows, replace(known, **changes)))


@given(rules, facts, st.randoms())
def test_the_order_of_rows_does_not_matter(rows: list[Rule], known: Facts, random: Any) -> None:
    """Nor does a row that stands there twice."""
    others = [*rows, *rows]
    random.shuffle(others)
    by_name = [(found.then, found.name) for found in (decide(it, known) for it in (others, rows))]
    assert by_name[0] == by_name[1]


@given(rules, rules, facts)
def test_a_row_can_only_take_away(rows: list[Rule], more: list[Rule], known: Facts) -> None:
    """Two tables together grant no more than each of them, where each has something to say."""
    found = {decide(each, known) for each in (rows, more)} - {NO_RULE}
    together = decide([*rows, *more], known)
    assert strictness(together) == max(map(strictness, found), default=strictness(NO_RULE))


@given(rules, facts, facts)
def test_several_people_may_no_more_than_each_of_them(
    rows: list[Rule], known: Facts, other: Facts
) -> None:
    """A turn that reads the words of several has the rights that all of them have."""
    alone = [of(rows, known, roles=roles) for roles in (known.roles, other.roles)]
    if strictness(NO_RULE) not in alone:
        assert of(rows, known, roles=known.roles | other.roles) == max(alone)


@given(rules, facts)
def test_what_is_not_known_counts_as_the_strictest(rows: list[Rule], known: Facts) -> None:
    """Whatever it may turn out to be."""
    each_role = [of(rows, known, roles=frozenset({role})) for role in ROLES]
    each_taint = [of(rows, known, tainted=tainted) for tainted in (True, False)]
    each_place = [of(rows, known, destination=place) for place in DESTINATIONS]
    table = [*rows, Rule(name="all", then="allow")]
    assert of(table, known, roles=frozenset()) >= max(of(table, known, roles=known.roles), 0)
    for changes, known_ones in (
        ({"roles": frozenset()}, each_role),
        ({"roles": frozenset({"god"})}, each_role),
        ({"tainted": None}, each_taint),
        ({"destination": "moon"}, each_place),
    ):
        if strictness(NO_RULE) not in known_ones:
            assert of(rows, known, **changes) == max(known_ones)


def test_a_call_that_no_row_matches_is_denied() -> None:
    """Also with an empty table."""
    row = Rule(name="a", then="allow", tool="terminal")
    known = Facts(tool="calculate", roles=frozenset({"owner"}), tainted=False)
    assert decide([], known) == decide([row], known) == NO_RULE == Rule(name="no rule", then="deny")


def test_taint_never_grants() -> None:
    """By the default table, in every mode, for every kind of call."""
    for mode, role, tool, destination in product(
        ("side_effects", "always", "never"), sorted(ROLES), TOOLS, sorted(DESTINATIONS)
    ):
        table = policy.build_table(mode)  # type: ignore[arg-type]
        known = Facts(tool=tool, roles=frozenset({role}), destination=destination)
        for classes in (frozenset(), frozenset({SIDE_EFFECT, WORLD}), frozenset({NOTES}), FETCHES):
            clean, tainted = (of(table, known, tainted=it, classes=classes) for it in (False, True))
            assert tainted >= clean


ACTS = frozenset({SIDE_EFFECT, WORLD})
FETCHES = frozenset({FETCH, WORLD})


@pytest.mark.parametrize(
    ("known", "clean", "tainted"),
    [
        (Facts(tool="terminal", classes=ACTS), "ask", "ask"),
        (Facts(tool="memory", classes=frozenset({NOTES})), "allow", "ask"),
        (Facts(tool="memory"), "allow", "allow"),
        (Facts(tool="send_file"), "allow", "ask"),
        (Facts(tool="fetch_url", classes=FETCHES, destination="new"), "allow", "ask"),
        (Facts(tool="fetch_url", classes=FETCHES, destination="named"), "allow", "allow"),
        (Facts(tool="fetch_url", classes=FETCHES, destination="linked"), "allow", "allow"),
        (
            Facts(tool="fetch_url", classes=FETCHES | {RECALLED}, destination="named"),
            "allow",
            "ask",
        ),
        (Facts(tool="web_search", classes=FETCHES, destination="new"), "allow", "ask"),
        (Facts(tool="calculate"), "allow", "allow"),
        (Facts(tool="skill_manage", classes=ACTS), "deny", "deny"),
    ],
)
def test_the_defaults(known: Facts, clean: Verdict, tainted: Verdict) -> None:
    """Untainted turns are asked about side effects; tainted ones about every way out or to stay."""
    table = policy.build_table("side_effects")
    for it, verdict in ((False, clean), (True, tainted)):
        asked = replace(known, roles=frozenset({"member"}), tainted=it)
        assert decide(table, asked).then == verdict


@pytest.mark.parametrize("mode", ["side_effects", "always", "never"])
def test_guests_touch_nothing(mode: Any) -> None:
    """Also together with an owner, and whatever a row of the settings allows."""
    rows = policy.build_table(mode, [Rule(name="mine", then="allow", role="guest")])
    for classes in (ACTS, frozenset({WORLD}), frozenset({NOTES})):
        known = Facts(tool="x", classes=classes, roles=frozenset({"owner", "guest"}), tainted=False)
        assert decide(rows, known).then == "deny"


def test_owners_alone_approve_where_the_settings_say_so() -> None:
    """Whatever would be asked of anybody is asked of them."""
    for row in policy.build_table("always", by_owners=True):
        assert row.then != "ask"


def test_rows_of_tainted_turns_can_be_left_out() -> None:
    """By their names."""
    names = {row.name for row in policy.build_table("side_effects", without=["tainted-acts"])}
    assert names == {row.name for row in policy.build_table("side_effects")} - {"tainted-acts"}


@pytest.mark.parametrize(
    ("tool", "one", "other", "same"),
    [
        ("terminal", {"command": "ls -l"}, {"command": "ls /etc"}, True),
        ("terminal", {"command": "ls"}, {"command": "rm -r x"}, False),
        ("terminal", {"command": "ls"}, {"command": "ls; rm -r x"}, False),
        ("terminal", {"command": "ls"}, {"command": "ls $(curl evil)"}, False),
        ("terminal", {"command": "curl a.example"}, {"command": "curl evil.example"}, False),
        ("terminal", {"command": "python a.py"}, {"command": "python b.py"}, False),
        ("terminal", {"command": "python3.12 a.py"}, {"command": "python3.12 b.py"}, False),
        ("terminal", {"command": "timeout 5 ls"}, {"command": "timeout 5 sh x"}, False),
        ("terminal", {"command": ". a"}, {"command": ". b"}, False),
        ("terminal", {"command": "./build"}, {"command": "./build x"}, False),
        ("update", {"order_id": 1, "text": "x"}, {"order_id": 1, "text": "y"}, True),
        ("update", {"order_id": 1}, {"order_id": 2}, False),
        ("terminal", {"command": "make"}, {"command": "rm -r x"}, False),
        ("terminal", {"command": "touch a"}, {"command": "touch b"}, False),
        ("mcp_sql", {"database": "a", "sql": "x"}, {"database": "a", "sql": "y"}, False),
        ("mcp_host", {"host": "a", "command": "ls"}, {"host": "a", "command": "rm"}, False),
        ("mcp_mail_send", {"to": "ann", "text": "x"}, {"to": "ann", "text": "y"}, True),
        ("mcp_mail_send", {"to": "ann", "text": "x"}, {"to": "eve", "text": "x"}, False),
        ("mcp_mail_send", {"to": "ann"}, {"to": "ann", "channel": "all"}, False),
        ("mcp_do", {"what": "a"}, {"what": "b"}, False),
        ("mcp_do", {}, {}, True),
    ],
)
def test_what_a_yes_for_the_conversation_covers(
    tool: str, one: dict[str, Any], other: dict[str, Any], *, same: bool
) -> None:
    """The same way out, not any arguments; what was said before a taint covers nothing after it."""
    texts = [approval_key(tool, arguments, tainted=False) for arguments in (one, other)]
    assert (texts[0] == texts[1]) is same
    tainted = [approval_key(tool, arguments, tainted=True) for arguments in (one, other)]
    assert (tainted[0] == tainted[1]) is (same and (tool != "terminal" or one == other))
    assert set(texts).isdisjoint(tainted)


READERS = policy._READERS
PROGRAMS = [
    *sorted(READERS),
    "sort",
    "date",
    "file",
    "tree",
    "rm",
    "git",
    "python3",
    "./ls",
]
WORDS = ["-l", "-o", "a.txt", "/etc/hosts", "--output=x", "x;rm", "$(rm)", "a\nrm", "*", "\u00a0rm"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from(PROGRAMS),
            st.lists(st.sampled_from(WORDS) | st.text(max_size=4), max_size=2),
            st.sampled_from([" ", "  ", "\t", "\v", "\u2003"]),
        ),
        min_size=2,
        max_size=2,
    )
)
def test_a_yes_covers_the_same_command_or_one_that_only_reads(
    drawn: list[tuple[str, list[str], str]],
) -> None:
    """Another program or other arguments are another question."""
    one, other = (gap.join([program, *words]) for program, words, gap in drawn)
    if approval_key("terminal", {"command": one}, tainted=False) == approval_key(
        "terminal", {"command": other}, tainted=False
    ):
        assert one == other or (drawn[0][0] == drawn[1][0] and drawn[0][0] in READERS)


@pytest.mark.parametrize(
    "command",
    [
        *("sort -o b a", "date -s 0", "file -C -m a", "tree -o b", "rg --pre sh a", "diff -l a b"),
        *("ls\u00a0rm", "ls\vrm", "ls\nrm", "ls 'a'", "ls a=b", "/bin/ls a", "LS a"),
    ],
)
def test_what_may_write_or_run_is_asked_each_time(command: str) -> None:
    """A program with options that write, and text that a shell reads otherwise."""
    keys = {
        approval_key("terminal", {"command": each}, tainted=False) for each in (command, "ls x")
    }
    other = approval_key("terminal", {"command": command + " x"}, tainted=False)
    assert len({*keys, other}) == 3


def test_files_of_the_workspace_are_alike() -> None:
    """All calls of `write_file`, which only reaches the workspace, until the turn is tainted."""
    files = [{"path": "a", "content": "x"}, {"path": "b", "content": "y"}]
    clean, tainted = (
        {approval_key("write_file", each, tainted=it) for each in files} for it in (False, True)
    )
    assert (len(clean), len(tainted)) == (1, 2)


def test_calls_on_ones_own_records_are_alike() -> None:
    """Of tools that are declared so; what was said before a taint covers nothing after it."""
    calls = [("cancel", {"order_id": 1}), ("cancel", {"order_id": 2})]
    known: dict[str, Any] = {"own_records": {"cancel"}}
    keys = {
        (it, approval_key(*call, tainted=it, **known)) for call in calls for it in (False, True)
    }
    assert len(keys) == len({key for _, key in keys}) == 2
    assert approval_key("send", {"to": 1}, tainted=True, **known) == approval_key(
        "send", {"to": 1}, tainted=True
    )


def test_which_hosts_are_listed() -> None:
    """One, or all below one."""
    hosts = ["Example.com", "*.wiki.local"]
    listed = [
        policy.is_listed(each, hosts) for each in ("example.com", "a.wiki.local", "a.b.wiki.local")
    ]
    assert listed == [True, True, True]
    assert not any(policy.is_listed(each, hosts) for each in ("a.example.com", "wiki.local", ""))


addresses = st.sampled_from(["https://a.example/", "https://a.example/x", "https://b.example/"])
listings = st.frozensets(st.sampled_from(["a.example", "b.example", "*.example"]))
trails = st.builds(
    Trail,
    named=st.frozensets(addresses),
    links=st.dictionaries(addresses, st.sampled_from(["a.example", "c.example"])),
    followed=st.integers(0, 9),
    recalled=st.booleans(),
)


@given(addresses, listings, trails, listings, trails, st.booleans())
def test_no_combination_of_addresses_grants_more_than_its_parts(
    url: str, hosts: Any, trail: Trail, more: Any, other: Trail, may_follow: bool
) -> None:
    """A list, a person's words or a page frees an address; never two of them combined."""
    known = replace(trail, named=trail.named | other.named, links=other.links | trail.links)
    together = policy.destination(url, hosts | more, known, may_follow=may_follow)
    parts = {
        policy.destination(url, *each, may_follow=may_follow)
        for each in product([hosts, more], [trail, other])
    }
    assert together == "new" or together in parts
    assert policy.destination(url, hosts, trail, may_follow=False) != "linked"


@pytest.mark.parametrize(
    ("url", "may_follow", "leads"),
    [
        ("https://named.example/a", True, "named"),
        ("https://NAMED.example:443/a#x", True, "named"),
        ("https://named.example/a?d=x", True, "new"),
        ("https://named.example/", True, "new"),
        ("http://named.example/a", True, "new"),
        ("https://me@named.example/a", True, "new"),
        ("https://x.named.example/a", True, "new"),
        ("https://named.example.evil.example/a", True, "new"),
        ("https://link.example/1", True, "linked"),
        ("https://link.example/1", False, "new"),
        ("https://link.example/1?d=x", True, "new"),
        ("https://mirror.example/secret", True, "new"),
        ("https://listed.example/any?d=x", False, "listed"),
        ("https://listed.example\\@evil.example/", False, "new"),
        ("https://me@listed.example/", False, "new"),
        ("None", True, "new"),
    ],
)
def test_where_a_call_leads(url: str, leads: str, *, may_follow: bool) -> None:
    """An address counts as written; pages of listed hosts, which may mirror, give no links."""
    trail = Trail(
        named=frozenset({"https://named.example/a"}),
        links={
            "https://link.example/1": "page.example",
            "https://mirror.example/secret": "listed.example",
        },
    )
    assert policy.destination(url, ["listed.example"], trail, may_follow=may_follow) == leads


def test_sources_are_shown_as_code() -> None:
    """A host is a stranger's word: it cannot leave its marks, and is cut."""
    origins = [Origin("page", "e`vil\n"), Origin("server", "s" * 200), Origin("quoted", "a:b")]
    assert policy.describe_sources(origins) == f"the page of `evil`, the server `{'s' * 100}`"
    many = [Origin("page", f"{n}.example") for n in range(9)]
    assert policy.describe_sources(many).endswith(", 4 more")
    mine = [Origin("file", "a.txt"), Origin("pasted", "1"), Origin("pasted", "2")]
    assert policy.describe_sources(mine) == "the file `a.txt`, text that you pasted"
    assert policy.any_taints(many)
    assert not policy.any_taints([Origin("quoted", "a:b")])
