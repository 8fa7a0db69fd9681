"""The toy platform as the register sees it."""

from pydantic import SecretStr

from adapters.registry import AccountSettings, Platform


class ToySettings(AccountSettings):
    """One toy. `greeting` stands before each answer."""

    token: SecretStr | None = None
    greeting: str = ""


PLATFORM = Platform(
    name="toy",
    title="Toy",
    account=ToySettings,
    id_pattern=r"toy-[0-9]+",
    id_name="toy id (toy-…)",
    chat_pattern=r"box-[0-9]+",
    prompt_hint="a toy: only short words can be read",
    sdk=("toy_sdk",),
)
