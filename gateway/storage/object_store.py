"""The object store in which large files lie (`storage.files`): whole objects, never changed.

By obstore: an extra, imported where a store is configured. Nothing of a message waits for it: files
are moved there later (gateway/agent_ports/large_files.py), and are in the database until then.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import Any

from gateway.errors import NotFound, ObjectsUnavailable, SettingsError
from gateway.settings.tree import StorageSettings

CONNECT_S = 5
WITHIN_S = 60
"""How long one request may take: the largest file in half a minute."""
RETRY_S = 10
"""How long the client itself asks again after 5xx and lost connections."""
_REASONS = {
    "FileNotFoundError": "has no such bucket: see storage.files",
    "PermissionDeniedError": "does not allow it: see the rights of storage.files_key_id",
    "UnauthenticatedError": "does not take storage.files_key_id",
}


class ObjectStore:
    """One folder of a bucket.

    Raises:
        SettingsError: Its library is not installed.
    """

    def __init__(self, settings: StorageSettings) -> None:
        """Connect to nothing yet; `settings.files` is set."""
        bucket, _, prefix = (settings.files or "").removeprefix("s3://").partition("/")
        try:
            obstore = import_module("obstore.store")
            self._errors = import_module("obstore.exceptions")
        except ImportError as exc:
            text = "storage.files needs the extra: pip install 'parley[s3]'"
            raise SettingsError(text) from exc
        self._where = settings.files_endpoint or "the object store"
        self._bucket: Any = obstore.S3Store(
            bucket,
            prefix=prefix.strip("/") or None,
            config=_config(settings),
            client_options={
                "connect_timeout": timedelta(seconds=CONNECT_S),
                "timeout": timedelta(seconds=WITHIN_S),
                # Else a store inside of one's own network could not be used without TLS.
                "allow_http": (settings.files_endpoint or "").startswith("http://"),
            },
            retry_config={"max_retries": 3, "retry_timeout": timedelta(seconds=RETRY_S)},
        )

    async def put(self, name: str, content: bytes) -> None:
        """Store an object; the same again changes nothing.

        Raises:
            ObjectsUnavailable: It may be there, or not.
        """
        with self._told():
            # In one request: an upload in parts that is cut off leaves parts that nobody sees.
            await self._bucket.put_async(name, content, use_multipart=False)

    async def get(self, name: str) -> bytes:
        """Return the bytes of an object.

        Raises:
            NotFound: It is not there.
            ObjectsUnavailable: They cannot be had now.
        """
        with self._told():
            try:
                found = await self._bucket.get_async(name)
            except FileNotFoundError as exc:
                raise NotFound(f"{name} is not in {self._where}") from exc
            return bytes(await found.bytes_async())

    async def delete(self, name: str) -> None:
        """Delete an object; one that is not there is no error.

        Raises:
            ObjectsUnavailable: It may still be there.
        """
        with self._told():
            await self._bucket.delete_async(name)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Raise what the library raises as ours; its texts quote answers of the server."""
        try:
            yield
        # What Python has a class for is raised as that: FileNotFoundError.
        except (self._errors.BaseError, OSError) as exc:
            reason = _REASONS.get(type(exc).__name__, "does not answer as it should")
            raise ObjectsUnavailable(f"{self._where} {reason}") from exc


def _config(settings: StorageSettings) -> dict[str, Any]:
    """Return what the library is told; what is not said it finds on the machine."""
    config: dict[str, Any] = {"region": settings.files_region}
    if settings.files_endpoint is not None:
        config["endpoint"] = settings.files_endpoint
    if settings.files_key_id is not None and settings.files_secret_key is not None:
        config["access_key_id"] = settings.files_key_id.get_secret_value()
        config["secret_access_key"] = settings.files_secret_key.get_secret_value()
    return config
