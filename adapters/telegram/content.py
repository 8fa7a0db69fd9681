"""What a message carries beside its words: files, and what can only be named (step 1); pure."""

from typing import Any

import orjson

from adapters.messages import Attachment, AttachmentKind
from adapters.telegram.wire import Content, FilePart, Message

# A venue holds a location too: the more telling one comes first.
_UNREADABLE = {
    "live_photo": "a live photo",
    "sticker": "an animated sticker",
    "venue": "a place",
    "location": "a location",
    "contact": "a contact",
    "poll": "a poll",
    "dice": "a dice",
    "game": "a game",
    "story": "a story",
    "paid_media": "paid media",
    "checklist": "a checklist",
    "invoice": "an invoice",
    "giveaway": "a giveaway",
}
# Source: python-telegram-bot 22.8, telegram.ext.filters.StatusUpdate.
_SERVICE = frozenset({
    "boost_added",
    "channel_chat_created",
    "chat_background_set",
    "chat_owner_changed",
    "chat_owner_left",
    "chat_shared",
    "checklist_tasks_added",
    "checklist_tasks_done",
    "connected_website",
    "delete_chat_photo",
    "direct_message_price_changed",
    "forum_topic_closed",
    "forum_topic_created",
    "forum_topic_edited",
    "forum_topic_reopened",
    "general_forum_topic_hidden",
    "general_forum_topic_unhidden",
    "gift",
    "gift_upgrade_sent",
    "giveaway_completed",
    "giveaway_created",
    "giveaway_winners",
    "group_chat_created",
    "left_chat_member",
    "managed_bot_created",
    "message_auto_delete_timer_changed",
    "migrate_from_chat_id",
    "migrate_to_chat_id",
    "new_chat_members",
    "new_chat_photo",
    "new_chat_title",
    "paid_message_price_changed",
    "passport_data",
    "pinned_message",
    "poll_option_added",
    "poll_option_deleted",
    "proximity_alert_triggered",
    "refunded_payment",
    "successful_payment",
    "suggested_post_approval_failed",
    "suggested_post_approved",
    "suggested_post_declined",
    "suggested_post_paid",
    "suggested_post_refunded",
    "supergroup_chat_created",
    "unique_gift",
    "users_shared",
    "video_chat_ended",
    "video_chat_participants_invited",
    "video_chat_scheduled",
    "video_chat_started",
    "web_app_data",
    "write_access_allowed",
})


def is_service(content: dict[str, Any]) -> bool:
    """Whether the message tells of an event in the chat; nobody said anything."""
    return not _SERVICE.isdisjoint(content)


def is_live_location(content: dict[str, Any]) -> bool:
    """Whether an edit only moves a point on a map."""
    return "location" in content


def attachments(message: Content | None) -> tuple[Attachment, ...]:
    """Return the file of a message; there is at most one, an album is several messages."""
    file = None if message is None else _file(message)
    return () if file is None else (file,)


def unreadable(content: dict[str, Any], message: Message) -> str | None:
    """Name what a message carries that is neither words nor a file; None if there is nothing."""
    if _file(message) is not None:
        return None
    for field, name in _UNREADABLE.items():
        if field in content:
            return name
    if message.words.strip():
        return None
    return "an empty message" if "text" in content else "a message of an unknown kind"


def file_id_of(attachment: Attachment) -> str:
    """Return what getFile wants to know."""
    file_id: str = orjson.loads(attachment.ref)["file_id"]
    return file_id


def _file(message: Content) -> Attachment | None:
    """Return the attachment; an animation comes with a document that is the same file."""
    for read in (_photo, _moving, _sound, _sticker, _document):
        if found := read(message):
            return found
    return None


def _photo(message: Content) -> Attachment | None:
    if not message.photo:
        return None
    largest = max(message.photo, key=lambda size: (size.width * size.height, size.file_size or 0))
    return _attachment(largest, "image", f"photo_{message.message_id}.jpg", "image/jpeg")


def _moving(message: Content) -> Attachment | None:
    file = message.video or message.animation or message.video_note
    if file is None:
        return None
    return _attachment(file, "video", f"video_{message.message_id}.mp4", "video/mp4")


def _sound(message: Content) -> Attachment | None:
    if message.voice is not None:
        return _attachment(message.voice, "voice", f"voice_{message.message_id}.ogg", "audio/ogg")
    if message.audio is None:
        return None
    name = message.audio.title or f"audio_{message.message_id}"
    return _attachment(message.audio, "audio", f"{name}.mp3", "audio/mpeg")


def _sticker(message: Content) -> Attachment | None:
    sticker = message.sticker
    if sticker is None or sticker.is_animated or sticker.is_video:
        return None
    return _attachment(sticker, "image", f"sticker_{message.message_id}.webp", "image/webp")


def _document(message: Content) -> Attachment | None:
    if message.document is None:
        return None
    kinds: dict[str, AttachmentKind] = {"image": "image", "audio": "audio", "video": "video"}
    kind = kinds.get(message.document.mime_type.partition("/")[0], "file")
    return _attachment(message.document, kind, f"file_{message.message_id}", "")


def _attachment(file: FilePart, kind: AttachmentKind, name: str, mime: str) -> Attachment:
    ids = {"file_id": file.file_id, "file_unique_id": file.file_unique_id}
    return Attachment(
        name=_last_part(file.file_name) or _last_part(name),
        kind=kind,
        mime=file.mime_type or mime,
        size_bytes=file.file_size,
        ref=orjson.dumps(ids).decode(),
    )


def _last_part(name: str) -> str:
    """Return a name without the folders in front of it, "" if nothing is left."""
    last = name.replace("\\", "/").rpartition("/")[2].strip()
    return "" if last in {".", ".."} else last
