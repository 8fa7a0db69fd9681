"""The agent's part of the settings tree (gateway/settings/tree.py).

docs/configuration.md explains each key.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    field_validator,
    model_validator,
)

Provider = Literal["auto", "anthropic", "openai", "openrouter", "nous", "offline"]


class Section(BaseModel):
    """Base of every settings block: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ReferencedSecret(SecretStr):
    """A secret given as a `reference` in the settings; its value is the one read last."""

    def __init__(self, value: str, reference: str, read: Callable[[], str]) -> None:
        """Start with the first value; `read` returns the current one without putting it to use.

        It may block, and raises `SecretUnreadable`.
        """
        super().__init__(value)
        self.reference = reference
        self.read = read
        self._learners: list[Callable[[Iterable[str]], None]] = []

    def tell(self, learn: Callable[[Iterable[str]], None]) -> None:
        """Pass each later value to `learn` before it is used, so that it is masked."""
        if learn not in self._learners:
            self._learners.append(learn)

    def take(self, value: str) -> bool:
        """Use a value from now on; return whether it changed."""
        if value == self._secret_value:
            return False
        for learn in self._learners:
            learn([value])
        self._secret_value = value
        return True


class FactsSettings(Section):
    """Prices (US dollars per million tokens), cache rules and vision, overriding the table's."""

    input_usd: float | None = Field(default=None, ge=0)
    output_usd: float | None = Field(default=None, ge=0)
    cache_read_usd: float | None = Field(default=None, ge=0)
    min_cache_tokens: int | None = Field(default=None, ge=0)
    vision: bool | None = None


class ModelSettings(Section):
    """The model that answers."""

    provider: Provider = "auto"
    name: str | None = None
    base_url: str | None = None
    api: Literal["auto", "chat", "responses"] = "auto"
    api_key: SecretStr | None = None
    api_keys: tuple[SecretStr, ...] = ()
    context_length: int | None = Field(default=None, ge=1024)
    max_output_tokens: int = Field(default=8192, ge=16)
    idle_timeout_s: float = Field(default=60, gt=0)
    retry_for_s: float = Field(default=120, ge=0)
    facts: FactsSettings = FactsSettings()
    extra_body: dict[str, Any] = {}


class PrefillMessage(Section):
    """One example message with which every conversation starts."""

    role: Literal["user", "assistant"]
    content: str = Field(min_length=1)


class AgentSettings(Section):
    """Limits of a turn's loop, and the agent's instructions."""

    max_iterations: int = Field(default=90, ge=1)
    max_turn_tokens: int | None = Field(default=None, ge=1)
    max_turn_s: float | None = Field(default=None, gt=0)
    instructions: str | None = None
    ephemeral: str | None = None
    prefill: tuple[PrefillMessage, ...] = ()
    workspace: Path | None = None


class CompressionSettings(Section):
    """When the in-loop compressor starts and how much it keeps; fractions of the model's window."""

    enabled: bool = True
    threshold: float = Field(default=0.50, gt=0, le=1)
    target_ratio: float = Field(default=0.20, ge=0.10, le=0.80)
    protect_last_n: int = Field(default=20, ge=1)


class AuxiliaryModelSettings(Section):
    """The model of a side task; provider `main` selects the answering model."""

    model: str | None = None
    provider: Literal[Provider, "main"] = "auto"
    base_url: str | None = None
    api_key: SecretStr | None = None
    api_keys: tuple[SecretStr, ...] = ()
    context_length: int | None = Field(default=None, ge=1024)
    facts: FactsSettings = FactsSettings()

    @property
    def has_key(self) -> bool:
        """Whether it has its own key."""
        return bool(self.api_key or self.api_keys)

    @property
    def is_set(self) -> bool:
        """Whether it differs from the answering model."""
        return bool(self.model or self.base_url) or self.provider not in {"auto", "main"}


