"""The real Telegram adapter against the strict loopback Bot API, killed 25 times."""

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from random import Random

import pytest

from adapters.telegram.render import RESENT_MARK
from gateway.pipeline import notices
from tests.crash.points import COMMON, OUTSIDE, SHOWN, around
from tests.support.bot_api import DROP, TOKEN, BotApi
from tests.support.crash import Crashes, describe, seeds, until
from tests.support.crash_oracle import Evidence, is_answer, violations
from tests.support.crash_script import RESENT, UNFINISHED

UPDATES = 100
KILLS = 25
CHATS = (11, 12, 13, 14, 15)
OPS = 19
MINUTE_S = 6.0
POINTS = [*around(*COMMON[3:], "announce_preview", "set_preview"), *OUTSIDE[:7], SHOWN]
NAMED = f"{notices.REPLACES}\n\n"
VERBS = ("", "", "note", "look put")


@pytest.fixture
async def api() -> AsyncIterator[BotApi]:
    """Telegram."""
    async with BotApi() as api:
        yield api


@pytest.mark.parametrize("seed", seeds(1, 1, 20))
async def test_every_update_is_answered_once_in_order(
    crashes: Crashes, api: BotApi, seed: int
) -> None:
    """100 updates in five chats, kill -9 at 25 random moments; a second showing is marked."""
    dice = Random(seed)  # noqa: S311 - repeatable on purpose
    block = {"token": TOKEN, "base_url": api.root}
    crashes.configure(style="edit", real=("telegram", block), mode="followup", attempts=100)
    sent: list[tuple[str, str]] = []
    for _ in range(KILLS):
        for _ in range(UPDATES // KILLS):
            text = f"m{len(sent) + 1} {dice.choice(VERBS)}".strip()
            chat = dice.choice(CHATS)
            api.push_text(chat, text)
            sent.append((str(chat), text))
        at_point = [dice.choice(POINTS), dice.randint(1, 3)]
        pid = crashes.start(kill=at_point if dice.random() < 0.6 else None)
        await crashes.disturb(pid, after_s=dice.uniform(0.05, 0.5))
    pid = crashes.start()
    await api.wait_for(lambda: not api.pending and answered_by(api) == UPDATES, timeout_s=120)
    assert await crashes.stop(pid) == 0, crashes.log()
    print(f"seed {seed}: {crashes.kills} kills")
    assert crashes.kills == KILLS
    assert not api.violations
    found = violations(as_seen_on_telegram(crashes.evidence(), api, sent))
    assert not found, describe(found, crashes)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "routes"),
    [
        ("adapter-silent", ["sendMessage"]),
        ("adapter-unreachable", ["getUpdates", "getMe"]),
    ],
)
async def test_a_telegram_that_is_away_is_told_of_once(
    crashes: Crashes, api: BotApi, kind: str, routes: list[str]
) -> None:
    """The connection breaks at each request, in two lives of which one is killed."""
    block = {"token": TOKEN, "base_url": api.root}
    # Whether a message is taken before the connection breaks, or with the next one, is chance.
    crashes.configure(real=("telegram", block), mode="followup")
    crashes.configure(minute_s=MINUTE_S, alerts_to=f"telegram:{OPS}")
    crashes.expect(kind)
    sent = [(str(chat), f"m{n}") for n, chat in enumerate((OPS, CHATS[0], CHATS[0]), start=1)]
    crashes.seen = lambda evidence: as_seen_on_telegram(evidence, api, sent)
    pid = crashes.start()
    api.push_text(OPS, "m1")
    await api.wait_for(lambda: answered_by(api) == 1)
    for route in routes:
        api.fail(route, *[DROP] * 10_000)
    api.push_text(CHATS[0], "m2")
    await until(crashes.raised)
    await crashes.kill(pid)
    pid = crashes.start()
    await crashes.looked()
    api.mend(*routes)
    api.push_text(CHATS[0], "m3")
    await api.wait_for(lambda: not api.pending and answered_by(api) == len(sent), timeout_s=120)
    await crashes.settle()
    assert await crashes.stop(pid) == 0, crashes.log()
    assert not api.violations
    assert not (found := crashes.violations()), describe(found, crashes)


def as_seen_on_telegram(evidence: Evidence, api: BotApi, sent: list[tuple[str, str]]) -> Evidence:
    """Return the evidence with what stands in Telegram's chats; all updates were confirmed."""
    shown = defaultdict(list)
    previews, explained = [], set()
    for message in api.messages:
        if message.text.endswith(UNFINISHED):
            previews.append(message.text)
        else:
            text = message.text.replace(RESENT_MARK, RESENT, 1)
            if NAMED in text:
                text = text.replace(NAMED, "", 1)
                explained.add(text.removeprefix(RESENT))
            shown[str(message.chat)].append(text)
    return replace(
        evidence,
        sent=sent,
        shown=dict(shown),
        previews=previews,
        explained=len(explained),
    )


def answered_by(api: BotApi) -> int:
    """Return how many messages have an answer that is not a preview."""
    shown = (message.text.removeprefix(RESENT_MARK) for message in api.messages)
    texts = (text.removeprefix(NAMED) for text in shown)
    finals = (text for text in texts if is_answer(text) and not text.endswith(UNFINISHED))
    return len({text.split()[0] for text in finals})
