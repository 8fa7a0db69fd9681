"""python-telegram-bot's Bot with checked responses and request budgets.

The stock request class distinguishes error responses from broken connections only by text, and logs
a warning on each 429; `CheckedRequest` raises classes with attributes instead. Every request passes
through it, so a cancelled caller does not abort a request.
"""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit
from warnings import filterwarnings

import httpx
import structlog
import telegram
from telegram import LinkPreviewOptions, ReplyParameters, User, WebhookInfo
from telegram.error import NetworkError, TelegramError
from telegram.request import BaseRequest, HTTPXRequest, RequestData
from telegram.warnings import PTBUserWarning
from typing_extensions import override

from adapters.base import Clock, Recent
from adapters.errors import AdapterError
from adapters.messages import Address
from adapters.outbound import Outbound, Shut, Verdict
from adapters.pacing import PaceLimits, Pacer
from adapters.registry import AccountReport, credential
from adapters.telegram.errors import (
    Flooded,
    MalformedAnswer,
    ServerTrouble,
    TooManyRequests,
    mapped_edit,
    mapped_receiving,
    mapped_send,
)
from adapters.telegram.platform import TelegramSettings
from agent.network import in_words, proxy_for, tls_for

log = structlog.get_logger()

PUBLIC_ROOT = "https://api.telegram.org"
LIMITS = PaceLimits(per_s=30, chat_interval_s=1.0, group_per_min=20)
"""Source: https://core.telegram.org/bots/faq#my-bot-is-hitting-limits-how-do-i-avoid-this"""
# Telegram neither sends nor keeps other kinds.
ALLOWED_UPDATES = ("message", "edited_message", "callback_query", "my_chat_member")
_NO_LINK_PREVIEW = {"link_preview_options": LinkPreviewOptions(is_disabled=True)}
_ANSWER_TIMEOUT_S = 20.0
_UPLOAD_TIMEOUT_S = 60.0
_POOL_TIMEOUT_S = 5.0
# Above the sum of the client's connect, write and read timeouts.
_DEADLINE_S = 60.0
_UPLOAD_DEADLINE_S = 300.0
_CONNECTIONS = 64
# Telegram does not say whether a 429 concerns a chat or the bot; in the latter case it hits several
# chats.
_FLOODED_CHATS = 3
_FLOODED_WITHIN_S = 5.0
# Error statuses of the server itself, not of the Bot API.
_OWN = frozenset({HTTPStatus.REQUEST_ENTITY_TOO_LARGE, *range(500, 600)})
_NO_GROUPS = (
    "it cannot be added to groups, which direct chats do not need: /setjoingroups, the bot, Enable"
    " (https://t.me/BotFather)"
)
# The SDK's `get_updates` fails for a whole batch.
filterwarnings("ignore", "Please use 'Bot.getUpdates'", PTBUserWarning)


class CheckedRequest(BaseRequest):
    """Requests over the stock transport; responses that the SDK would misread raise errors."""

    def __init__(self, account: str, root: str) -> None:
        self._new_transport = partial(
            HTTPXRequest,
            connection_pool_size=_CONNECTIONS,
            read_timeout=_ANSWER_TIMEOUT_S,
            pool_timeout=_POOL_TIMEOUT_S,
            media_write_timeout=_UPLOAD_TIMEOUT_S,
            proxy=proxy_for(root),
            httpx_kwargs={"verify": tls_for(root), "trust_env": False},
        )
        self._transport: HTTPXRequest | None = None
        self.outbound = Outbound("telegram", account, self._swap, _verdict, limit=_CONNECTIONS)

    @property
    @override
    def read_timeout(self) -> float:
        return _ANSWER_TIMEOUT_S

    @override
    async def initialize(self) -> None:
        """Do nothing; the first request opens a connection."""

    @override
    async def shutdown(self) -> None:
        for shut in self._swap():
            await shut()

    @override
    async def do_request(self, *args: Any, **kwargs: Any) -> tuple[int, bytes]:
        self._transport = self._transport or self._new_transport()
        request = self._transport.do_request(*args, **kwargs)
        try:
            status, body = await self.outbound.run(request, _deadline_s(**kwargs))
        except (TimeoutError, ConnectionAbortedError) as exc:
            raise NetworkError(f"The request was ended: {in_words(exc, quoted=True)}") from exc
        answer = _parse(body)
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            if answer is None or "result" not in answer:
                raise MalformedAnswer("Malformed answer")
        # The SDK distinguishes these from a broken connection only by text.
        elif answer is None or status in _OWN:
            raise ServerTrouble(status)
        else:
            _check_flood(status, answer)
        return status, body

    def _swap(self) -> list[Shut]:
        """Let later requests open new connections; return functions that close the old ones."""
        transport, self._transport = self._transport, None
        return [transport.shutdown] if transport is not None else []


