"""The lossless context engine: nothing is lost, only out of view, and the model can look it up.

The oldest messages behind the head become leaves, leaves become nodes, and the view holds the nodes
of the frontier (read `compress`). Nothing happens below the threshold. The texts are written in
agent/engines/lcm/writing.py, the steps are in agent/engines/lcm/compaction.py, the tools in
agent/engines/lcm/tools.py.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from typing_extensions import override

from agent.context.phases.boundaries import Newest, protected_tail
from agent.context.phases.convergence import target_tokens
from agent.context.phases.sizes import Sizes
from agent.context_compressor import prune_old_results, thorough
from agent.context_engine import Archive, Compressed, CompressionRequest, ContextEngine, Limits
from agent.engines.lcm import tools
from agent.engines.lcm.compaction import Compaction
from agent.engines.lcm.frontier import opened
from agent.engines.lcm.writing import joined
from agent.errors import SummaryFailed, ToolError
from agent.messages import ToolSchema
from agent.settings import LcmSettings
from agent.view import Edit, Summary


class LcmEngine(ContextEngine):
    """Keeps head and tail; the frontier of a growing tree of nodes stands between."""

    name: ClassVar[str] = "lcm"
    prepares: ClassVar[bool] = True
    prepares_parts: ClassVar[bool] = True

    def __init__(self, limits: Limits, options: Mapping[str, Any]) -> None:
        """Take the limits, and the settings under `context.lcm`."""
        super().__init__(limits, options)
        self._settings = LcmSettings.model_validate(options)
        self._archive: Archive | None = None

    @override
    def attach(self, archive: Archive) -> None:
        """Read the conversation's records with this."""
        self._archive = archive

    @override
    def compress(self, request: CompressionRequest) -> Compressed | None:
        """Make the view smaller than its target; None where it is already, or nothing can go."""
        if request.trigger == "manual":
            request = replace(request, limits=thorough(request))
        elif request.tokens <= target_tokens(request):
            return None
        sizes = Sizes(request)
        request = with_outlines(request, sizes, self._settings.large_tokens)
        if request.trigger != "manual" and request.tokens <= target_tokens(request):
            return Compressed(request.plan, "prune", request.tokens)
        if pruned := prune_old_results(request, sizes, protected_tail(request, sizes)):
            return pruned
        known = self._archive.nodes() if self._archive else ()
        work = Compaction(request, sizes, self._settings, opened(request, known))
        work.run()
        return work.result()

    @override
    def prepare(self, request: CompressionRequest) -> Summary | None:
        """Write what the next compaction needs: a level that is full condensed, or leaves."""
        request = replace(request, prepared=None)
        work = Compaction(request, Sizes(request), self._settings, opened(request, ()))
        written = work.written_ahead()
        if not written and work.scribe.told:
            raise SummaryFailed(work.scribe.failure or "there is nothing to summarise")
        return joined(written) if written else None

    @override
    def get_tool_schemas(self) -> tuple[ToolSchema, ...]:
        """Return the tools that look up what is out of view."""
        return tools.SCHEMAS

    @override
    def handle_tool_call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Run one of them."""
        if self._archive is None:
            raise ToolError("this conversation's records cannot be read now")
        return tools.answer(name, arguments, self._archive)


def with_outlines(
    request: CompressionRequest, sizes: Sizes, large_tokens: int
) -> CompressionRequest:
    """Return the request with outlines in place of large contents, the newest question's but."""
    newest = Newest.of(request.entries).user
    spared = {request.entries[newest].seq} if newest >= 0 else set()
    before = sizes.shown(request.plan)
    large = {seq for seq, tokens in before.items() if tokens > large_tokens} - spared
    known = set(request.plan.edits)
    edits = {Edit(seq, "outline") for seq in large} - known
    if not edits:
        return request
    ordered = sorted(known | edits, key=lambda edit: (edit.seq, edit.kind))
    plan = replace(request.plan, edits=tuple(ordered), thinking_from=request.entries[-1].seq + 1)
    saved = sum(before.values()) - sum(sizes.shown(plan).values())
    return replace(request, plan=plan, tokens=request.tokens - saved)