class AuxiliarySettings(Section):
    """One block per side task.

    `memory` extracts memories that rules miss; disabled without a model. `embeddings` compares
    message meanings for `session_search`, on a server with OpenAI's `/embeddings`; disabled without
    a model.
    """

    compression: AuxiliaryModelSettings = AuxiliaryModelSettings()
    # Needs a restart: the memory's reader is created at start-up.
    memory: Annotated[AuxiliaryModelSettings, "restart"] = AuxiliaryModelSettings()
    embeddings: Annotated[AuxiliaryModelSettings, "restart"] = AuxiliaryModelSettings()


class RoundsSettings(Section):
    """Settings of the context engine `rounds`."""

    min_retain_rounds: int = Field(default=10, ge=1)
    threshold: float = Field(default=0.8, gt=0, le=1)
    summary: Literal["simple", "llm"] = "simple"


class ContextSettings(Section):
    """The engine that selects what the model sees, built in or a plugin's with its options."""

    engine: str = Field(default="compressor", min_length=1)
    rounds: RoundsSettings = RoundsSettings()


class CachingSettings(Section):
    """Prompt caching; enabled if the model supports breakpoints."""

    cache_ttl: Literal["5m", "1h"] = "5m"
    strategy: Literal["system_and_3", "anchored"] = "system_and_3"


class OutputSettings(Section):
    """Limits of one tool result in the view; the full output is stored."""

    max_lines: int = Field(default=2000, ge=1)
    max_bytes: int = Field(default=51200, ge=256)
    direction: Literal["head", "tail", "head_tail"] = "head"


class WorkspaceSettings(Section):
    """The tools' directories, one per conversation; `root` null: PARLEY_HOME/workspaces."""

    # Needs a restart: running confined programs have directories below it.
    root: Annotated[Path | None, "restart"] = None


class SandboxSettings(Section):
    """The sandbox of commands and MCP programs."""

    backend: Literal["auto", "bwrap", "landlock", "none"] = "auto"


class PolicyRule(Section):
    """One row of the table that decides about calls; see docs/tools.md."""

    then: Literal["allow", "ask", "ask_owner", "deny"] = "deny"
    tool: str = Field(default="*", min_length=1)
    role: Literal["*", "owner", "member", "guest"] = "*"
    tainted: bool | None = None
    destination: Literal["*", "none", "listed", "named", "linked", "new"] = "*"
    group: str = Field(default="*", min_length=1)


TAINTED_ROWS = (
    "tainted-notes", "tainted-fetch", "tainted-recalled", "tainted-files", "tainted-acts",
)  # fmt: skip
"""The default rows for tainted turns; those for guests always apply."""


class PolicySettings(Section):
    """Which senders may cause which tool calls, and which calls require approval."""

    rules: tuple[PolicyRule, ...] = ()
    own_records: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    @field_validator("without")
    @classmethod
    def _rows_that_may_go(cls, without: tuple[str, ...]) -> tuple[str, ...]:
        if unknown := [name for name in without if name not in TAINTED_ROWS]:
            known = ", ".join(TAINTED_ROWS)
            raise ValueError(f"{unknown[0]!r} is not a default row that can be removed: {known}")
        return without


class TerminalSettings(Section):
    """The tool `terminal`, and the confinement of its commands."""

    timeout_s: float = Field(default=120, gt=0, le=3600)
    allow_root: bool = False
    confine: bool = True
    network: bool = False
    readable: tuple[Path, ...] = ()


class FetchSettings(Section):
    """The tool `fetch_url`, and the hosts that it may reach."""

    allow_hosts: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


