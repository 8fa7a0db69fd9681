"""Settings that went: each is reported at the start with what applies instead, and stops nothing.

They are taken out of the tree after all layers are laid over each other (`load_settings`), so that
they may be in a file, an option or a variable.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from adapters.web.platform import CALLBACK
from gateway.settings.tree import INDEX, KeyPath, Keys

FORMER: Mapping[str, str] = {
    "agent.progress": "the preview shows which tools run",
    "alerts.per_hour": "it is 10",
    "attachments.text_chars": "it is 50,000 characters; the model can read on",
    "auxiliary.*.facts.cache_write_1h_usd": "it is twice facts.input_usd",
    "auxiliary.*.facts.cache_write_5m_usd": "it is 1.25 times facts.input_usd",
    "auxiliary.*.fallbacks": "after the model of summaries those that answer are asked",
    "auxiliary.*.timeout_s": "it is 60 seconds for all calls of one piece of work",
    "commands.unknown": "the nearest known command is suggested",
    "compression.early": "views are compacted at the threshold alone",
    "compression.payback_requests": "views are compacted at the threshold alone",
    "context.lcm.fan_out": "it is 8",
    "context.lcm.higher_fan_out": "it is 4",
    "context.lcm.large_tokens": "it is 25,000 tokens",
    "context.lcm.leaf_tokens": "it is 20,000 tokens",
    "context.options": "they apply as plugins.options of the engine, write those",
    "delivery.retry_for_s": "it is a day",
    "fallbacks.*.facts.cache_write_1h_usd": "it is twice facts.input_usd",
    "fallbacks.*.facts.cache_write_5m_usd": "it is 1.25 times facts.input_usd",
    "fallbacks.*.max_answer_chars": "it is 32 for each token of `max_output_tokens`",
    "fallbacks.*.request_timeout_s": "it is 1,800 seconds",
    "metrics.enabled": "it is on, for this machine and for who has metrics.token",
    "model.facts.cache_write_1h_usd": "it is twice facts.input_usd",
    "model.facts.cache_write_5m_usd": "it is 1.25 times facts.input_usd",
    "model.max_answer_chars": "it is 32 for each token of `max_output_tokens`",
    "model.request_timeout_s": "it is 1,800 seconds",
    "plugins.timeout_s": "it is 5 seconds",
    "prompt_caching.enabled": "it is on where the model takes breakpoints",
    "queue.give_up_after_s": "it is an hour",
    "quotas.files_per_day": "messages_per_day limits files, too",
    "retention.journal_days": "they are kept as transcript_days says",
    "retention.outbox_days": "they are kept as transcript_days says",
    "retention.search": "words are found as long as their messages are kept",
    "search.api_key": "auxiliary.embeddings has it",
    "search.base_url": "auxiliary.embeddings has it",
    "search.dimensions": "it is 256 for text-embedding-3 models, else the model's own length",
    "search.embeddings": "auxiliary.embeddings does it if it names a model",
    "search.input_usd": "auxiliary.embeddings.facts has it",
    "search.model": "auxiliary.embeddings has it",
    "storage.pooled": "storage.url is a pooler's if there is storage.direct_url",
    "telemetry.otlp_headers": "the variable OTEL_EXPORTER_OTLP_HEADERS says it",
    "telemetry.sampling_ratio": "OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say it",
    "telemetry.service_name": "it is parley",
    "tools.approval_timeout_s": "it is an hour",
    "tools.clarify_timeout_s": "it is a day",
    "tools.delegation.max_iterations": "it is 30 calls",
    "tools.delegation.max_s": "it is 600 seconds",
    "tools.delegation.max_tokens": "it is 400,000 tokens; budgets limit money",
    "tools.fetch.max_bytes": "it is 2,000,000 bytes",
    "tools.fetch.timeout_s": "it is 20 seconds",
    "tools.memory.max_chars": "it is 2,200 characters",
    "tools.memory.profile_max_chars": "it is 4,000 characters",
    "tools.policy.lists": "each list applies as a row of tools.policy.rules, write that",
    "tools.terminal.max_memory_bytes": "it is 2,000,000,000 bytes",
    "tools.terminal.max_output_bytes": "it is 1,000,000 bytes",
    "tools.terminal.max_processes": "it is 256",
    "tools.workspace.max_bytes": "it is 200,000,000 bytes",
    "web.admin": "owners have the console; web.enabled closes all pages",
    "web.max_connections_per_address": "it is a tenth of web.max_connections",
    "web.oidc.redirect_url": "it is below web.public_url, write that",
}
"""What applies instead of each key that went. `*` stands for any name, or position in a list."""


def former_key(path: KeyPath) -> str | None:
    """Return what applies instead of the former key at a path; None if it is not one."""
    found = (key for key, pattern in _PATTERNS.items() if len(pattern) == len(path))
    return next((FORMER[key] for key in found if _matches(path, _PATTERNS[key])), None)


def is_former(path: KeyPath) -> bool:
    """Whether a path is a former key or a section that had some."""
    longer = (each for each in _PATTERNS.values() if len(each) >= len(path))
    return any(_matches(path, each) for each in longer)


def taken_out(tree: dict[str, Any], keys: Keys) -> Iterator[tuple[KeyPath, str]]:
    """Take the former keys out of the tree; yield each path with what applies instead."""
    taken = {}
    for key, instead in FORMER.items():
        for path, value in list(_found(tree, tuple(key.split(".")), ())):
            taken[key] = value
            _take_out(tree, path, keys)
            yield path, instead
    _hand_on(tree, taken)


def _hand_on(tree: dict[str, Any], taken: Mapping[str, Any]) -> None:
    """Say old values by the keys that have them now; what is said by those already wins."""
    engine = _section(tree, "context").get("engine")
    if isinstance(options := taken.get("context.options"), dict) and isinstance(engine, str):
        own = _section(tree, "plugins", "options", engine)
        own.update({**options, **own})
    if "tools.policy.lists" in taken:
        policy = _section(tree, "tools", "policy")
        rows = policy.get("rules") or []
        policy["rules"] = [*rows, *_rows_of(taken["tools.policy.lists"])]
    if isinstance(address := taken.get("web.oidc.redirect_url"), str):
        web = _section(tree, "web")
        web["public_url"] = web.get("public_url") or address.removesuffix(CALLBACK)
    if taken.get("search.embeddings") == "provider":
        block = _section(tree, "auxiliary", "embeddings")
        old = {key: taken[f"search.{key}"] for key in _EMBEDDINGS if f"search.{key}" in taken}
        block.update({**_EMBEDDINGS, **old, **block})
        if taken.get("search.input_usd") is not None:
            _section(block, "facts").setdefault("input_usd", taken["search.input_usd"])


_EMBEDDINGS = {"model": "text-embedding-3-small", "base_url": None, "api_key": None}


def _section(tree: dict[str, Any], *names: str) -> dict[str, Any]:
    """Return a section of the tree, which is made if there is none; a wrong value stays there."""
    for name in names:
        inner = tree.setdefault(name, {})
        tree = inner if isinstance(inner, dict) else {}
    return tree


def _rows_of(lists: Any) -> Iterator[Any]:
    """Yield the rows for the only tools of a role or group; what is no such list is refused."""
    if not isinstance(lists, dict):
        yield lists
        return
    for whose, names in lists.items():
        only = ",".join(map(str, names)) if isinstance(names, list) else str(names)
        yield {"then": "deny", "tool": f"!{only}", "group" if ":" in whose else "role": whose}


def _found(node: Any, pattern: tuple[str, ...], path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    if not pattern:
        yield path, node
    elif pattern[0] == INDEX:
        names = node.items() if isinstance(node, dict) else ()
        for step, block in enumerate(node) if isinstance(node, list) else names:
            yield from _found(block, pattern[1:], (*path, step))
    elif isinstance(node, dict) and pattern[0] in node:
        yield from _found(node[pattern[0]], pattern[1:], (*path, pattern[0]))


def _take_out(tree: dict[str, Any], path: KeyPath, keys: Keys) -> None:
    """Take a key out, and a section that is not one any more once it is empty."""
    node: Any = tree
    for step in path[:-1]:
        node = node[step]
    del node[path[-1]]
    if not node and len(path) > 1 and keys.find(path[:-1]) is None:
        _take_out(tree, path[:-1], keys)


def _matches(path: KeyPath, pattern: tuple[str, ...]) -> bool:
    """Whether the steps of a path are those that a pattern begins with."""
    return all(each in {INDEX, step} for step, each in zip(path, pattern, strict=False))


_PATTERNS = {key: tuple(key.split(".")) for key in FORMER}
