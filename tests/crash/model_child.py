"""The gateway that is killed, with the real SDKs: its models talk to servers in the test's process.

Also the warm process that forks such gateways.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import Any

from typing_extensions import override

from agent.models.factory import build_models
from agent.models.recovery import Recovery, RetryPolicy
from agent.network import certificates
from agent.settings import AgentSettings, ModelSettings
from agent.tools.registry import ToolRegistry
from agent.turn.request import Agent
from tests.crash import child, nursery
from tests.crash.mutants import replace_in
from tests.support.crash import Spec
from tests.support.crash_script import TOOLS


@dataclass(frozen=True, slots=True)
class ModelSpec(Spec):
    """How one gateway process lives, and which models it has, in order of preference."""

    models: tuple[dict[str, Any], ...] = ()


class ModelLife(child.Life):
    """One process from its start to its end, with models behind HTTP."""

    @override
    def _agent(self, *_: object) -> Agent:
        assert isinstance(self.spec, ModelSpec)
        blocks = [ModelSettings.model_validate(each) for each in self.spec.models]
        return Agent(
            models=[model for block in blocks for model in build_models(block)],
            tools=ToolRegistry(map(self._tool, TOOLS), child.OUTPUT),
            settings=AgentSettings(),
            approval=self.rules,
            recovery=Recovery(RetryPolicy(backoff_s=(0.001,))),
            max_output_tokens=100,
        )


def main() -> None:
    """Serve until stdin ends."""
    replace_in(child, Life=ModelLife, Spec=ModelSpec)
    child.TOLD.add("model_call_failed")
    for name in ("agent.models.anthropic.client", "agent.models.openai.client"):
        import_module(name)
    certificates()
    nursery.main()


if __name__ == "__main__":
    main()