class PluginSettings(Section):
    """Plugins by name (entry points, or folders of PARLEY_HOME/plugins), and their options.

    Options whose key ends in `key`, `token`, … are secrets.
    """

    enabled: tuple[str, ...] = ()
    options: dict[str, dict[str, Any]] = {}

    @field_validator("options", mode="after")
    @classmethod
    def _hide_secrets(cls, options: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        def hidden(key: str, value: Any) -> Any:
            is_secret = isinstance(value, str) and _SECRET_KEY.search(key)
            return SecretStr(value) if is_secret else value

        return {name: _changed(block, hidden) for name, block in options.items()}

    def options_of(self, name: str) -> dict[str, Any]:
        """Return a copy of a plugin's options, with secrets as plain text."""

        def plain(_key: str, value: Any) -> Any:
            return value.get_secret_value() if isinstance(value, SecretStr) else value

        return {**_changed(self.options.get(name, {}), plain)}


# "auth-token", "authToken", "APIKEY", but not "monkey".
_SECRET_KEY = re.compile(
    r"(?:^|[_-]|api|(?-i:(?<=[a-z0-9])(?=[A-Z])))(?:key|token|secret|password|credential)s?$",
    re.IGNORECASE,
)


def _changed(value: Any, change: Callable[..., Any], key: str = "") -> Any:
    """Transform each leaf of nested maps and lists, depending on its key."""
    match value:
        case dict():
            return {name: _changed(item, change, str(name)) for name, item in value.items()}
        case list():
            return [_changed(item, change, key) for item in value]
        case _:
            return change(key, value)


MCP_PREFIX = "mcp_"
"""Prefix of the name of every MCP tool."""


class McpServerSettings(Section):
    """One MCP server: a program to start (`command`), or a web address (`url`).

    `tools`: allowed tools, null for all; `read_only`: tools that change nothing and need no
    approval. Names are the server's own. `confined`: limited to its own directory, like commands;
    `network`, `readable` and `writable` extend that. null: confined if one of these three is set,
    or if the home already had the server when programs still ran unconfined.
    """

    model_config = ConfigDict(hide_input_in_errors=True, coerce_numbers_to_str=True)

    enabled: bool = True
    command: str | None = Field(default=None, min_length=1)
    args: tuple[str, ...] = ()
    env: dict[str, SecretStr] = {}
    cwd: Path | None = None
    confined: bool | None = None
    network: bool = False
    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    url: str | None = None
    headers: dict[str, SecretStr] = {}
    start_timeout_s: float = Field(default=30, gt=0, le=600)
    timeout_s: float = Field(default=60, gt=0, le=3600)
    tools: tuple[str, ...] | None = None
    read_only: tuple[str, ...] = ()

    @field_validator("url")
    @classmethod
    def _web_address(cls, url: str | None) -> str | None:
        if url is not None and not url.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return url

    @property
    def is_confined_by_word(self) -> bool:
        """Whether its settings alone decide that it is confined."""
        named = not self.model_fields_set.isdisjoint({"network", "readable", "writable"})
        return self.confined is True or (self.confined is None and named)

    def with_walls(self, *, was_here: bool) -> "McpServerSettings":
        """Resolve `confined`; `was_here`: the home had it when programs still ran unconfined."""
        is_confined = self.is_confined_by_word or (self.confined is None and was_here)
        return self.model_copy(update={"confined": is_confined})

    @model_validator(mode="after")
    def _one_of_two(self) -> "McpServerSettings":
        if (self.command is None) == (self.url is None):
            raise ValueError("must have either command or url")
        return self


def _server_name(name: str) -> str:
    if not re.fullmatch(r"[a-zA-Z0-9_-]{1,32}", name):
        raise ValueError("must be a name of at most 32 letters (a-z), digits, hyphens, underscores")
    return name


McpServerName = Annotated[str, AfterValidator(_server_name)]


class ToolSettings(Section):
    """The tools that the model may call, their approval, and their limits."""

    enabled: tuple[str, ...] = (
        "todo",
        "memory",
        "session_search",
        "delegate_task",
        "clarify",
        "read_conversation",
        "current_time",
        "calculate",
        "send_file",
        "skill_view",
    )
    approval: Literal["side_effects", "always", "never"] = "side_effects"
    approval_by: Literal["sender", "owners"] = "sender"
    approval_valid_s: Annotated[float, "live"] = Field(default=86_400, gt=0)
    policy: PolicySettings = PolicySettings()
    output: OutputSettings = OutputSettings()
    # Needs a restart: the servers' programs are already running.
    mcp: Annotated[dict[McpServerName, McpServerSettings], "restart"] = {}
    workspace: WorkspaceSettings = WorkspaceSettings()
    sandbox: SandboxSettings = SandboxSettings()
    terminal: TerminalSettings = TerminalSettings()
    fetch: FetchSettings = FetchSettings()
