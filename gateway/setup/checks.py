"""Tests the keys and tokens of a set-up with a real model call and a real log-in.

A refusal is a result, not an exception.
"""

import asyncio

from adapters import registry
from adapters.registry import AccountSettings, by_name
from agent.errors import (
    BadRequest,
    CredentialsRefused,
    ModelError,
    ModelNotFound,
    RateLimited,
)
from agent.messages import ChatMessage
from agent.models.base import ChatModel, ModelRequest, Unwatched
from agent.models.catalog import PROVIDERS, provider_of
from agent.models.factory import build_models
from agent.money.costs import call_of, format_usd
from agent.settings import ModelSettings
from gateway.settings.tree import Settings
from gateway.supervision.credentials import Checked, Outcome, ask_platform, refusal

ANSWER_WITHIN_S = 30.0
QUESTION = "Answer with the one word: ready"
ANSWER_TOKENS = 512
"""Output limit: room for models that think first."""
SHOWN_CHARS = 40


async def check_model(settings: ModelSettings) -> Checked:
    """Ask a model one question; `settings` is a block with its key."""
    try:
        model, *_ = await asyncio.to_thread(build_models, settings)
    except ModelError as exc:
        return Checked(settings.name or settings.provider, "refused", str(exc))
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            return await _asked(model)
    except (ModelError, TimeoutError) as exc:
        outcome, text = _why(exc, model)
        return Checked(model.label, outcome, text)
    finally:
        await model.close()


async def _asked(model: ChatModel) -> Checked:
    question: ChatMessage = {"role": "user", "content": QUESTION}
    request = ModelRequest([question], max_output_tokens=ANSWER_TOKENS, conversation="setup")
    completion = await model.complete(request, Unwatched())
    call = call_of(model, request, completion)
    if model.provider == "offline":
        return Checked(model.label, "accepted", "the demo model answers; it costs nothing")
    cost = format_usd(call.cost_usd, estimated=call.estimated)
    said = " ".join(str(completion.message.get("content") or "").split())[:SHOWN_CHARS]
    answered = f"answers “{said}”" if said else "answers"
    text = f"{answered}; the question and the answer cost {cost}"
    return Checked(model.label, "accepted", text, cost_usd=call.cost_usd)


def _why(failure: Exception, model: ChatModel) -> tuple[Outcome, str]:
    """Explain a failure; error texts of models contain no key."""
    facts = PROVIDERS.get(model.provider)
    outcome: Outcome = "refused"
    match failure:
        case CredentialsRefused():
            outcome, text = refusal(failure)
            if facts and outcome == "no_credit":
                text += f": {facts.credit_at}" if facts.credit_at else ""
            elif facts and facts.keys_at:
                text += f"; keys are made at {facts.keys_at}"
        case ModelNotFound():
            text = f"the provider knows no model {model.name} for this key"
        case BadRequest():
            text = f"the provider refuses the question: {failure}"
        case RateLimited():
            outcome, text = "unreachable", "the provider asks to wait; the key was not refused"
        case TimeoutError():
            outcome, text = "unreachable", f"no answer within {ANSWER_WITHIN_S:g} s"
        case _:
            outcome, text = "unreachable", f"the provider does not answer now ({failure})"
    return outcome, text


async def check_accounts(settings: Settings) -> list[Checked]:
    """Check the tokens of all active accounts concurrently."""
    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(check_account(*each)) for each in settings.platforms.on()]
    return [task.result() for task in asked]


async def check_account(platform: str, block: AccountSettings) -> Checked:
    """Check an account's tokens with its platform; a mixed-up token is not sent."""
    subject = f"{platform}:{block.name}"
    for credential in by_name()[platform].credentials:
        secret = getattr(block, credential.key)
        text = secret.get_secret_value().strip() if secret else ""
        if mixed := mixed_up(text, platform, credential.key):
            wrong = f"this is {mixed}; what is asked for is the {credential.title}"
            return Checked(subject, "refused", wrong)
    report = await ask_platform(platform, block)
    told = (report.outcome, report.text, report.lacks, report.greeting, report.bot)
    return Checked(subject, *told)


def mixed_up(text: str, platform: str = "", key: str = "") -> str:
    """Name the wrong kind of token that a text is; without a platform expect a model key."""
    if told := registry.other_owner(text, platform, key):
        return told
    provider = provider_of(text) if platform else None
    return f"{PROVIDERS[provider].owner}'s key" if provider else ""
