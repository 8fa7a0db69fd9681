"""Edits: show one message in a shortened form. agent/view/view.py applies them to render a plan.

Every function is pure: the same message always gives the same bytes, the input is not modified, and
results share all unchanged parts. An edit that would change nothing, or make the message longer,
returns the input object. Changing a text here invalidates the prompt cache of every compacted
conversation.

Call arguments are shortened as JSON text, not as values, so keys and numbers keep their spelling.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any, cast

import orjson

from agent.messages import ChatMessage, FunctionCall, ToolCall, count, images_in, is_image, storable

CLEARED = "[Old tool output cleared to save context space]"
"""Source: Hermes."""
DUPLICATE = "[Same output as a later tool result]"
IMAGE = "[image]"

LEAST_OUTLINED_CHARS = 8_000
"""Shorter texts are not outlined; every outline is shorter than this."""
_NAME_CHARS = 64
_VALUE_CHARS = 60
_ARGUMENTS_CHARS = 160
_LINE_CHARS = 100
_PRUNED_CHARS = 512
"""Longest line in place of a result."""
_OUTCOME_WINDOW_CHARS = 1_000
"""Length of each end of a result that is searched for its outcome."""

MOST_LINES = 40
EDGE_CHARS = 400
"""Length of each end that is shown."""
LEAST_FOUND = 3
"""Fewer matching lines do not determine the kind of a text."""
JSON_CHARS = 4_000_000
"""Longer JSON is outlined as plain text: parsing it would take longer than a compaction may."""

_KINDS = {
    "code": re.compile(
        r"^\s*(?:export |public |private |static |async )*(?:def|class|function|func|fn|struct|enum"
        r"|interface|trait|impl|module|package|type) +[A-Za-z_]\w*"
    ).match,
    "Markdown": re.compile(r"^#{1,6} +\S").match,
}
"""Patterns of the lines that show a text's structure."""

TRUNCATED = "...[truncated]"
"""Source: Hermes."""
LONG_CHARS = 500
"""Arguments up to this length stay complete. Source: Hermes."""
_MOST_LEAVES = 20
"""Shortened arguments end after about this many full leaves (strings inside them)."""
_LEAST_LEAF_CHARS = 8

# One string, one punctuation mark, or one number or word of JSON text.
_PIECE = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}:,]|[^\s\[\]{}:,"]+')
_CLOSING = {"{": "}", "[": "]"}
_REST = {"{": f'"...":"{TRUNCATED}"', "[": f'"{TRUNCATED}"'}

# The lines written by `_result_lines`, except `CLEARED`.
_PRUNED = re.compile(r"\[.+ → [\d,]+ chars, [\d,]+ lines?(?:, images: \d+)?; .+\]")


def pruned(message: ChatMessage, call: ToolCall | None) -> ChatMessage:
    """Reduce a tool result to one line: tool, arguments, size, outcome and most informative line.

    A result that already is such a line is returned unchanged: a list that was compacted before
    keeps its bytes.

    Args:
        call: The call that it answers; None if unknown.
    """
    text = _text(message)
    images = images_in(message)
    # Length first: no such line is longer, and the pattern would read megabytes.
    if text in {CLEARED, DUPLICATE} or (len(text) <= _PRUNED_CHARS and _PRUNED.fullmatch(text)):
        return message
    for line in _result_lines(message, call, text, images):
        if images or len(line) < len(text):
            return _with_content(message, line)
    return message


def duplicate(message: ChatMessage) -> ChatMessage:
    """Replace a tool result by a line that refers to a later identical one."""
    if images_in(message) or len(DUPLICATE) < len(_text(message)):
        return _with_content(message, DUPLICATE)
    return message


def with_short_arguments(message: ChatMessage, leaf_chars: int) -> ChatMessage:
    """Cut the strings inside long call arguments to `leaf_chars`; the result is valid JSON.

    Keys, numbers and short strings keep their spelling; text that is not JSON becomes an object
    that contains its beginning. A very long list of values is cut and ends in a mark.
    """
    shorter = [shorten_arguments(text, leaf_chars) for text in _arguments(message)]
    return _with_arguments(message, shorter)


def without_images(message: ChatMessage) -> ChatMessage:
    """Replace each image in the message by a label."""
    if not images_in(message):
        return message
    label = {"type": "text", "text": IMAGE}
    return _with_content(message, [label if is_image(part) else part for part in _parts(message)])


def without_thinking(message: ChatMessage) -> ChatMessage:
    """Remove the model's thoughts, both readable and signed.

    Fields that a server wants back with its tool calls stay, since they belong to the calls.
    """
    if "reasoning" not in message and "opaque" not in message:
        return message
    kept = {key: value for key, value in message.items() if key not in {"reasoning", "opaque"}}
    of_calls = message.get("opaque", {}).get("openai", {})
    if "extra_content" in of_calls:
        bound = {name: of_calls[name] for name in ("origin", "extra_content")}
        kept["opaque"] = {"openai": bound}
    return cast("ChatMessage", kept)


def clipped(message: ChatMessage, limit_chars: int, seq: int) -> ChatMessage:
    """Cut text and call arguments to a total of `limit_chars`, at least 100.

    The text keeps head and tail around a pointer to the original at `seq`; multiple text parts
    become one. Arguments remain valid JSON.
    """
    text, arguments = _text(message), _arguments(message)
    sizes = [len(text), *map(len, arguments)]
    if sum(sizes) <= limit_chars:
        return message
    text_chars, *argument_chars = _shares(sizes, limit_chars)
    fitting = [fit_arguments(*pair) for pair in zip(arguments, argument_chars, strict=True)]
    message = _with_arguments(message, fitting)
    if len(text) <= text_chars:
        return message
    return _with_text(message, _head_and_tail(text, text_chars, seq))


def outlined(message: ChatMessage, seq: int) -> ChatMessage:
    """Replace a long text by an outline that refers to the original at `seq`."""
    text = _text(message)
    if len(text) < LEAST_OUTLINED_CHARS:
        return message
    where = f"message {seq} of the transcript: read_conversation(from_seq={seq}, limit=1)"
    shown = f"[Large content, stored in full as {where}. Its outline: {outline(text)}]"
    return _with_text(message, shown)


def _parts(message: ChatMessage) -> Sequence[Mapping[str, Any]]:
    content = message.get("content")
    return content if isinstance(content, list) else ()


def _text(message: ChatMessage) -> str:
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in _parts(message) if _is_text(part))


