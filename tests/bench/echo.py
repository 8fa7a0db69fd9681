"""The model of the benchmarks: answers "reply to <newest text>" at once, in one piece."""

from agent.messages import Usage, assistant_message, text_of
from agent.models.base import Completion, ModelRequest, TextSink
from agent.models.catalog import FREE, ModelFacts


class EchoModel:
    """Keeps nothing and counts nothing, so that what is measured is the gateway."""

    provider = "echo"
    name = label = "echo"
    context_length = 200_000
    cache_layout = None
    facts = ModelFacts("echo", prices=FREE)

    async def complete(self, request: ModelRequest, sink: TextSink) -> Completion:
        """Answer with the newest message's text."""
        text = "reply to " + text_of(request.messages[-1])
        sink.push(text)
        return Completion(assistant_message(text), "stop", Usage(1000, 10), self.name)

    async def look_up(self) -> None:
        """There is nobody to ask."""

    async def close(self) -> None:
        """Nothing to give back."""
