"""What is done at Slack after an update was stored: buttons go, threads get titles. Best effort."""

from typing import NoReturn

import structlog

from adapters.slack.client import Client
from adapters.slack.errors import CallFailed, mapped
from adapters.slack.ingest import Ingest, Title
from adapters.slack.interactions import Press, pressed_blocks

log = structlog.get_logger()

_TITLE_CHARS = 80
_NOT_FOR_YOU = "This button is not for you."


async def follow_up(ingest: Ingest, client: Client) -> NoReturn:
    """Work until cancelled."""
    while True:
        item = await ingest.followups.get()
        try:
            with mapped():
                await _carry_out(item, client)
        except CallFailed as exc:
            log.debug("slack_followup_failed", action=type(item).__name__, reason=exc.code)


async def _carry_out(item: Press | Title, client: Client) -> None:
    if isinstance(item, Press) and _is_refused(item):
        await client.web.chat_postEphemeral(
            channel=item.channel,
            user=item.message.sender,
            text=_refusal(item),
            thread_ts=item.message.address.thread,
        )
    elif isinstance(item, Press):
        await client.web.chat_update(
            channel=item.channel,
            ts=item.ts,
            text=item.text or item.label,
            blocks=pressed_blocks(item),
        )
    else:
        await client.web.assistant_threads_setTitle(
            channel_id=item.channel, thread_ts=item.thread, title=_title(item.text)
        )


def _is_refused(press: Press) -> bool:
    """Whether who pressed may not, which takes no button off."""
    admission = press.admission
    return admission is not None and (
        admission.answer == "refused" or admission.outcome in {"denied", "ignored"}
    )


def _refusal(press: Press) -> str:
    return (press.admission.told if press.admission else "") or _NOT_FOR_YOU


def _title(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE_CHARS else f"{line[: _TITLE_CHARS - 1]}…"
