"""The agent's part of the settings tree (CONFIG.md); `gateway/settings.py` reads it once."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Provider = Literal["auto", "anthropic", "openai", "openrouter", "nous", "offline"]


class Section(BaseModel):
    """Base of every settings block: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class FactsSettings(Section):
    """Prices (US dollars for a million tokens), cache rules and eyes, in place of the table's."""

    input_usd: float | None = Field(default=None, ge=0)
    output_usd: float | None = Field(default=None, ge=0)
    cache_read_usd: float | None = Field(default=None, ge=0)
    cache_write_5m_usd: float | None = Field(default=None, ge=0)
    cache_write_1h_usd: float | None = Field(default=None, ge=0)
    min_cache_tokens: int | None = Field(default=None, ge=0)
    vision: bool | None = None


class ModelSettings(Section):
    """Which model answers."""

    provider: Provider = "auto"
    name: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    api_keys: tuple[SecretStr, ...] = ()
    context_length: int | None = Field(default=None, ge=1024)
    max_output_tokens: int = Field(default=8192, ge=16)
    idle_timeout_s: float = Field(default=60, gt=0)
    retry_for_s: float = Field(default=120, ge=0)
    facts: FactsSettings = FactsSettings()
    extra_body: dict[str, Any] = {}


class AgentSettings(Section):
    """The loop of one turn; `max_turn_tokens` counts what all its calls read and write."""

    max_iterations: int = Field(default=90, ge=1)
    max_turn_tokens: int | None = Field(default=None, ge=1)
    max_turn_s: float | None = Field(default=None, gt=0)
    instructions: str | None = None


class CompressionSettings(Section):
    """When the in-loop compressor fires and what it keeps; fractions of the model's window.

    `early` compacts a view whose prompt cache has died, where that pays within `payback_requests`.
    """

    enabled: bool = True
    threshold: float = Field(default=0.50, gt=0, le=1)
    target_ratio: float = Field(default=0.20, ge=0.10, le=0.80)
    protect_last_n: int = Field(default=20, ge=1)
    early: bool = False
    payback_requests: float = Field(default=6, gt=0)


class AuxiliaryModelSettings(Section):
    """The model of a side task; provider `main` means the one that answers.

    `timeout_s` is for all calls of one piece of work together.
    """

    model: str | None = None
    provider: Literal[Provider, "main"] = "auto"
    base_url: str | None = None
    api_key: SecretStr | None = None
    facts: FactsSettings = FactsSettings()
    timeout_s: float = Field(default=60, gt=0, le=3600)

    @property
    def is_set(self) -> bool:
        """Whether this is another model than the one that answers."""
        return bool(self.model or self.base_url) or self.provider not in {"auto", "main"}


class AuxiliarySettings(Section):
    """One block for each side task."""

    compression: AuxiliaryModelSettings = AuxiliaryModelSettings()


class RoundsSettings(Section):
    """The context engine `rounds`."""

    min_retain_rounds: int = Field(default=10, ge=1)
    threshold: float = Field(default=0.8, gt=0, le=1)
    summary: Literal["simple", "llm"] = "simple"


class ContextSettings(Section):
    """Which engine decides what the model sees; a plugin's name is allowed."""

    engine: str = Field(default="compressor", min_length=1)
    options: dict[str, Any] = {}
    rounds: RoundsSettings = RoundsSettings()


class CachingSettings(Section):
    """Prompt caching; on where the model takes breakpoints."""

    enabled: bool = True
    cache_ttl: Literal["5m", "1h"] = "5m"
    strategy: Literal["system_and_3", "anchored"] = "system_and_3"


class OutputSettings(Section):
    """Limits of one tool result inside the view; the full output is stored."""

    max_lines: int = Field(default=2000, ge=1)
    max_bytes: int = Field(default=51200, ge=256)
    direction: Literal["head", "tail", "head_tail"] = "head"


class ToolSettings(Section):
    """Which tools the model may call."""

    enabled: tuple[str, ...] = ("read_conversation", "current_time", "calculate", "send_file")
    approval: Literal["side_effects", "always", "never"] = "side_effects"
    output: OutputSettings = OutputSettings()
    mcp: dict[str, dict[str, Any]] = {}
