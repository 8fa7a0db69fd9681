"""What becomes of what the SDK raises."""

import aiohttp
import pytest
from slack_sdk.errors import SlackApiError, SlackRequestError
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from adapters.errors import (
    AdapterDisconnected,
    AdapterError,
    AdapterRefused,
    SendDelayed,
    SendRejected,
    SendUnknown,
)
from adapters.slack.errors import (
    CallFailed,
    Limited,
    NotTaken,
    Refused,
    Unanswered,
    edit_error,
    mapped,
    receiving_error,
    retry_after_s,
    send_error,
)


def answer(code: str | None, status: int = 200, **headers: str) -> SlackApiError:
    """Return what the SDK raises for an answer."""
    data = {"ok": False, "error": code, "secret": "x"} if code else {}
    response = AsyncSlackResponse(
        client=None,
        http_verb="POST",
        api_url="",
        req_args={},
        data=data,
        headers=headers,
        status_code=status,
    )
    return SlackApiError("failed", response)  # type: ignore[no-untyped-call]


def failure(exc: Exception) -> CallFailed:
    """Return what a call failed with."""
    with pytest.raises(CallFailed) as caught, mapped():
        raise exc
    return caught.value


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (answer("is_archived"), Refused),
        (answer("ratelimited", 429), Limited),
        (answer("rate_limited"), Limited),
        (answer("internal_error"), Unanswered),
        (answer("fatal_error"), Unanswered),
        (answer(None, 502), Unanswered),
        (answer(None), Unanswered),
        (answer("streaming_state_conflict"), NotTaken),
        (SlackRequestError("bad"), Unanswered),
        (AttributeError(), Unanswered),
        (aiohttp.ServerDisconnectedError(), Unanswered),
        (TimeoutError(), Unanswered),
        (ConnectionResetError(), Unanswered),
        (aiohttp.InvalidURL("x"), NotTaken),
        (aiohttp.ConnectionTimeoutError(), NotTaken),
    ],
)
def test_what_became_of_a_call(exc: Exception, kind: type[CallFailed]) -> None:
    """Only what never left, or what Slack refuses, has certainly not been done."""
    found = failure(exc)
    assert type(found) is kind
    assert "secret" not in str(found)


def test_an_answer_that_is_no_json_is_in_doubt() -> None:
    """Then the SDK hands out aiohttp's response, which has no data."""

    class Plain:
        status = 200

    exc = SlackApiError("no JSON", Plain())  # type: ignore[no-untyped-call]
    assert isinstance(failure(exc), Unanswered)


@pytest.mark.parametrize(
    ("exc", "kind"),
    [
        (Refused("channel_not_found"), SendRejected),
        (Refused("restricted_action_thread_locked"), SendRejected),
        (Refused("invalid_auth"), SendDelayed),
        (Refused("account_inactive"), SendDelayed),
        (Refused("missing_scope"), SendDelayed),
        (Limited("ratelimited", 7.0), SendDelayed),
        (NotTaken("update_failed"), SendDelayed),
        (Unanswered("TimeoutError"), SendUnknown),
    ],
)
def test_what_it_means_for_a_post(exc: CallFailed, kind: type[AdapterError]) -> None:
    """What can be mended is not buried."""
    assert type(send_error(exc)) is kind


def test_an_edit_is_never_in_doubt() -> None:
    """It is simply done again."""
    assert isinstance(edit_error(Unanswered("TimeoutError")), SendDelayed)
    assert isinstance(edit_error(Refused("is_inactive")), SendRejected)


def test_wrong_credentials_end_the_adapter_and_name_their_setting() -> None:
    """Anything else is a matter of time."""
    refusal = receiving_error(Refused("invalid_auth"), "app_token")
    assert isinstance(refusal, AdapterRefused)
    assert "platforms.slack.app_token" in str(refusal)
    assert isinstance(receiving_error(Unanswered("x"), "bot_token"), AdapterDisconnected)


@pytest.mark.parametrize(
    ("header", "seconds"), [("30", 30.0), ("0", 0.0), ("-1", 0.0), ("soon", None), (None, None)]
)
def test_all_digits_of_retry_after_count(header: str | None, seconds: float | None) -> None:
    """The SDK's own handler reads the first one only."""
    assert retry_after_s({} if header is None else {"Retry-After": header}) == seconds
