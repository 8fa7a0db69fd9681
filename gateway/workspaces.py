"""Where the tools of a conversation keep files: one directory each, made when first used."""

from pathlib import Path

from agent.settings import WorkspaceSettings
from agent.tools.world.workspace import erase
from gateway.errors import SettingsError, StorageUnavailable

FOLDER = "workspaces"


class Workspaces:
    """The directories of all conversations.

    Attributes:
        root: They lie in it; each is named by its conversation's id.
    """

    def __init__(self, settings: WorkspaceSettings, home: Path) -> None:
        try:
            self.root = (settings.root or home / FOLDER).expanduser().absolute()
        except RuntimeError as exc:
            text = f"tools.workspace.root: {str(settings.root)!r} names a user that there is not"
            raise SettingsError(text) from exc

    def of(self, conversation_id: int) -> Path:
        """Return a conversation's directory, which may not be there yet.

        A delegated child works in its parent's: ask with the parent's id.
        """
        return self.root / str(conversation_id)

    def forget(self, conversation_id: int) -> None:
        """Delete a conversation's directory with all files; blocking.

        Raises:
            StorageUnavailable: Something in it cannot be deleted.
        """
        folder = self.of(conversation_id)
        try:
            erase(folder)
        except OSError as exc:
            raise StorageUnavailable(f"the files in {folder} are not all deleted: {exc}") from exc
