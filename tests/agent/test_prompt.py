"""The system prompt: stable bytes, the operator's words last."""

from agent.prompt import DATA_NOT_ORDERS, IDENTITY, build_system_prompt


def test_the_prompt_begins_with_the_identity() -> None:
    """Without tools and instructions there is nothing else."""
    assert build_system_prompt(None, ()) == IDENTITY


def test_tools_bring_their_guidance() -> None:
    """Whoever can read foreign texts is told that they are data."""
    assert build_system_prompt(None, ("look",)) == f"{IDENTITY}\n\n{DATA_NOT_ORDERS}"


def test_the_operator_has_the_last_word() -> None:
    """Instructions follow, without the blank space around them."""
    prompt = build_system_prompt("\n Speak like a pirate.\n", ("look",))
    assert prompt == f"{IDENTITY}\n\n{DATA_NOT_ORDERS}\n\nSpeak like a pirate."


def test_blank_instructions_are_none() -> None:
    """A setting that was left empty adds no blank lines."""
    assert build_system_prompt("", ()) == IDENTITY
    assert build_system_prompt(" \n", ()) == IDENTITY


def test_the_prompt_is_the_same_every_time() -> None:
    """Providers can cache it: time and place do not enter it."""
    prompts = {build_system_prompt("Be brief.", ("a", "b")) for _ in range(3)}
    assert len(prompts) == 1
