"""Sizes of views under plans that are being considered, without counting anything twice."""

from agent.context_engine import CompressionRequest
from agent.messages import ChatMessage
from agent.view import NOTE, ViewPlan, rewrite, summary_messages


class Sizes:
    """Counts tokens for one request; originals are counted once each, when they are needed."""

    def __init__(self, request: CompressionRequest) -> None:
        self._request = request
        self._originals = {id(entry.message): entry.message for entry in request.entries}
        self._counted: dict[int, int] = {}
        self._note_tokens = request.estimate(ChatMessage(role="system", content=NOTE))

    def message(self, message: ChatMessage) -> int:
        """Return the tokens of a message."""
        key = id(message)
        if key not in self._originals:
            return self._request.estimate(message)
        if key not in self._counted:
            self._counted[key] = self._request.estimate(message)
        return self._counted[key]

    def view(self, plan: ViewPlan) -> int:
        """Return the size of the whole view under a plan, what no plan can change included."""
        return self.fixed(plan) + sum(self.shown(plan).values()) + self.summaries(plan)

    def fixed(self, plan: ViewPlan) -> int:
        """Return what stays whatever is cut; the first compaction adds its note to it."""
        noted = plan.compacted and not self._request.plan.compacted
        return self._request.fixed_tokens + (self._note_tokens if noted else 0)

    def shown(self, plan: ViewPlan) -> dict[int, int]:
        """Return the size of each message that the plan shows, by seq."""
        shown = plan.select(self._request.entries)
        messages = rewrite(plan, shown)
        return {
            entry.seq: self.message(message) for entry, message in zip(shown, messages, strict=True)
        }

    def summaries(self, plan: ViewPlan) -> int:
        """Return the size of the summaries as they are shown."""
        return sum(map(self._request.estimate, summary_messages(plan)))
