"""The links that a turn knows: addresses from people's messages and from pages it read.

Two addresses are equal if a client sends the same bytes for them, so the case of scheme and host,
the default port, an empty path, the fragment and "%" escapes are normalized. A URL with a user name
does not count as an address.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any
from urllib.parse import unquote

from yarl import URL

from agent.messages import ChatMessage, text_of

FETCH_URL = "fetch_url"
RECALLING = frozenset({
    "lcm_describe", "lcm_expand", "lcm_grep", "list_files", "memory", "read_conversation",
    "read_file", "search_files", "session_search", "terminal",
})  # fmt: skip
"""Tools whose results may contain outside content or files."""
MAX_LINKS = 2_000
"""Most links recorded from one page."""
MOST_CLOSERS = 5
"""Most punctuation marks after an address that are attributed to the sentence."""

_URL = re.compile(r"https?://[^\s<>\"'`\\]{1,4000}", re.IGNORECASE)
_LINK = re.compile(
    r"\((?P<shown>(?:https?:/)?/[^\s<>\"'`\\]{1,4000}?)\)(?![\w)])"
    r"|\bhref=[\"']?(?P<html>(?:https?:/)?/[^\s<>\"'`\\]{1,4000})",
    re.IGNORECASE,
)
# A host without a scheme, but not the end of an address, a user name or a path.
_BARE = re.compile(
    r"(?<![\w.@/:%&?=+-])(?:[^\W_](?:[\w-]*[^\W_])?\.)+[^\W\d_]{2,}(?::\d+)?(?![\w@-])"
    r"(?:[/?][^\s<>\"'`\\]*)?",
    re.ASCII,
)
_SCHEME = re.compile(r"\S*://\S*")
_NUMBERS = re.compile(r"(?<![\w.])\d+(?:\.\d+){3}[/:?][!-~]*")
_DEEP = re.compile(r"[/?:]|\..*\.")
_HOSTS = frozenset({"domain", "host", "hostname"})
_DOTS = str.maketrans(dict.fromkeys("\u3002\uff0e\uff61", "."))
"""Full stops that IDNA treats as dots of a host name."""
_ASCII = re.compile(r"[!-~]+")
_WITHIN = "/=&%+-_#$@"
"""Punctuation marks that may end an address."""
_FILES = frozenset({
    "cc", "md", "mk", "ml", "mm", "mov", "pl", "pm", "ps", "py", "rs", "sh", "so", "tf", "zip",
})  # fmt: skip
"""Top-level domains that are also file extensions: "README.md" is not an address."""


def canonical(text: str, page: str = "") -> str:
    """Normalize an address, relative to `page` if given, for comparison; "" if invalid."""
    try:
        url = URL(page).join(URL(text.strip())) if page else URL(text.strip())
        if url.scheme not in {"http", "https"} or not url.host or url.raw_user is not None:
            return ""
        # The host after the user name's "@" may be empty.
        return "" if url.raw_password is not None else f"{url.origin()}{url.raw_path_qs}"
    except (ValueError, TypeError):
        return ""


def host_of(address: str) -> str:
    """Return an address's host in lower case, or ""."""
    found = canonical(address)
    return (URL(found).raw_host or "").rstrip(".") if found else ""


def named_in(text: str) -> Iterator[str]:
    """Yield the addresses named in a person's message.

    A host without a scheme ("example.org/docs") yields both its https and its http address.
    """
    for found in _URL.findall(text):
        yield from filter(None, map(canonical, _readings(found)))
    for match in _BARE.finditer(_URL.sub(" ", text)):
        for found in _readings(match[0]):
            host = re.split("[/?:]", found)[0]
            if host.rpartition(".")[2].lower() not in _FILES:
                yield from filter(None, map(canonical, (f"https://{found}", f"http://{found}")))


def sent_addresses(arguments: Any) -> Iterator[str]:
    """Yield the addresses in a tool's arguments; "" for each with another scheme.

    An address has a scheme, or is a host with a path, a port or at least three labels (file names
    have two), or is in an argument named like a host. Punctuation is included, since it is sent.
    """
    for name, value in _texts(arguments):
        text = (value if "://" in value else unquote(value)).translate(_DOTS)
        yield from (canonical(each) for each in text.split() if "://" in each or each[:2] == "//")
        rest = _SCHEME.sub(" ", text)
        bare = [each[0] for it in (_BARE, _NUMBERS) for each in it.finditer(rest)]
        yield from (canonical(f"https://{each}") for each in bare if _DEEP.search(each))
        if name in _HOSTS and "://" not in text:
            yield canonical(f"https://{text}")


def _texts(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield all texts in the arguments, including keys, each with its argument's name."""
    if isinstance(value, str):
        yield name, value
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield "", key
            yield from _texts(each, key)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each, name)


def links_in(text: str, page: str) -> frozenset[str]:
    """Return the link targets in a page's text, in parentheses after their words or as HTML."""
    links = (match["shown"] or match["html"] for match in _LINK.finditer(text))
    return frozenset({canonical(link, page) for link in islice(links, MAX_LINKS)} - {""})


def _readings(found: str) -> Iterator[str]:
    """Yield an address with and without trailing sentence punctuation."""
    ascii_only = _ASCII.match(found)
    for each in (found, ascii_only[0] if ascii_only else found):
        for end in range(len(each), max(0, len(each) - MOST_CLOSERS) - 1, -1):
            yield each[:end]
            if end == 0 or each[end - 1].isalnum() or each[end - 1] in _WITHIN:
                break


@dataclass(slots=True)
class Trail:
    """The addresses that a turn knows or has visited; shared with its delegated children.

    Attributes:
        links: Links of fetched pages, each with its page's host.
        recalled: Whether a tool has returned outside content.
    """

    named: frozenset[str] = frozenset()
    links: dict[str, str] = field(default_factory=dict)
    followed: int = 0
    recalled: bool = False

    def note_page(self, page: str, text: str) -> None:
        """Record the links of a page."""
        # An error text is not a page.
        if host := host_of(page):
            for link in links_in(text, page):
                self.links.setdefault(link, host)

    def note_shown(self, view: Iterable[ChatMessage]) -> None:
        """Record the links of the pages in a view."""
        for message in view:
            if message["role"] == "tool" and message.get("name") == FETCH_URL:
                page, _, text = text_of(message).partition("\n")
                self.note_page(page, text)
