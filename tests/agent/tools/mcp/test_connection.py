"""A server's answer as text for the model."""

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

from agent.tools.mcp.connection import text_of


def test_texts_are_joined() -> None:
    """In their order."""
    parts = [TextContent(text="one"), TextContent(text="two")]
    assert text_of(CallToolResult(content=parts)) == "one\ntwo"


def test_what_is_no_text_is_named() -> None:
    """The model learns that it is there, and how large it is."""
    blob = BlobResourceContents(uri="file:///b", blob="AAAA")
    parts = [
        ImageContent(data="AAAA", mime_type="image/png"),
        AudioContent(data="AAA=", mime_type="audio/ogg"),
        ResourceLink(name="report", uri="file:///r"),
        EmbeddedResource(resource=TextResourceContents(uri="file:///t", text="inside")),
        EmbeddedResource(resource=blob),
    ]
    assert text_of(CallToolResult(content=parts)).splitlines() == [
        "[image: image/png, 3 bytes]",
        "[audio: audio/ogg, 2 bytes]",
        "[resource: report, file:///r]",
        "[resource: file:///t]",
        "inside",
        "[resource: file:///b, binary, 3 bytes]",
    ]


def test_structured_content_is_told_once() -> None:
    """As JSON, unless a part is that already."""
    value = {"temperature": 1 << 70, "place": "Köln"}
    text = '{"temperature": 1180591620717411303424, "place": "Köln"}'
    told = CallToolResult(content=[TextContent(text="It is warm.")], structured_content=value)
    assert text_of(told) == f"It is warm.\n{text}"
    same = CallToolResult(content=[TextContent(text=text)], structured_content=value)
    assert text_of(same) == text
    wrapped = CallToolResult(content=[TextContent(text="3")], structured_content={"result": 3})
    assert text_of(wrapped) == "3"


def test_a_part_that_is_nested_without_end_is_a_text() -> None:
    """Beside structured content it is read as JSON, which gives up on it."""
    deep = "[" * 100_000
    told = CallToolResult(content=[TextContent(text=deep)], structured_content={"a": 1})
    assert text_of(told) == f'{deep}\n{{"a": 1}}'


def test_nothing_is_told() -> None:
    """An empty result is one."""
    assert text_of(CallToolResult(content=[])) == "(no content)"
