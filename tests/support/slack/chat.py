"""Posting, changing and streaming messages; docs.slack.dev/reference/methods/chat.*."""

import json
import time
from typing import Any

from tests.support.slack import events
from tests.support.slack.blocks import MARKDOWN_CHARS, TEXT_CHARS, UPDATE_TEXT_BYTES, check_blocks
from tests.support.slack.faults import ApiError, Json
from tests.support.slack.methods import Methods
from tests.support.slack.workspace import Channel, Message, Stream


class ChatMethods(Methods):
    """The methods chat.*."""

    def _do_chat_postmessage(self, params: Json) -> Json:
        channel = self._writable(params)
        content = self._content(params)
        thread = self._thread(channel, params)
        message = self._post(channel, thread, content)
        message.metadata = _metadata(params)
        self._announce(message)
        shown = events.message_json(self._workspace, message, root=self.root)
        return {"channel": channel.id, "ts": message.ts, "message": shown}

    def _do_chat_postephemeral(self, params: Json) -> Json:
        channel = self._writable(params)
        content = self._content(params)
        if params.get("user") not in self._workspace.people:
            raise ApiError("user_not_in_channel")
        text = content.markdown or content.text
        self.ephemeral.append((channel.id, str(params["user"]), text))
        return {"message_ts": self._workspace.new_ts()}

    def _do_chat_update(self, params: Json) -> Json:
        channel = self._writable(params)
        message = self._own(channel, params, "cant_update_message")
        if self._streaming(message):
            raise ApiError("streaming_state_conflict")
        if len(str(params.get("text", "")).encode()) > UPDATE_TEXT_BYTES:
            raise ApiError("msg_too_long")
        content = self._content(params)
        before = events.message_json(self._workspace, message, root=self.root)
        _replace(message, content, keep_blocks="blocks" not in params)
        if "metadata" in params:
            message.metadata = _metadata(params)
        message.edits += 1
        message.edited_ts = self._workspace.new_ts()
        self.on_change(message, before)
        shown = events.message_json(self._workspace, message, root=self.root)
        return {"channel": channel.id, "ts": message.ts, "text": message.text, "message": shown}

    def _do_chat_delete(self, params: Json) -> Json:
        channel = self._writable(params)
        message = self._own(channel, params, "cant_delete_message")
        if self._streaming(message):
            raise ApiError("cant_delete_message")
        before = events.message_json(self._workspace, message, root=self.root)
        self._workspace.delete(message)
        self.on_delete(message, before)
        return {"channel": channel.id, "ts": message.ts}

    def _do_chat_startstream(self, params: Json) -> Json:
        channel = self._writable(params)
        for name in ("recipient_user_id", "recipient_team_id"):
            if channel.kind != "im" and not params.get(name):
                raise ApiError(f"missing_{name}")
        if not params.get("thread_ts"):
            self._violations.append("a stream without thread_ts")
            raise ApiError("invalid_arguments")
        if params.get("recipient_user_id", "U0BOT") not in self._workspace.people:
            raise ApiError("invalid_arguments")
        self._known_thread(channel, params)
        empty = Message(channel.id, "", "", "")
        message = self._post(channel, str(params["thread_ts"]), empty)
        message.stream, message.markdown = Stream(time.monotonic()), ""
        try:
            self._append(message, params)
        except ApiError:
            self._workspace.all_messages.remove(message)
            raise
        self._announce(message)
        return {"channel": channel.id, "ts": message.ts}

    def _do_chat_appendstream(self, params: Json) -> Json:
        channel = self._writable(params)
        message = self._open_stream(channel, params)
        if not params.get("markdown_text") and not params.get("chunks"):
            raise ApiError("no_text")
        self._append(message, params)
        assert message.stream is not None
        message.stream.appends += 1
        return {"channel": channel.id, "ts": message.ts}

    def _do_chat_stopstream(self, params: Json) -> Json:
        channel = self._writable(params)
        message = self._open_stream(channel, params)
        blocks = check_blocks(params["blocks"]) if "blocks" in params else []
        self._append(message, params)
        before = events.message_json(self._workspace, message, root=self.root)
        assert message.stream is not None
        message.stream.open = False
        message.blocks += blocks
        message.metadata = _metadata(params) or message.metadata
        self.on_change(message, before)
        shown = events.message_json(self._workspace, message, root=self.root)
        return {"channel": channel.id, "ts": message.ts, "message": shown}

    def _content(self, params: Json) -> Message:
        """Return a message with what a request says, checked."""
        markdown = params.get("markdown_text")
        if markdown is not None and ("blocks" in params or params.get("text")):
            raise ApiError("markdown_text_conflict")
        blocks = check_blocks(params["blocks"]) if params.get("blocks") else []
        text = str(params.get("text") or "")
        if not blocks and not text.strip() and not str(markdown or "").strip():
            raise ApiError("no_text")
        if len(str(markdown or "")) > MARKDOWN_CHARS:
            raise ApiError("msg_too_long")
        if len(text) > TEXT_CHARS:
            self._violations.append("a text over 40,000 characters is cut")
        self._note_pings(f"{text}\n{markdown or ''}\n{json.dumps(blocks)}", edit="ts" in params)
        return Message("", "", "", text, markdown=markdown, blocks=blocks)

    def _own(self, channel: Channel, params: Json, error: str) -> Message:
        message = self._workspace.get(channel.id, params.get("ts"))
        if message.bot != self._workspace.identity.bot:
            raise ApiError(error)
        return message

    def _streaming(self, message: Message) -> bool:
        """Whether a message still streams; Slack ends a stream after a while."""
        stream = message.stream
        if stream is not None and time.monotonic() - stream.opened_at > self.stream_s:
            stream.open = False
        return stream is not None and stream.open

    def _open_stream(self, channel: Channel, params: Json) -> Message:
        message = self._workspace.get(channel.id, params.get("ts"))
        if message.bot != self._workspace.identity.bot:
            raise ApiError("message_not_owned_by_app")
        if message.stream is not None and message.stream.stopped_by_user:
            raise ApiError("stopped_by_user")
        if not self._streaming(message):
            raise ApiError("message_not_in_streaming_state")
        return message

    def _append(self, message: Message, params: Json) -> None:
        """Append what a request brings; the first content decides about the stream's mode."""
        markdown, chunks = params.get("markdown_text"), params.get("chunks")
        if markdown and chunks:
            raise ApiError("cannot_provide_both_markdown_text_and_chunks")
        if not markdown and not chunks:
            return
        stream = message.stream
        assert stream is not None
        mode = "markdown_text" if markdown else "chunks"
        if stream.mode not in {None, mode}:
            raise ApiError("streaming_mode_mismatch")
        text = str(markdown) if markdown else "".join(_chunk_text(chunk) for chunk in chunks or [])
        if len(text) > MARKDOWN_CHARS:
            raise ApiError("msg_too_long")
        self._note_pings((message.markdown or "")[-100:] + text)
        stream.mode = "markdown_text" if markdown else "chunks"
        message.markdown = (message.markdown or "") + text


def _replace(message: Message, content: Message, *, keep_blocks: bool) -> None:
    """Put new content in; without `blocks` a message keeps those it was posted with."""
    message.text, message.markdown = content.text, content.markdown
    if content.markdown is not None or not keep_blocks:
        message.blocks = content.blocks


def _metadata(params: Json) -> Json | None:
    metadata = params.get("metadata")
    if metadata is None:
        return None
    if not isinstance(metadata, dict) or not isinstance(metadata.get("event_type"), str):
        raise ApiError("invalid_metadata_format")
    if not isinstance(metadata.get("event_payload"), dict):
        raise ApiError("invalid_metadata_format")
    return metadata


def _chunk_text(chunk: Any) -> str:
    if not isinstance(chunk, dict):
        raise ApiError("invalid_chunks")
    if chunk.get("type") == "markdown_text" and isinstance(chunk.get("text"), str):
        return str(chunk["text"])
    if chunk.get("type") in {"task_update", "plan_update"} and chunk.get("title"):
        return ""
    raise ApiError("invalid_chunks")
