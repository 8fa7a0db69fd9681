"""Who may talk to the agent: default deny (`access` in the settings)."""

from dataclasses import dataclass

from adapters.messages import InboundMessage
from gateway.settings import AccessSettings


@dataclass(frozen=True, slots=True)
class Access:
    """The answer to one question: is this sender allowed?"""

    settings: AccessSettings

    def allows(self, message: InboundMessage) -> bool:
        """Whether the sender may use the agent; the web chat has made sure of that itself."""
        return (
            message.authenticated
            or self.settings.mode == "open"
            or message.sender in self._listed(message.address.platform)
            or f"{message.address.platform}:{message.sender}" in self.settings.owners
        )

    def answers_strangers(self, message: InboundMessage) -> bool:
        """Whether a stranger gets told their id: in mode pairing, in a direct chat."""
        return self.settings.mode == "pairing" and message.chat_kind == "dm"

    def _listed(self, platform: str) -> tuple[str, ...]:
        return tuple(getattr(self.settings, platform, ()))


def stranger_notice(message: InboundMessage) -> str:
    """Return what a stranger is told, once a day."""
    platform = message.address.platform
    return (
        "This bot is private, so I did not read your message.\n\n"
        f"Your id here is `{message.sender}`. If the bot is yours, allow yourself in `parley.yaml`"
        f" and restart:\n\n```yaml\naccess:\n  {platform}: ['{message.sender}']\n```"
    )
