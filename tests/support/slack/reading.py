"""Reading the workspace: auth.test, conversations.*, users.*, bots.*."""

from typing import Any

from tests.support.slack import events
from tests.support.slack.faults import ApiError, Json
from tests.support.slack.methods import Methods
from tests.support.slack.workspace import Channel, Message

_HISTORY = {"channel": "channels", "group": "groups", "im": "im", "mpim": "mpim"}


class ReadingMethods(Methods):
    """The methods that change nothing."""

    def _do_auth_test(self, _params: Json) -> Json:
        identity = self._workspace.identity
        return {
            "url": "https://loopback.slack.com/",
            "team": "Loopback",
            "user": identity.name,
            "team_id": identity.team,
            "user_id": identity.user,
            "bot_id": identity.bot,
            "is_enterprise_install": False,
        }

    def _do_conversations_history(self, params: Json) -> Json:
        channel = self._readable(params)
        found = [m for m in self._workspace.in_channel(channel.id) if _within(m, params)]
        found.reverse()
        return self._page(found, params)

    def _do_conversations_replies(self, params: Json) -> Json:
        channel = self._readable(params)
        ts = str(params.get("ts"))
        message = self._workspace.find(channel.id, ts)
        if message is None:
            raise ApiError("thread_not_found")
        parent = message
        if message.thread is not None:
            parent = self._workspace.find(channel.id, message.thread) or message
        replies = self._workspace.replies(channel.id, parent.ts)
        return self._page([m for m in replies if _within(m, params)], params, [parent])

    def _page(self, found: list[Message], params: Json, head: list[Message] | None = None) -> Json:
        limit = min(int(params.get("limit") or 100), self.history_limit)
        if limit < 1:
            raise ApiError("invalid_limit")
        forward = self.page_forward and head is None and "oldest" in params
        start = _offset(params)
        if forward and "latest" not in params:
            end = max(len(found) - start, 0)
            page, more = found[max(end - limit, 0) : end], end > limit
        else:
            page, more = found[start : start + limit], len(found) > start + limit
        metadata = _true(params.get("include_all_metadata"))
        messages = [
            events.message_json(self._workspace, m, root=self.root, metadata=metadata)
            for m in [*(head or []), *page]
        ]
        cursor = {"next_cursor": f"bmV4dDo={start + limit}" if more else ""}
        return {"messages": messages, "has_more": more, "response_metadata": cursor}

    def _readable(self, params: Json) -> Channel:
        channel = self._workspace.channel(params.get("channel"))
        self._need(f"{_HISTORY[channel.kind]}:history")
        return channel

    def _do_conversations_info(self, params: Json) -> Json:
        channel = self._workspace.channels.get(str(params.get("channel")))
        if channel is None or (not channel.member and channel.kind != "channel"):
            raise ApiError("channel_not_found")
        self._need(f"{_HISTORY[channel.kind]}:read")
        return {"channel": _channel_json(channel)}

    def _do_conversations_list(self, params: Json) -> Json:
        types = str(params.get("types") or "public_channel").split(",")
        names = {"public_channel": "channel", "private_channel": "group"}
        kinds = [names.get(name, name) for name in types]
        for kind in kinds:
            self._need(f"{_HISTORY[kind]}:read")
        found = [c for c in self._workspace.channels.values() if c.kind in kinds]
        start, limit = _offset(params), int(params.get("limit") or 100)
        more = len(found) > start + limit
        cursor = {"next_cursor": f"bmV4dDo={start + limit}" if more else ""}
        page = [_channel_json(channel) for channel in found[start : start + limit]]
        return {"channels": page, "response_metadata": cursor}

    def _do_users_conversations(self, params: Json) -> Json:
        listed = self._do_conversations_list(params)
        listed["channels"] = [c for c in listed["channels"] if c.get("is_member", True)]
        return listed

    def _do_conversations_open(self, params: Json) -> Json:
        for channel in self._workspace.channels.values():
            if channel.kind == "im" and channel.user == params.get("users"):
                return {"channel": {"id": channel.id}}
        raise ApiError("user_not_found")

    def _do_users_info(self, params: Json) -> Json:
        person = self._workspace.people.get(str(params.get("user")))
        if person is None:
            raise ApiError("user_not_found")
        profile = {"display_name": person.name, "real_name": person.name.title()}
        return {
            "user": {
                "id": person.id,
                "team_id": self._workspace.identity.team,
                "name": person.name,
                "real_name": person.name.title(),
                "is_bot": person.bot is not None,
                "profile": profile | ({"bot_id": person.bot} if person.bot else {}),
            }
        }

    def _do_bots_info(self, params: Json) -> Json:
        for person in self._workspace.people.values():
            if person.bot is not None and person.bot == params.get("bot"):
                return {"bot": {"id": person.bot, "name": person.name, "user_id": person.id}}
        raise ApiError("bot_not_found")


def _within(message: Message, params: Json) -> bool:
    inclusive = _true(params.get("inclusive"))
    ts, oldest, latest = message.ts, params.get("oldest"), params.get("latest")
    if inclusive and ts in {oldest, latest}:
        return True
    if oldest and float(oldest) and not _later(ts, str(oldest)):
        return False
    return not latest or _later(str(latest), ts)


def _later(a: str, b: str) -> bool:
    return _micros(a) > _micros(b)


def _micros(ts: str) -> int:
    seconds, _, fraction = ts.partition(".")
    return int(seconds) * 1_000_000 + int(fraction.ljust(6, "0")[:6] or 0)


def _offset(params: Json) -> int:
    cursor = params.get("cursor")
    if not cursor:
        return 0
    head, _, offset = str(cursor).rpartition("=")
    if head != "bmV4dDo" or not offset.isdigit():
        raise ApiError("invalid_cursor")
    return int(offset)


def _true(value: Any) -> bool:
    return value in {True, "1", "true", "True"}


def _channel_json(channel: Channel) -> Json:
    kinds = {
        "is_channel": channel.kind == "channel",
        "is_group": channel.kind == "group",
        "is_im": channel.kind == "im",
        "is_mpim": channel.kind == "mpim",
        "is_private": channel.kind != "channel",
    }
    shown = {"id": channel.id, "is_archived": channel.archived} | kinds
    if channel.kind == "im":
        return shown | {"user": channel.user}
    return shown | {"name": channel.name, "is_member": channel.member}
