"""Reads the YAML that others write for the bot: front matter of skills, plugin.yaml."""

from typing import Any

import yaml
from typing_extensions import override


def load_plain(text: str) -> Any:
    """Return what a YAML document without aliases says.

    Raises:
        yaml.YAMLError: It is none, is nested too deep, or has aliases: a few of them make a short
            text huge.
    """
    try:
        # S506: it is a safe loader, which takes even less.
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506
    except (ValueError, LookupError, AttributeError, RecursionError) as exc:
        # What a value raises that is not of the type which its tag names.
        raise yaml.YAMLError(f"a value in it is none: {type(exc).__name__}") from exc


class _PlainLoader(yaml.SafeLoader):
    @override
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not taken")
        return super().compose_node(parent, index)
