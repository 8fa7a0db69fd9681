"""Sizes of views under plans that are being considered, without counting anything twice."""

from agent.context_engine import CompressionRequest
from agent.messages import ChatMessage
from agent.view import NOTE, ViewPlan, rewrite, summary_message


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
        noted = self._note_tokens if plan.compacted and not self._request.plan.compacted else 0
        shown = sum(self.shown(plan).values()) + self.summaries(plan)
        return self._request.fixed_tokens + noted + shown

    def shown(self, plan: ViewPlan) -> dict[int, int]:
        """Return the size of each message that the plan shows, by seq."""
        shown = [entry for entry in self._request.entries if plan.shows(entry.seq)]
        messages = rewrite(plan, shown)
        return {
            entry.seq: self.message(message) for entry, message in zip(shown, messages, strict=True)
        }

    def summaries(self, plan: ViewPlan) -> int:
        """Return the size of the summaries as they are shown."""
        return sum(self._request.estimate(summary_message(each)) for each in plan.summaries)
