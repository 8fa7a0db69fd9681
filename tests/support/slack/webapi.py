"""Slack's Web API on a workspace. Names, arguments and errors: docs.slack.dev/reference."""

import re

from tests.support.slack import events
from tests.support.slack.chat import ChatMethods
from tests.support.slack.faults import ApiError, Json
from tests.support.slack.methods import SESSION
from tests.support.slack.reading import ReadingMethods
from tests.support.slack.workspace import File, Message

_EMOJI = re.compile(r"[a-z0-9_+\-]+(::skin-tone-[2-6])?")
_NEEDED = {
    "chat.": "chat:write",
    "reactions.": "reactions:write",
    "users.info": "users:read",
    "bots.info": "users:read",
    "files.getUploadURLExternal": "files:write",
    "files.completeUploadExternal": "files:write",
    "files.info": "files:read",
    "assistant.": "assistant:write",
    "agents.": "assistant:write",
    "conversations.open": "im:write",
}


class WebApi(ChatMethods, ReadingMethods):
    """All methods; those on reactions, files and the assistant container are here."""

    def perform(self, method: str, params: Json) -> Json:
        """Carry out one method for the bot token."""
        perform = getattr(self, f"_do_{method.replace('.', '_').lower()}", None)
        if perform is None:
            self._violations.append(f"unknown method {method}")
            raise ApiError("unknown_method")
        self._need(next((scope for name, scope in _NEEDED.items() if method.startswith(name)), ""))
        result: Json = perform(params)
        return result

    def _do_reactions_add(self, params: Json) -> Json:
        users = self._reaction(params)
        if self._workspace.identity.user in users:
            raise ApiError("already_reacted")
        users.append(self._workspace.identity.user)
        return {}

    def _do_reactions_remove(self, params: Json) -> Json:
        users = self._reaction(params)
        if self._workspace.identity.user not in users:
            raise ApiError("no_reaction")
        users.remove(self._workspace.identity.user)
        return {}

    def _reaction(self, params: Json) -> list[str]:
        channel = self._workspace.channel(params.get("channel"), write=True)
        if not params.get("timestamp"):
            raise ApiError("no_item_specified")
        if not _EMOJI.fullmatch(str(params.get("name", ""))):
            raise ApiError("invalid_name")
        message = self._workspace.get(channel.id, params["timestamp"])
        return message.reactions.setdefault(str(params["name"]), [])

    # files

    def _do_files_getuploadurlexternal(self, params: Json) -> Json:
        try:
            length = int(params["length"])
            name = str(params["filename"])
        except (KeyError, ValueError):
            raise ApiError("invalid_arguments") from None
        if length <= 0 or not name:
            raise ApiError("invalid_arguments")
        file_id = f"F0UP{self._workspace.number()}"
        bot = self._workspace.identity.user
        self.uploads[file_id] = File(file_id, name, "", b"", length, bot)
        return {"upload_url": f"{self.root}/upload/v1/{file_id}", "file_id": file_id}

    def receive(self, file_id: str, content: bytes) -> bool:
        """Take the bytes of an upload; False if they are not what was announced."""
        file = self.uploads.get(file_id)
        if file is None or len(content) != file.claimed_bytes:
            self._violations.append("an upload has another length than was announced")
            return False
        file.content = content
        return True

    def _do_files_completeuploadexternal(self, params: Json) -> Json:
        files = params.get("files")
        if not isinstance(files, list) or not files:
            raise ApiError("invalid_arguments")
        found = [self.uploads.get(str(file.get("id"))) for file in files]
        if any(file is None or not file.content for file in found):
            raise ApiError("file_not_found")
        done = [file for file in found if file is not None]
        for file, given in zip(done, files, strict=True):
            file.title = str(given.get("title") or file.name)
            self._workspace.files[file.id] = file
            del self.uploads[file.id]
        if params.get("channel_id"):
            self._share(done, params)
        return {"files": [{"id": file.id, "title": file.title} for file in done]}

    def _share(self, files: list[File], params: Json) -> None:
        channel = self._workspace.channel(params["channel_id"], write=True)
        thread = self._thread(channel, params)
        text = str(params.get("initial_comment") or "")
        self._note_pings(text)
        message = self._post(channel, thread, Message("", "", "", text, files=files))
        message.subtype = "file_share"
        for file in files:
            file.shares.append((channel.id, message.ts))
        self._announce(message)

    def _do_files_info(self, params: Json) -> Json:
        file = self._workspace.files.get(str(params.get("file")))
        if file is None:
            raise ApiError("file_not_found")
        if file.gone:
            raise ApiError("file_deleted")
        return {"file": events.file_json(file, self.root)}

    def _do_files_delete(self, params: Json) -> Json:
        file = self._workspace.files.get(str(params.get("file")))
        if file is None or file.user != self._workspace.identity.user:
            raise ApiError("file_not_found")
        file.gone = True
        return {}

    # assistant

    def _do_assistant_threads_setstatus(self, params: Json) -> Json:
        where = self._assistant(params)
        if "status" not in params:
            raise ApiError("invalid_arguments")
        self.statuses.append((*where, str(params["status"])))
        self.working.pop(where, None)
        if params["status"]:
            self.working[where] = str(params["status"])
        return {}

    def _do_agents_sessions_setstatus(self, params: Json) -> Json:
        """Set an agent session's status; unlike a status line it stays until it is set again."""
        if not self.agent:
            raise ApiError("not_agent_app")
        where, status = self._assistant(params), params.get("status")
        if status not in {"processing", "active", "suspended", "closed"}:
            raise ApiError("invalid_arguments")
        self.statuses.append((*where, str(status)))
        self.working.pop(where, None)
        if status == "processing":
            self.working[where] = SESSION
        return {"status": status, "agent_status": status}

    def _do_assistant_threads_settitle(self, params: Json) -> Json:
        channel, thread = self._assistant(params)
        if not params.get("title"):
            raise ApiError("invalid_arguments")
        self.titles.append((channel, thread, str(params["title"])))
        return {}

    def _do_assistant_threads_setsuggestedprompts(self, params: Json) -> Json:
        self._assistant(params)
        prompts = params.get("prompts")
        if not isinstance(prompts, list) or not 1 <= len(prompts) <= 4:
            raise ApiError("invalid_arguments")
        if not all(prompt.get("title") and prompt.get("message") for prompt in prompts):
            raise ApiError("invalid_arguments")
        self.prompts.append(params)
        return {}

    def _assistant(self, params: Json) -> tuple[str, str]:
        channel = self._workspace.channel(params.get("channel_id"))
        return channel.id, self._known_thread(channel, params)
