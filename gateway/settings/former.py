"""Settings that went: a start names each that it finds with what applies instead, and goes on."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from gateway.settings.tree import INDEX, KeyPath, dotted

FORMER: Mapping[str, str] = {
    "*.facts.cache_write_1h_usd": "it is twice facts.input_usd",
    "*.facts.cache_write_5m_usd": "it is 1.25 times facts.input_usd",
    "agent.progress": "the preview shows which tools run",
    "alerts.per_hour": "it is 10",
    "attachments.text_chars": "it is 50,000 characters; the model can read on",
    "auxiliary.*.fallbacks": "after the model of summaries those that answer are asked",
    "auxiliary.*.timeout_s": "it is 60 seconds for all calls of one piece of work",
    "commands": "the nearest known command is suggested",
    "compression.early": "views are compacted at the threshold alone",
    "compression.payback_requests": "views are compacted at the threshold alone",
    "context.lcm": "leaves have 20,000 tokens, nodes 8 leaves or 4 nodes",
    "context.options": "an engine's options are those of its plugin: plugins.options",
    "delivery": "answers are sent again for a day",
    "fallbacks.max_answer_chars": "it is 32 for each token of `max_output_tokens`",
    "fallbacks.request_timeout_s": "it is 1,800 seconds",
    "metrics.enabled": "it is on, for this machine and for callers with metrics.token",
    "model.max_answer_chars": "it is 32 for each token of `max_output_tokens`",
    "model.request_timeout_s": "it is 1,800 seconds",
    "plugins.timeout_s": "it is 5 seconds",
    "prompt_caching.enabled": "it is on if the model takes breakpoints",
    "queue.give_up_after_s": "it is an hour",
    "quotas.files_per_day": "messages_per_day limits files, too",
    "retention.journal_days": "they are kept as transcript_days says",
    "retention.outbox_days": "they are kept as transcript_days says",
    "retention.search": "words are found as long as their messages are kept",
    "search": "meanings are compared if auxiliary.embeddings names a model",
    "storage.pooled": "storage.url is a pooler's if there is storage.direct_url",
    "telemetry.otlp_headers": "the variable OTEL_EXPORTER_OTLP_HEADERS says it",
    "telemetry.sampling_ratio": "OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG say it",
    "telemetry.service_name": "it is parley",
    "tools.approval_timeout_s": "it is an hour",
    "tools.clarify_timeout_s": "it is a day",
    "tools.delegation": "it is 30 calls, 600 seconds and 400,000 tokens; budgets limit money",
    "tools.fetch.max_bytes": "it is 2,000,000 bytes",
    "tools.fetch.timeout_s": "it is 20 seconds",
    "tools.memory": "it is 2,200 characters of notes and 4,000 of a profile",
    "tools.policy.lists": "it restricts nothing; write rows of tools.policy.rules",
    "tools.terminal.max_memory_bytes": "it is 2,000,000,000 bytes",
    "tools.terminal.max_output_bytes": "it is 1,000,000 bytes",
    "tools.terminal.max_processes": "it is 256",
    "tools.workspace.max_bytes": "it is 200,000,000 bytes",
    "web.admin": "owners have the console; web.enabled closes all pages",
    "web.max_connections_per_address": "it is a tenth of web.max_connections",
    "web.oidc.redirect_url": "it is web.public_url with sign-in/oidc/callback",
}
"""What applies instead of each key, or section, that went."""


def former(path: KeyPath) -> str | None:
    """Return what applies instead of a key that went; None if it is not one."""
    steps = tuple(INDEX if isinstance(step, int) else step for step in path)
    around = [dotted(steps[:end]) for end in range(1, len(steps) + 1)]
    found = (key for key in FORMER if any(fnmatchcase(name, key) for name in around))
    return next((FORMER[key] for key in found), None)
