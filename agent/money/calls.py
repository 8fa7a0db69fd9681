"""A model call as the ledger books it: answered, failed, or lost on the way."""

from dataclasses import replace

from agent.errors import ModelError
from agent.models.base import ChatModel, Completion, ModelRequest, estimate_usage
from agent.money.costs import cost_usd
from agent.ports import ModelCall
from agent.usage import Usage


def call_of(model: ChatModel, request: ModelRequest, completion: Completion) -> ModelCall:
    """Return an answered call as it is booked; where nothing was reported, with Parley's counts."""
    reported = completion.usage
    usage = reported or estimate_usage(request, completion.message, model.name)
    told_usd = completion.cost_usd
    return ModelCall(
        provider=model.provider,
        model=model.name,
        usage=usage,
        cost_usd=cost_usd(usage, model.facts.prices) if told_usd is None else told_usd,
        estimated=reported is None,
        reported_name=completion.model,
    )


def failed_call(model: ChatModel, failure: ModelError, expected: Usage | None) -> ModelCall | None:
    """Return a failed call as it is booked; None where the model had not begun to answer.

    Where it had and nothing was reported, by what was `expected` of the prompt.
    """
    if failure.usage is not None:
        return lost_call(model, failure.usage)
    if expected is None or not failure.written_tokens:
        return None
    return lost_call(model, replace(expected, output_tokens=failure.written_tokens))


def lost_call(model: ChatModel, usage: Usage) -> ModelCall:
    """Return a call that ended without an answer and is billed all the same."""
    return ModelCall(
        provider=model.provider,
        model=model.name,
        usage=usage,
        cost_usd=cost_usd(usage, model.facts.prices),
        purpose="lost",
        estimated=True,
    )
