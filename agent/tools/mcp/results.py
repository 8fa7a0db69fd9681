"""What a server answers, as text for the model (step 6); pure."""

import json
from typing import Any

from mcp_types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)


def text_of(result: CallToolResult) -> str:
    """Return all parts of a result; what is no text is named.

    Structured content stands below them as JSON, unless a part says the same.
    """
    parts = [_part(part) for part in result.content]
    if result.structured_content is not None and not _says(result.structured_content, parts):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts) or "(no content)"


def _part(part: Any) -> str:
    match part:
        case TextContent():
            return part.text
        case ImageContent() | AudioContent():
            return f"[{part.type}: {part.mime_type}, {_size(part.data)}]"
        case ResourceLink():
            return f"[resource: {part.name}, {part.uri}]"
        case EmbeddedResource(resource=BlobResourceContents() as blob):
            return f"[resource: {blob.uri}, {blob.mime_type or 'binary'}, {_size(blob.blob)}]"
        case EmbeddedResource(resource=TextResourceContents() as text):
            return f"[resource: {text.uri}]\n{text.text}"
        case _:
            return f"[{getattr(part, 'type', 'unknown')}]"


def _size(base64: str) -> str:
    return f"{len(base64.rstrip('=')) * 3 // 4:,} bytes"


def _says(value: Any, parts: list[str]) -> bool:
    """Whether a part says the same, as older clients need it; the SDK wraps what is no object."""
    inner = value["result"] if isinstance(value, dict) and value.keys() == {"result"} else value
    for part in parts:
        try:
            said = json.loads(part)
        except (ValueError, RecursionError):
            said = part
        if said in (value, inner) or part == inner:
            return True
    return False
