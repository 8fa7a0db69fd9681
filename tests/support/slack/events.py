"""The JSON that Slack sends and shows: messages, events, interactions, slash commands."""

from typing import Any

from tests.support.slack.blocks import buttons_of
from tests.support.slack.faults import Json
from tests.support.slack.workspace import Channel, File, Message, Workspace


def message_json(
    workspace: Workspace, message: Message, *, root: str = "", metadata: bool = True
) -> Json:
    """Return a message as history shows it; `metadata` is left out unless asked for."""
    shown: Json = {
        "type": "message",
        "user": message.user,
        "text": message.text if message.markdown is None else message.markdown,
        "ts": message.ts,
        "team": workspace.identity.team,
        "blocks": message.blocks or [_rich_text(message.shown)],
    }
    shown |= _posted_by(workspace, message)
    if message.subtype:
        shown["subtype"] = message.subtype
    if message.attachments:
        shown["attachments"] = message.attachments
    if message.files:
        shown["files"] = [file_json(file, root, brief=True) for file in message.files]
    if message.metadata is not None and metadata:
        shown["metadata"] = message.metadata
    if message.edited_ts:
        shown["edited"] = {"user": message.user, "ts": message.edited_ts}
    if message.reactions:
        shown["reactions"] = [
            {"name": name, "users": users, "count": len(users)}
            for name, users in message.reactions.items()
        ]
    return shown | _thread_fields(workspace, message)


def _posted_by(workspace: Workspace, message: Message) -> Json:
    if message.bot is None:
        return {"client_msg_id": f"00000000-{message.ts}"}
    profile = {"id": message.bot, "app_id": message.app, "name": message.user, "deleted": False}
    return {"bot_id": message.bot, "app_id": message.app, "bot_profile": profile}


def _thread_fields(workspace: Workspace, message: Message) -> Json:
    if message.thread is not None:
        parent = workspace.find(message.channel, message.thread)
        author = {} if parent is None else {"parent_user_id": parent.user}
        return {"thread_ts": message.thread} | author
    replies = workspace.replies(message.channel, message.ts)
    if not replies:
        return {}
    users = list(dict.fromkeys(reply.user for reply in replies))
    return {
        "thread_ts": message.ts,
        "reply_count": len(replies),
        "reply_users_count": len(users),
        "latest_reply": replies[-1].ts,
        "reply_users": users,
        "subscribed": True,
    }


def _rich_text(text: str) -> Json:
    section = {"type": "rich_text_section", "elements": [{"type": "text", "text": text}]}
    return {"type": "rich_text", "block_id": "rt", "elements": [section]}


def file_json(file: File, root: str, *, brief: bool = False) -> Json:
    """Return a file object; in an event one of Slack Connect has only its id."""
    if file.stub and brief:
        return {"id": file.id, "mode": "file_access", "file_access": "check_file_info"}
    if file.gone:
        return {"id": file.id, "mode": "tombstone"}
    extension = file.name.rpartition(".")[2]
    url = f"{root}/files-pri/{file.id}/{file.name}"
    shares: dict[str, list[Json]] = {}
    for channel, ts in file.shares:
        shares.setdefault(channel, []).append({"ts": ts})
    return {
        "id": file.id,
        "created": 1_700_000_000,
        "name": file.name,
        "title": file.title or file.name,
        "mimetype": file.mime,
        "filetype": extension,
        "user": file.user,
        "mode": "hosted",
        "size": file.claimed_bytes,
        "is_external": False,
        "url_private": url,
        "url_private_download": f"{url}?download",
        "shares": {"public": shares},
        "channels": list(shares),
    }


def message_event(workspace: Workspace, message: Message, root: str) -> Json:
    """Return the `message` event of a new message."""
    channel = workspace.channels[message.channel]
    event = message_json(workspace, message, root=root)
    return event | _where(channel, message.ts)


def mention_event(workspace: Workspace, message: Message, root: str) -> Json:
    """Return the `app_mention` event of a message; it has neither channel type nor subtype."""
    event = message_json(workspace, message, root=root) | {"type": "app_mention"}
    event.pop("subtype", None)
    return event | {"channel": message.channel, "event_ts": message.ts}


