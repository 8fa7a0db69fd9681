"""What becomes of what the SDK raises."""

import aiohttp
import pytest
from slack_sdk.errors import (
    SlackApiError,
    SlackClientConfigurationError,
    SlackClientError,
    SlackObjectFormationError,
    SlackRequestError,
)
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from adapters.errors import (
    AdapterDisconnected,
    AdapterError,
    AdapterRefused,
    FetchDelayed,
    FetchRejected,
    SendDelayed,
    SendUnknown,
)
from adapters.messages import Attachment
from adapters.slack.adapter import check_download
from adapters.slack.errors import (
    Fixable,
    Limited,
    Refused,
    mapped,
    mapped_receiving,
    retry_after_s,
)
from adapters.slack.send import check_response, check_upload
from tests.support.exceptions import MAYBE_SENT, NOT_SENT, missing_in, raised_by


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


def failure(exc: Exception, *, once: bool = True) -> AdapterError:
    """Return what a call failed with."""
    with pytest.raises(AdapterError) as caught, mapped(once=once):
        raise exc
    return caught.value


# What Slack answers with status 200. Sources: https://docs.slack.dev/reference/methods/chat.postMessage
# and the errors of chat.update, chat.startStream, files.completeUploadExternal, auth.test.
LIMITED = ["ratelimited", "rate_limited"]
IN_DOUBT = ["internal_error", "fatal_error", "service_unavailable"]
NOT_NOW = [
    "request_timeout",
    "update_failed",
    "external_channel_migrating",
    "streaming_state_conflict",
    "team_added_to_org",
    "message_limit_exceeded",
]
TOKEN_REFUSED = [
    "invalid_auth",
    "not_authed",
    "account_inactive",
    "token_revoked",
    "token_expired",
    "not_allowed_token_type",
    "missing_args",
]
MENDABLE = [
    "missing_scope",
    "no_permission",
    "access_denied",
    "accesslimited",
    "ekm_access_denied",
    "org_login_required",
    "team_access_not_granted",
    "two_factor_setup_required",
]
FINAL = [
    "as_user_not_supported",
    "attachment_payload_limit_exceeded",
    "cannot_reply_to_message",
    "cant_update_message",
    "channel_not_found",
    "channel_type_not_supported",
    "deprecated_endpoint",
    "duplicate_channel_not_found",
    "duplicate_message_not_found",
    "edit_window_closed",
    "enterprise_is_restricted",
    "file_not_found",
    "invalid_arg_name",
    "invalid_arguments",
    "invalid_array_arg",
    "invalid_blocks",
    "invalid_blocks_format",
    "invalid_charset",
    "invalid_form_data",
    "invalid_metadata_format",
    "invalid_metadata_schema",
    "invalid_post_type",
    "is_archived",
    "is_inactive",
    "markdown_text_conflict",
    "message_not_found",
    "message_not_in_streaming_state",
    "message_not_owned_by_app",
    "messages_tab_disabled",
    "metadata_must_be_sent_from_app",
    "metadata_too_large",
    "method_deprecated",
    "missing_post_type",
    "msg_blocks_too_long",
    "msg_too_long",
    "no_text",
    "not_in_channel",
    "restricted_action",
    "restricted_action_non_threadable_channel",
    "restricted_action_read_only_channel",
    "restricted_action_thread_locked",
    "restricted_action_thread_only_channel",
    "slack_connect_canvas_sharing_blocked",
    "slack_connect_file_link_sharing_blocked",
    "slack_connect_lists_sharing_blocked",
    "thread_not_found",
    "too_many_attachments",
    "too_many_contact_cards",
    "user_not_found",
    "a_code_of_next_year",
]
BY_CODE = {
    **dict.fromkeys(LIMITED, (Limited, Limited)),
    **dict.fromkeys(IN_DOUBT, (SendUnknown, SendDelayed)),
    **dict.fromkeys(NOT_NOW, (SendDelayed, SendDelayed)),
    **dict.fromkeys([*TOKEN_REFUSED, *MENDABLE], (Fixable, Fixable)),
    **dict.fromkeys(FINAL, (Refused, Refused)),
}
"""What it means for a post, which must not be repeated unasked, and for an edit."""
BY_STATUS = {
    429: (Limited, Limited),
    **dict.fromkeys(
        (200, 302, 400, 401, 403, 404, 408, 413, 500, 501, 502, 503, 504, 599),
        (SendUnknown, SendDelayed),
    ),
}
"""The same for answers in which Slack says nothing: pages of something in front of it."""
OF_THE_SDK = [
    SlackClientError(),
    SlackRequestError("bad"),
    SlackObjectFormationError(),
    SlackClientConfigurationError(),
]
NEVER_MET = {
    "BotUserAccessError": "of the old real-time API",
    "SlackApiError": "an answer, as in the tables above",
    "SlackClientNotConnectedError": "of the SDK's own socket client",
    "SlackTokenRotationError": "no token is rotated",
}
NOT_TAKEN = (SendDelayed, SendDelayed)
UNANSWERED = (SendUnknown, SendDelayed)


