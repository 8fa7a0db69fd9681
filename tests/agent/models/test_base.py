"""A call of a model as a span: names, numbers, times, and nothing that was said."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from agent import spans
from agent.errors import ModelUnreachable
from agent.messages import Usage, user_message
from agent.models.base import MODEL, PURPOSE, ModelRequest, traced_call
from agent.spans import Span
from tests.support.scripted_model import ScriptedModel


class Kept:
    """A recorder that keeps what it hears."""

    exports = True
    seed = b""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def ended(self, span: Span) -> None:
        """Keep a span."""
        self.spans.append(span)


class Shown:
    """Keeps what was shown."""

    def __init__(self) -> None:
        self.text = ""

    def push(self, delta: str) -> None:
        """Append."""
        self.text += delta

    def restart(self) -> None:
        """Forget."""
        self.text = ""


@pytest.fixture
def kept() -> Iterator[Kept]:
    """Record what the test does."""
    recorder = Kept()
    token = spans.RECORDER.set(recorder)
    yield recorder
    spans.RECORDER.reset(token)


REQUEST = ModelRequest([user_message("the secret question")], max_output_tokens=9, conversation="7")


async def test_a_call_is_a_span_in_the_words_of_the_conventions(kept: Kept) -> None:
    """Who was asked, what it took, when the first text came; the answer goes on as it is."""
    shown = Shown()
    completion = await traced_call(ScriptedModel(["the secret answer"]), REQUEST, shown)
    (call,) = kept.spans
    told = call.attributes
    assert shown.text == "the secret answer"
    assert (told["gen_ai.operation.name"], told["gen_ai.provider.name"]) == ("chat", "scripted")
    assert (told[MODEL], told["gen_ai.conversation.id"]) == ("scripted", "7")
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert completion.usage is not None
    assert told["gen_ai.usage.input_tokens"] == completion.usage.prompt_tokens > 0
    assert told["gen_ai.usage.output_tokens"] == completion.usage.output_tokens
    assert 0 <= float(str(told["parley.first_token_s"])) <= call.duration_s
    assert "secret" not in repr(call)


async def test_a_failed_call_is_a_span_with_its_error(kept: Kept) -> None:
    """Providers repeat what they were sent: the class of the error is all that is told."""
    failing = ScriptedModel([ModelUnreachable("no route to the secret host")])
    with pytest.raises(ModelUnreachable):
        await traced_call(failing, REQUEST, Shown(), "summary")
    (call,) = kept.spans
    assert call.error == "ModelUnreachable"
    assert call.attributes[PURPOSE] == "summary"
    assert call.attributes["parley.first_token_s"] is None
    assert "secret" not in repr(call)


async def test_cached_tokens_are_told_apart(kept: Kept) -> None:
    """The input counts them all, as the conventions say."""
    step = await ScriptedModel(["yes"]).complete(REQUEST, Shown())
    usage = Usage(10, 5, cache_read_tokens=70, cache_write_5m_tokens=20)
    model = ScriptedModel([replace(step, usage=usage)])
    await traced_call(model, REQUEST, Shown())
    told = kept.spans[0].attributes
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.cache_read.input_tokens"]) == (
        100,
        70,
    )
    assert told["gen_ai.usage.cache_creation.input_tokens"] == 20
