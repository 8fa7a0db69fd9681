"""Links that sign in and stand in a chat: only who shows them knows their secrets.

What is stored of a message, and so every backup, has a number where the link's secret stands. The
secret is made of that number, the conversation and the web chat's token, which is in no database,
each time that the message is shown. It is as long as the number, so that places in the text stay.
"""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass

from pydantic import SecretStr

_STORED, _SHOWN = "#invited=", "#sign-in="
_CHARS = 43
"""Of 16 each: no renderer of any platform writes them in another way."""
_NUMBER = re.compile(f"{_STORED}([0-9a-f]{{{_CHARS}}})")
_OF_THIS_PROCESS = secrets.token_bytes(32)
"""Where there is no token."""


@dataclass(frozen=True, slots=True)
class ChatLinks:
    """Makes and shows the links of chats.

    Attributes:
        token: The web chat's; a link that was made with another one opens nothing.
    """

    token: SecretStr | None

    def new(self, page: str, conversation: int) -> tuple[str, str]:
        """Return a link to this page as it is stored in a conversation, and its secret."""
        number = secrets.token_hex(_CHARS)[:_CHARS]
        return f"{page}{_STORED}{number}", self._secret(number, conversation)

    def are_in(self, text: str) -> bool:
        """Whether a stored text has links."""
        return _STORED in text

    def shown(self, text: str, conversation: int) -> str:
        """Return a stored text of a conversation with its links as they work."""
        # What stands in another conversation leads to nothing: a model can be told to repeat it.
        return _NUMBER.sub(lambda found: _SHOWN + self._secret(found[1], conversation), text)

    def _secret(self, number: str, conversation: int) -> str:
        key = _OF_THIS_PROCESS if self.token is None else self.token.get_secret_value().encode()
        made_of = f"link of a chat:{conversation}:{number}".encode()
        return hmac.new(key, made_of, hashlib.sha256).hexdigest()[:_CHARS]