def _is_text(part: Mapping[str, Any]) -> bool:
    return isinstance(part.get("text"), str)


def _arguments(message: ChatMessage) -> list[str]:
    return [call["function"]["arguments"] for call in message.get("tool_calls") or ()]


def _with_content(message: ChatMessage, content: str | list[Any]) -> ChatMessage:
    return cast("ChatMessage", {**message, "content": content})


def _with_text(message: ChatMessage, text: str) -> ChatMessage:
    """Replace the first text by this one and drop the others."""
    if isinstance(message.get("content"), str):
        return _with_content(message, text)
    parts = [part for part in _parts(message) if not _is_text(part)]
    place = next(n for n, part in enumerate(_parts(message)) if _is_text(part))
    parts.insert(place, {**_parts(message)[place], "text": text})
    return _with_content(message, parts)


def _with_arguments(message: ChatMessage, arguments: Sequence[str]) -> ChatMessage:
    """Replace the calls' arguments; return the input message if none differs."""
    if list(arguments) == _arguments(message):
        return message
    calls = list(message["tool_calls"])
    for place, text in enumerate(arguments):
        function = calls[place]["function"]
        if text != function["arguments"]:
            changed = cast("FunctionCall", {**function, "arguments": text})
            calls[place] = cast("ToolCall", {**calls[place], "function": changed})
    return cast("ChatMessage", {**message, "tool_calls": calls})


def _result_lines(
    message: ChatMessage, call: ToolCall | None, text: str, images: int
) -> Iterator[str]:
    """Yield candidate lines to replace a result, the most informative first."""
    name = call["function"]["name"] if call else message.get("name")
    if name:
        name = one_line(name, _NAME_CHARS)
        size = f"{len(text):,} chars, {count(len(text.splitlines()), 'line')}"
        size += f", images: {images}" if images else ""
        outcome, line = _outcome(text)
        shown = f" {given}" if call and (given := _shown_arguments(call)) else ""
        yield f"[{name}{shown} → {size}; {outcome}; {line}]"
        yield f"[{name}{shown} → {size}; {outcome}]"
        yield f"[{name} → {size}; {outcome}]"
    yield CLEARED


def one_line(text: str, chars: int) -> str:
    """Return the beginning of a text without line breaks."""
    # The text may be megabytes.
    line = " ".join(text[: 8 * chars].split())
    return line if len(line) <= chars else line[: chars - 1] + "…"