def changed_event(workspace: Workspace, message: Message, before: Json, root: str) -> Json:
    """Return the event of an edit or of anything else that changed a message (an unfurl)."""
    now = message_json(workspace, message, root=root)
    ts = workspace.new_ts()
    event: Json = {"type": "message", "subtype": "message_changed", "hidden": True, "ts": ts}
    event |= {"message": now, "previous_message": before}
    return event | _where(workspace.channels[message.channel], ts)


def deleted_event(workspace: Workspace, message: Message, before: Json) -> Json:
    """Return the event of a deletion."""
    ts = workspace.new_ts()
    event: Json = {"type": "message", "subtype": "message_deleted", "hidden": True, "ts": ts}
    event |= {"deleted_ts": message.ts, "previous_message": before}
    return event | _where(workspace.channels[message.channel], ts)


def _where(channel: Channel, ts: str) -> Json:
    return {"channel": channel.id, "event_ts": ts, "channel_type": channel.kind}


def thread_started_event(workspace: Workspace, channel: Channel, ts: str) -> Json:
    """Return the event of a person who opens the assistant container."""
    context = {"channel_id": channel.id, "team_id": workspace.identity.team, "enterprise_id": None}
    thread = {"user_id": channel.user, "context": context, "channel_id": channel.id}
    thread |= {"thread_ts": ts}
    return {"type": "assistant_thread_started", "assistant_thread": thread, "event_ts": ts}


def event_callback(workspace: Workspace, event: Json) -> Json:
    """Wrap an event as the Events API does."""
    identity = workspace.identity
    authorization = {
        "enterprise_id": None,
        "team_id": identity.team,
        "user_id": identity.user,
        "is_bot": True,
        "is_enterprise_install": False,
    }
    return {
        "token": "verification-token",
        "team_id": identity.team,
        "context_team_id": identity.team,
        "context_enterprise_id": None,
        "api_app_id": identity.app,
        "event": event,
        "type": "event_callback",
        "event_id": f"Ev{workspace.number():08d}",
        "event_time": int(float(event["event_ts"])),
        "authorizations": [authorization],
        "is_ext_shared_channel": False,
        "event_context": "4-loopback",
    }


def block_actions(workspace: Workspace, message: Message, label: str, user: str, root: str) -> Json:
    """Return the interaction of a person who presses a button."""
    button = next(b for b in buttons_of(message.blocks) if b["text"]["text"] == label)
    channel = workspace.channels[message.channel]
    container: Json = {"type": "message", "message_ts": message.ts, "channel_id": channel.id}
    container |= {"is_ephemeral": False}
    if message.thread:
        container["thread_ts"] = message.thread
    fields = ("action_id", "block_id", "text", "value", "type", "style")
    action = {name: button[name] for name in fields if name in button}
    return _interaction(workspace, user, root) | {
        "type": "block_actions",
        "container": container,
        "channel": {"id": channel.id, "name": channel.name},
        "message": message_json(workspace, message, root=root),
        "state": {"values": {}},
        "actions": [action | {"action_ts": workspace.new_ts()}],
    }


def _interaction(workspace: Workspace, user: str, root: str) -> Json:
    identity, number = workspace.identity, workspace.number()
    name = workspace.people[user].name
    return {
        "user": {"id": user, "username": name, "name": name, "team_id": identity.team},
        "api_app_id": identity.app,
        "token": "verification-token",
        "trigger_id": f"{number}.{number}.loopback",
        "team": {"id": identity.team, "domain": "loopback"},
        "enterprise": None,
        "is_enterprise_install": False,
        "response_url": f"{root}/actions/{identity.team}/{number}/secret",
    }


def slash_command(
    workspace: Workspace, channel: str, user: str, command: tuple[str, str], root: str
) -> dict[str, Any]:
    """Return the form fields of a slash command; `command` is its name and what follows it."""
    identity, number = workspace.identity, workspace.number()
    return {
        "token": "verification-token",
        "team_id": identity.team,
        "team_domain": "loopback",
        "channel_id": channel,
        "channel_name": workspace.channels[channel].name,
        "user_id": user,
        "user_name": workspace.people[user].name,
        "command": command[0],
        "text": command[1],
        "api_app_id": identity.app,
        "is_enterprise_install": "false",
        "response_url": f"{root}/commands/{identity.team}/{number}/secret",
        "trigger_id": f"{number}.{number}.loopback",
    }
