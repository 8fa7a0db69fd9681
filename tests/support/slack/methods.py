"""What the methods of the Web API share: scopes, threads, posting."""

import time
from typing import TYPE_CHECKING

from tests.support.slack.blocks import MASS_PING, PING, TS
from tests.support.slack.faults import ApiError, Json
from tests.support.slack.workspace import Channel, File, Message, Workspace

if TYPE_CHECKING:
    from collections.abc import Callable

SCOPES = frozenset({
    "app_mentions:read",
    "assistant:write",
    "channels:history",
    "channels:read",
    "chat:write",
    "commands",
    "files:read",
    "files:write",
    "groups:history",
    "groups:read",
    "im:history",
    "im:read",
    "im:write",
    "mpim:history",
    "mpim:read",
    "reactions:write",
    "users:read",
})


SESSION = "(agent session)"


class Methods:
    """What all methods share; they raise ApiError for what Slack refuses.

    Attributes:
        scopes: What the bot token is granted.
        stream_s: How long Slack keeps a stream open.
        history_limit: The most that one page of history or replies holds.
        page_forward: Answer history that has `oldest` but no `latest` beginning at `oldest`.
        post_burst: Posts that a channel takes at once before 1/s holds.
        agent: Whether the app has Slack's agent feature, and so sessions.
        working: What a thread shows while an answer is made, as it is now; its status or SESSION.
        statuses: Every status and session status that was set, with its channel and thread.
        lost_threads: What becomes of a post to a thread whose parent is gone: Slack un-threads it
            (slack-go/slack#1571) or refuses it.
    """

    def __init__(self, workspace: Workspace, violations: list[str]) -> None:
        self.scopes = set(SCOPES)
        self.stream_s = 300.0
        self.history_limit = 999
        self.page_forward = False
        self.lost_threads = "unthread"
        self.root = ""
        self.post_burst = 20
        self.posts: dict[str, list[float]] = {}
        self.agent = True
        self.working: dict[tuple[str, str], str] = {}
        self.statuses: list[tuple[str, str, str]] = []
        self.titles: list[tuple[str, str, str]] = []
        self.prompts: list[Json] = []
        self.ephemeral: list[tuple[str, str, str]] = []
        self.uploads: dict[str, File] = {}
        self.on_new: Callable[[Message], None]
        self.on_change: Callable[[Message, Json], None]
        self.on_delete: Callable[[Message, Json], None]
        self._workspace = workspace
        self._violations = violations

    def _need(self, scope: str) -> None:
        if scope and scope not in self.scopes:
            provided = ",".join(sorted(self.scopes))
            raise ApiError("missing_scope", needed=scope, provided=provided)

    def _writable(self, params: Json) -> Channel:
        return self._workspace.channel(params.get("channel"), write=True)

    def _note_pings(self, text: str, *, edit: bool = False) -> None:
        found = MASS_PING.search(text) or (None if edit else PING.search(text))
        if found:
            self._violations.append(f"the text rings a bell: {found.group()}")

    def _thread(self, channel: Channel, params: Json) -> str | None:
        """Return where a post goes; the reply to a lost parent becomes a message of the channel."""
        if not params.get("thread_ts"):
            return None
        thread = str(params["thread_ts"])
        if not TS.fullmatch(thread):
            raise ApiError("invalid_thread_ts")
        if self._workspace.thread_exists(channel.id, thread):
            return thread
        parent = self._workspace.find(channel.id, thread)
        if parent is not None:
            self._violations.append("thread_ts is that of a reply")
            return parent.thread
        if self.lost_threads == "refuse":
            raise ApiError("thread_not_found")
        return None

    def _known_thread(self, channel: Channel, params: Json) -> str:
        thread = str(params.get("thread_ts"))
        if not TS.fullmatch(thread):
            raise ApiError("invalid_thread_ts")
        if not self._workspace.thread_exists(channel.id, thread):
            raise ApiError("thread_not_found")
        return thread

    def _post(self, channel: Channel, thread: str | None, content: Message) -> Message:
        identity = self._workspace.identity
        content.channel, content.ts = channel.id, self._workspace.new_ts()
        content.user, content.bot, content.app = identity.user, identity.bot, identity.app
        content.thread = thread
        self._workspace.all_messages.append(content)
        return content

    def _announce(self, message: Message) -> None:
        """Note a post and tell the app of it."""
        stamps = self.posts.setdefault(message.channel, [])
        stamps.append(time.monotonic())
        allowed_s = 0.95 * self.post_burst
        if len(stamps) > self.post_burst and stamps[-1] - stamps[-1 - self.post_burst] < allowed_s:
            self._violations.append(f"more than 1 post per second in {message.channel}")
        where = (message.channel, message.thread or "")
        if self.working.get(where) != SESSION:
            self.working.pop(where, None)
        self.on_new(message)