def _shown_arguments(call: ToolCall) -> str:
    text = call["function"]["arguments"]
    try:
        values = orjson.loads(text)
    except orjson.JSONDecodeError:
        values = None
    if not isinstance(values, dict):
        return one_line(text, _VALUE_CHARS)
    pairs = (f"{key}={_shown_value(value)}" for key, value in values.items())
    return one_line(" ".join(pairs), _ARGUMENTS_CHARS)


def _shown_value(value: object) -> str:
    match value:
        case str():
            return one_line(value, _VALUE_CHARS)
        case dict() | list():
            return f"({len(value)} values)"
        case _:
            return orjson.dumps(value).decode()


_EXIT_CODE = re.compile(
    r"(?:exit(?:ed with)?[ _-]?(?:code|status)|return[ _]?code)[\"']?\s*[:=]?\s*(-?\d{1,10})\b",
    re.IGNORECASE,
)
_FAILED_AT_ONCE = re.compile(
    r"[\W_]*(?:error|fatal|failed|failure|exception|traceback|permission denied)\b", re.IGNORECASE
)
_FAILED = re.compile(
    r"\"is_?error\"\s*:\s*true|\"(?:success|ok)\"\s*:\s*false|\"error\"\s*:\s*[\"{]", re.IGNORECASE
)
_ERROR_LINE = re.compile(
    r"^Traceback \(most recent call last\)|^npm ERR!|^\w*(?:Error|Exception): "
    r"|(?:^|: )(?:error|fatal)(?: \w+|\[\w+\])?: ",
    re.MULTILINE,
)
_TELLING = re.compile(r"^.*(?:error|exception|fatal|fail|denied|not found).*$", re.I | re.M)


def _outcome(text: str) -> tuple[str, str]:
    """Guess the outcome of a result from its ends; return it with the most informative line."""
    head, tail = text[:_OUTCOME_WINDOW_CHARS], text[-_OUTCOME_WINDOW_CHARS:]
    first = one_line(head.lstrip().partition("\n")[0], _LINE_CHARS)
    first = f"first line: {first}" if first else "no text"
    # Check the end first: commands print their exit code last.
    code = _EXIT_CODE.search(tail) or _EXIT_CODE.search(head)
    failed = any((
        _FAILED_AT_ONCE.match(head),
        _FAILED.search(head),
        _ERROR_LINE.search(head),
        _ERROR_LINE.search(tail),
    ))
    if code is None and not failed:
        return "ok", first
    if code is not None and int(code[1]) == 0:
        return "exit code 0", first
    telling = _TELLING.search(head) or _TELLING.search(tail)
    line = one_line(telling[0], _LINE_CHARS) if telling else first
    return f"exit code {code[1]}" if code else "error", line


