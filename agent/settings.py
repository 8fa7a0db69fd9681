"""The agent's part of the settings tree (CONFIG.md); `gateway/settings.py` reads it once."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr

Provider = Literal["auto", "anthropic", "openai", "openrouter", "nous", "offline"]


class Section(BaseModel):
    """Base of every settings block: frozen, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class ModelSettings(Section):
    """Which model answers."""

    provider: Provider = "auto"
    name: str | None = None
    base_url: str | None = None
    api_key: SecretStr | None = None
    context_length: int | None = Field(default=None, ge=1024)
    max_output_tokens: int = Field(default=8192, ge=16)
    idle_timeout_s: float = Field(default=60, gt=0)
    retry_for_s: float = Field(default=120, ge=0)


class AgentSettings(Section):
    """The loop of one turn."""

    max_iterations: int = Field(default=90, ge=1)
    instructions: str | None = None


class OutputSettings(Section):
    """Limits of one tool result inside the view; the full output is stored."""

    max_lines: int = Field(default=2000, ge=1)
    max_bytes: int = Field(default=51200, ge=256)
    direction: Literal["head", "tail", "head_tail"] = "head"


class ToolSettings(Section):
    """Which tools the model may call."""

    enabled: tuple[str, ...] = ("read_conversation", "current_time", "calculate")
    output: OutputSettings = OutputSettings()