Outcomes = tuple[type[AdapterError], type[AdapterError]]
CASES: list[tuple[Exception, Outcomes]] = [
    *[(answer(code), outcomes) for code, outcomes in BY_CODE.items()],
    *[(answer(None, status), outcomes) for status, outcomes in BY_STATUS.items()],
    (answer("ratelimited", 429), (Limited, Limited)),
    *[(answer("internal_error", status), UNANSWERED) for status in (500, 502, 503, 504)],
    (answer("channel_not_found", 500), UNANSWERED),
    (answer("channel_not_found", 404), (Refused, Refused)),
    *[(exc, NOT_TAKEN) for exc in NOT_SENT],
    *[(exc, UNANSWERED) for exc in (*MAYBE_SENT, *OF_THE_SDK)],
]


def name_of(exc: Exception) -> str:
    if not isinstance(exc, SlackApiError):
        return type(exc).__name__
    return f"{exc.response.status_code}-{exc.response.get('error')}"


@pytest.mark.parametrize(("exc", "outcomes"), CASES, ids=[name_of(exc) for exc, _ in CASES])
def test_what_became_of_a_call(exc: Exception, outcomes: Outcomes) -> None:
    """Only what never left, or what Slack refuses, has certainly not been done."""
    post, edit = failure(exc), failure(exc, once=False)
    assert (type(post), type(edit)) == outcomes
    assert "secret" not in f"{post} {edit}"


@pytest.mark.parametrize("code", BY_CODE)
def test_what_ends_a_connection(code: str) -> None:
    """A token or a scope that Slack refuses ends the adapter; anything else is a matter of time."""
    ends = code in TOKEN_REFUSED or code == "missing_scope"
    with pytest.raises(AdapterError) as found, mapped_receiving("bot_token"):
        raise answer(code)
    assert type(found.value) is (AdapterRefused if ends else AdapterDisconnected)


def test_no_error_of_the_libraries_is_left_out() -> None:
    """A class that a new version brings needs a decision."""
    met = {type(exc) for exc in [*NOT_SENT, *MAYBE_SENT, *OF_THE_SDK]}
    assert missing_in(met, aiohttp.ClientError) == []
    assert missing_in(met, SlackClientError) == sorted(NEVER_MET)


def test_an_answer_that_is_no_json_is_in_doubt() -> None:
    """Then the SDK hands out aiohttp's response, which has no data."""

    class Plain:
        status = 200

    exc = SlackApiError("no JSON", Plain())  # type: ignore[no-untyped-call]
    assert isinstance(failure(exc), SendUnknown)


def test_wrong_credentials_end_the_adapter_and_name_their_setting() -> None:
    """Anything else is a matter of time."""
    with pytest.raises(AdapterRefused) as refusal, mapped_receiving("app_token"):
        raise answer("invalid_auth")
    assert "platforms.slack.app_token" in str(refusal.value)
    with pytest.raises(AdapterDisconnected), mapped_receiving("bot_token"):
        raise TimeoutError


SERVER_ERRORS = (500, 502, 503, 504, 599)
DOWNLOADS: dict[int, type[AdapterError] | None] = {
    200: None,
    **dict.fromkeys((302, 400, 401, 403, 404, 410), FetchRejected),
    **dict.fromkeys((429, *SERVER_ERRORS), FetchDelayed),
}
UPLOADS: dict[int, type[AdapterError] | None] = {
    200: None,
    **dict.fromkeys((302, 400, 403, 404, 413, 429, *SERVER_ERRORS), SendDelayed),
}
RESPONSES: dict[int, type[AdapterError] | None] = {
    200: None,
    429: Limited,
    **dict.fromkeys((302, 400, 403, 404, 410), Refused),
    **dict.fromkeys(SERVER_ERRORS, SendUnknown),
}


@pytest.mark.parametrize("status", DOWNLOADS)
def test_what_the_file_server_means(status: int) -> None:
    """A file that Slack does not hand out is not asked for again."""
    text = Attachment(name="a.txt", kind="file", mime="text/plain")
    assert raised_by(check_download, status, "text/plain", text) is DOWNLOADS[status]


def test_a_login_page_is_no_file() -> None:
    """Slack shows it, with status 200, to an app that may not read files."""
    text = Attachment(name="a.txt", kind="file", mime="text/plain")
    page = Attachment(name="a.html", kind="file", mime="text/html")
    check_download(200, "text/html", page)
    with pytest.raises(FetchRejected):
        check_download(200, "text/html", text)


@pytest.mark.parametrize("status", UPLOADS)
def test_what_the_end_of_an_upload_means(status: int) -> None:
    """Nothing is shown before the last step, so nothing is in doubt."""
    assert raised_by(check_upload, status) is UPLOADS[status]


@pytest.mark.parametrize("status", RESPONSES)
def test_what_the_address_of_a_command_answers(status: int) -> None:
    """It is closed after 30 minutes; a server's error may hide an answer."""
    assert raised_by(check_response, status, {"Retry-After": "7"}) is RESPONSES[status]


@pytest.mark.parametrize(
    ("header", "seconds"), [("30", 30.0), ("0", 0.0), ("-1", 0.0), ("soon", None), (None, None)]
)
def test_all_digits_of_retry_after_count(header: str | None, seconds: float | None) -> None:
    """The SDK's own handler reads the first one only."""
    assert retry_after_s({} if header is None else {"Retry-After": header}) == seconds