def _shares(sizes: Sequence[int], limit: int) -> list[int]:
    """Divide a limit: small sizes are granted in full, larger ones share the rest equally."""
    shares = [0] * len(sizes)
    for done, place in enumerate(sorted(range(len(sizes)), key=sizes.__getitem__)):
        shares[place] = min(sizes[place], limit // (len(sizes) - done))
        limit -= shares[place]
    return shares


def _head_and_tail(text: str, chars: int, seq: int) -> str:
    left_out = f"\n[... {len(text):,} characters left out"
    pointer = (
        f"; the full text is message {seq} of the transcript:"
        f" read_conversation(from_seq={seq}, limit=1) ...]\n"
    )
    if len(left_out) + len(pointer) > chars // 2:
        pointer = f": message {seq} ...]\n"
    room = chars - len(left_out) - len(pointer)
    if room < 0:
        return text[:chars]
    head, tail = text[: (room + 1) // 2], text[len(text) - room // 2 :]
    left_out = f"\n[... {len(text) - room:,} characters left out"
    return f"{head}{left_out}{pointer}{tail}"


def shorten_arguments(arguments: str, leaf_chars: int) -> str:
    """Cut each string of long arguments to `leaf_chars` and a mark; never lengthen them.

    Text that is not JSON becomes an object that contains its beginning.
    """
    if len(arguments) <= LONG_CHARS:
        return arguments
    if not _is_json(arguments):
        return _truncated_object(arguments, leaf_chars)
    most_chars = max(_MOST_LEAVES * leaf_chars, LONG_CHARS)
    short = _cut_leaves(arguments, leaf_chars, most_chars)
    if len(short) > 2 * most_chars:
        return _truncated_object(arguments, leaf_chars)
    return min(arguments, short, key=len)


def fit_arguments(arguments: str, chars: int) -> str:
    """Return call arguments in at most `chars` characters, or `{}`."""
    if len(arguments) <= chars:
        return arguments
    if _is_json(arguments):
        leaf_chars = chars // 2
        while leaf_chars >= _LEAST_LEAF_CHARS:
            # A result that ends early exceeds `chars` and is not used.
            short = _cut_leaves(arguments, leaf_chars, chars)
            if len(short) <= chars:
                return short
            leaf_chars //= 2
    head_chars = chars
    while head_chars:
        head_chars //= 2
        short = _truncated_object(arguments, head_chars)
        if len(short) <= chars:
            return short
    return "{}"


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True


def _cut_leaves(text: str, leaf_chars: int, most_chars: int) -> str:
    """Cut the long strings of JSON text, which stays valid; drop white space between values.

    After `most_chars` it ends at the next comma with a mark.
    """
    cut: list[str] = []
    opened: list[str] = []
    size, before = 0, ""
    for piece in map(itemgetter(0), _PIECE.finditer(text)):
        shown = piece
        if piece in _CLOSING:
            opened.append(piece)
        elif piece in "]}":
            opened.pop()
        elif piece == "," and size > most_chars:
            break
        elif piece[0] == '"' and not (before in {"{", ","} and opened[-1] == "{"):
            shown = _cut_leaf(piece, leaf_chars)
        cut.append(shown)
        size += len(shown)
        before = piece
    else:
        return "".join(cut)
    return "".join([*cut, ",", _REST[opened[-1]], *(_CLOSING[each] for each in reversed(opened))])


def _cut_leaf(piece: str, leaf_chars: int) -> str:
    # A text is never longer than its JSON, so most strings need no parsing.
    if len(piece) <= leaf_chars + len(TRUNCATED):
        return piece
    value: str = orjson.loads(piece)
    if len(value) <= leaf_chars + len(TRUNCATED):
        return piece
    return orjson.dumps(value[:leaf_chars] + TRUNCATED).decode()


def _truncated_object(text: str, chars: int) -> str:
    """Return an object that contains at most `chars` characters of a text's beginning.

    The object is shorter than the text, which must be longer than an object with an empty
    beginning.
    """
    head = storable(text[:chars])
    while True:
        short = orjson.dumps({"truncated": head + TRUNCATED}).decode()
        if len(short) < len(text) or not head:
            return short
        # Escapes take up to six characters.
        head = head[: len(head) // 2]


def outline(text: str) -> str:
    """Outline a text in at most about 5,000 characters: kind, structure, beginning and end."""
    lines = text.splitlines() or [""]
    kind, found = _typed(text, lines)
    shown = [f"- {one_line(line, _LINE_CHARS)}" for line in islice(found, MOST_LINES)]
    size = f"{kind}, {len(text):,} characters, {len(lines):,} lines"
    begins, ends = text[:EDGE_CHARS].strip(), text[-EDGE_CHARS:].strip()
    return "\n".join([size, *shown, f"It begins: {begins}", f"It ends: {ends}"])


def _typed(text: str, lines: Sequence[str]) -> tuple[str, Iterator[str]]:
    if (structure := _json(text)) is not None:
        return "JSON", structure
    for kind, pattern in _KINDS.items():
        found = [f"line {n}: {line.strip()}" for n, line in enumerate(lines, 1) if pattern(line)]
        if len(found) >= LEAST_FOUND:
            return kind, iter(found)
    # For text without structure, the beginnings of evenly spaced lines.
    full = [(n, line) for n, line in enumerate(lines, 1) if line.strip()]
    step = max(1, len(full) // (MOST_LINES // 2))
    return "text", (f"line {n}: {line.strip()}" for n, line in full[::step])


def _json(text: str) -> Iterator[str] | None:
    if len(text) > JSON_CHARS or text.lstrip()[:1] not in {"{", "["}:
        return None
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return _members("", value)


def _members(path: str, value: object, depth: int = 0) -> Iterator[str]:
    """Yield a line per value down to the second level; for a list, only for its first item."""
    if isinstance(value, dict):
        yield f"{path or 'object'}: {len(value)} keys"
        # No more than can be shown: an object may have a million keys.
        for key, item in islice(value.items(), MOST_LINES) if depth < 2 else ():
            yield from _members(f"{path}.{key}" if path else str(key), item, depth + 1)
    elif isinstance(value, list):
        yield f"{path or 'list'}: {len(value)} items"
        if value and depth < 2:
            yield from _members(f"{path}[0]", value[0], depth + 1)
    else:
        yield f"{path}: {value!s}"