class Client:
    """One bot with its own connections and budgets; file addresses start with `files_root`."""

    def __init__(
        self, settings: TelegramSettings, limits: PaceLimits = LIMITS, clock: Clock = time.monotonic
    ) -> None:
        self.pacer = Pacer(limits, clock=clock)
        self._clock = clock
        self._refused_at: Recent[str, float] = Recent(_FLOODED_CHATS)
        self.token = credential(settings.token, "platforms.telegram.token")
        root = (settings.base_url or PUBLIC_ROOT).rstrip("/")
        request = CheckedRequest(settings.name, root)
        self.outbound = request.outbound
        # `Bot.shutdown` closes nothing if the bot was never started.
        self.close = request.outbound.close
        files = (settings.base_file_url or root).rstrip("/")
        self.files_root = f"{files}/file/bot{self.token}/"
        self.bot = telegram.Bot(
            self.token,
            # The SDK appends the token to both.
            base_url=f"{root}/bot",
            base_file_url=f"{files}/file/bot",
            request=request,
            # Otherwise the SDK opens a second pool for its unused poller.
            get_updates_request=request,
        )

    async def raw_updates(self, offset: int | None, timeout_s: int) -> Any:
        """Make one long poll and return its unchecked result."""
        data = {"offset": offset, "timeout": timeout_s, "allowed_updates": list(ALLOWED_UPDATES)}
        read_timeout = timeout_s + _ANSWER_TIMEOUT_S
        return await self.bot.do_api_request("getUpdates", data, read_timeout=read_timeout)

    async def post(self, address: Address, text: str, **options: Any) -> str:
        """Send a new message and return its id; raises like `Adapter.send`."""
        with mapped_send(self.token):
            options |= {"message_thread_id": topic(address), **_NO_LINK_PREVIEW}
            sent = await self.bot.send_message(address.chat, text, **options)
            return str(sent.message_id)

    async def edit(self, chat: str, ref: str, text: str, **options: Any) -> None:
        """Edit a message; raises like `mapped_edit`."""
        with mapped_edit(self.token):
            await self.bot.edit_message_text(text, chat, int(ref), **options | _NO_LINK_PREVIEW)

    def heed(self, chat: str, exc: AdapterError) -> None:
        """Block a chat or the whole bot for the pause that Telegram requested, if any."""
        if not isinstance(exc, Flooded) or exc.retry_after_s is None:
            return
        self.pacer.block(chat, exc.retry_after_s)
        self._refused_at[chat] = now = self._clock()
        lately = [at for at in self._refused_at.values() if now - at <= _FLOODED_WITHIN_S]
        if len(lately) == _FLOODED_CHATS:
            log.warning("telegram_flooded", seconds=exc.retry_after_s)
            # Several chats were refused at once: the bot's own limit is hit.
            self.pacer.block_all(exc.retry_after_s)

    @contextmanager
    def best_effort(self, action: str, chat: str) -> Iterator[None]:
        """Log and ignore the failure of an optional request."""
        try:
            yield
        except AdapterError as exc:
            self.heed(chat, exc)
            log.debug("telegram_signal_failed", action=action, chat=chat, reason=str(exc))


def is_group(chat: str) -> bool:
    """Whether a chat is a group or supergroup, which have negative ids."""
    return chat.startswith("-")


def topic(address: Address) -> int | None:
    """Return the `message_thread_id`; None for the chat itself."""
    return None if address.thread is None else int(address.thread)


def reply_to(ref: str | None) -> ReplyParameters | None:
    """Return the reply parameters for the answered message."""
    if ref is None:
        return None
    # Send the answer even if the question was deleted.
    return ReplyParameters(int(ref), allow_sending_without_reply=True)


async def check(settings: TelegramSettings) -> AccountReport:
    """Report the bot's name and the BotFather settings that limit its use.

    Does not disturb another program that receives for the bot.
    """
    client = Client(settings)
    try:
        with mapped_receiving(client.token):
            me = await client.bot.get_me()
            webhook = await client.bot.get_webhook_info()
    finally:
        await client.close(within_s=0)
    name = f"@{me.username}"
    return AccountReport(
        "accepted",
        f"the token is that of {name}",
        bot=name,
        lacks=tuple(_lacks(settings, me, webhook)),
        greeting=f"https://t.me/{me.username}?start=",
    )


def _lacks(settings: TelegramSettings, me: User, webhook: WebhookInfo) -> list[str]:
    found = []
    # Telegram may omit this field.
    if me.can_join_groups is False:
        found.append(_NO_GROUPS)
    # A webhook at the configured URL was set by an earlier start.
    if webhook.url and webhook.url != settings.webhook_url:
        # Its path may contain another program's secret.
        host = urlsplit(webhook.url).hostname
        found.append(
            f"another program receives for it at {host}: Parley takes its place when it starts;"
            " make a bot of its own with /newbot (https://t.me/BotFather)"
        )
    return found


def _deadline_s(
    request_data: RequestData | None = None, read_timeout: object = None, **_: object
) -> float:
    if request_data is not None and request_data.contains_files:
        return _UPLOAD_DEADLINE_S
    # A poll has its own timeout; the SDK's DEFAULT_NONE means the client's.
    return _DEADLINE_S + (read_timeout if isinstance(read_timeout, int | float) else 0.0)


def _verdict(exc: BaseException | None) -> Verdict:
    # Error responses have no transport exception as their cause.
    cause = exc.__cause__ if isinstance(exc, TelegramError) else exc
    if isinstance(cause, httpx.PoolTimeout):
        return "exhausted"
    return "unreachable" if isinstance(cause, httpx.HTTPError | TimeoutError) else "reached"


def _parse(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _check_flood(status: int, answer: dict[str, Any]) -> None:
    parameters = answer.get("parameters")
    seconds = parameters.get("retry_after") if isinstance(parameters, dict) else None
    seconds = float(seconds) if isinstance(seconds, int | float) else None
    if status == HTTPStatus.TOO_MANY_REQUESTS or seconds is not None:
        raise TooManyRequests(seconds)
