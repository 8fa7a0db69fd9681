"""The reader of refusals: what they mean, whatever wraps them, and the sizes that they tell."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import errors
from agent.errors import BadRequest, ContextOverflow, RateLimited
from agent.models.openai.mode import quirk_named_in
from agent.models.refusals import (
    STANDARD_WINDOW_TOKENS,
    Refusal,
    parse_refusal,
    parse_stream_error,
    window_in,
)

CASES = Path(__file__).with_name("refusals.jsonl")
"""Refusals in the words of many servers, by kind."""
ASKED = 100_000
"""Longest answer that the refused requests asked for."""
LONG_CONTEXT = (
    "Extra usage is required for long context requests.",
    "The long context beta is not yet available for this subscription.",
)

Case = dict[str, Any]


def cases(kind: str) -> list[Any]:
    """Return the cases of a kind, named by what they say."""
    found = map(json.loads, CASES.read_text().splitlines())
    named = ((str(each.get("text") or each["body"])[:60], each) for each in found)
    return [pytest.param(each, id=name) for name, each in named if each["kind"] == kind]


def said(case: Case) -> bytes:
    """Return the body of a refusal as it comes."""
    return case["text"].encode() if "text" in case else json.dumps(case["body"]).encode()


def refusal(case: Case) -> Refusal:
    """Return what the reader makes of a case."""
    return parse_refusal(case["status"], {}, said(case))


@pytest.mark.parametrize("case", cases("too_long"))
def test_a_request_that_is_too_long_is_recognised(case: Case) -> None:
    """In each server's words; the window is read if the refusal names it."""
    error = refusal(case).error("", asked=ASKED)
    assert type(error) is ContextOverflow
    assert error.window_tokens == case["window"]


@pytest.mark.parametrize("case", cases("not_too_long"))
def test_other_refusals_are_not_called_too_long(case: Case) -> None:
    """Rates, files, names and the length of the answer have limits of their own."""
    assert refusal(case).meaning() is not ContextOverflow


@pytest.mark.parametrize("case", cases("output"))
def test_the_longest_answer_is_read(case: Case) -> None:
    """It is a malformed request, and the number is the next one's."""
    error = refusal(case).error("", asked=ASKED)
    assert isinstance(error, BadRequest)
    assert (error.output_tokens, error.is_unexplained) == (case["output"], False)


@pytest.mark.parametrize("case", cases("quirk"))
def test_a_form_that_is_refused_is_learned_from_any_body(case: Case) -> None:
    """The reason may be a text, a list, JSON in a text, or a field's place."""
    assert quirk_named_in(refusal(case).text, frozenset()) == case["quirk"]


@pytest.mark.parametrize("case", cases("meaning"))
def test_meaning(case: Case) -> None:
    """A precise name decides, then the words within a status, else the status."""
    assert refusal(case).meaning() is getattr(errors, case["means"])


@pytest.mark.parametrize("case", cases("event"))
def test_errors_in_a_stream(case: Case) -> None:
    """A code may be an HTTP status; without one the names and words decide."""
    assert parse_stream_error(case["body"]).meaning() is getattr(errors, case["means"])


WRAPPED = "This model's maximum context length is 8192 tokens. You requested 9000."


@pytest.mark.parametrize(
    "body",
    [
        WRAPPED,
        {"error": WRAPPED},
        {"error": {"message": WRAPPED}},
        {"detail": WRAPPED},
        {"detail": [{"loc": ["body"], "msg": WRAPPED}]},
        {"detail": {"error": {"message": WRAPPED}}},
        [{"error": {"message": WRAPPED}}],
        {"errors": [WRAPPED]},
        {"message": WRAPPED},
        {"message": {"detail": WRAPPED}},
        {"error": {"message": "x", "metadata": {"raw": WRAPPED}}},
        {"error": {"message": "x", "metadata": {"raw": json.dumps({"error": WRAPPED})}}},
        {"error": {"message": f"litellm.BadRequestError: {json.dumps({'message': WRAPPED})}"}},
        {"status": "error", "reason": {"text": [WRAPPED]}},
        f"<html><body><h1>400</h1><p>{WRAPPED}</p></body></html>",
    ],
    ids=str,
)
def test_any_wrapping_is_read(body: object) -> None:
    """The same words mean the same, wherever a server or a proxy puts them."""
    raw = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    error = parse_refusal(400, {}, raw).error("")
    assert isinstance(error, ContextOverflow)
    assert error.window_tokens == 8192


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: (
    st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
), max_leaves=8), st.sampled_from([400, 404, 413, 422, 429, 500, 503]))  # fmt: skip
def test_no_body_breaks_the_reader(body: object, status: int) -> None:
    """Whatever a server says is some ModelError, in one line."""
    found = parse_refusal(status, {}, json.dumps(body).encode())
    assert "\n" not in str(found.error("key"))
    assert isinstance(parse_stream_error(body).error("key"), errors.ModelError)


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 50_000, b'{"a":' * 50_000])
def test_a_body_that_is_not_json_is_read_as_a_text(body: bytes) -> None:
    """Nested without end, cut, empty or in no encoding."""
    assert isinstance(parse_refusal(400, {}, body).error(""), BadRequest)


@pytest.mark.parametrize("said", LONG_CONTEXT)
@pytest.mark.parametrize("status", [400, 403, 429])
def test_a_long_window_that_the_account_lacks_is_the_standard_one(said: str, status: int) -> None:
    """Of a model whose window is not larger it is passing trouble."""
    found = parse_refusal(status, {}, {"error": {"message": said}})
    error = found.error("", window=1_000_000)
    assert isinstance(error, ContextOverflow)
    assert error.window_tokens == STANDARD_WINDOW_TOKENS
    assert isinstance(found.error("", window=STANDARD_WINDOW_TOKENS), RateLimited)


@pytest.mark.parametrize(
    ("said", "unexplained"),
    [
        ("E4711", True),
        ("Bad Request", True),
        ("", True),
        ("Invalid value for 'tools[0].function.name'", False),
        ("image could not be decoded", False),
        ("max_tokens must be positive", False),
    ],
)
def test_what_nothing_explains_may_be_the_size(said: str, unexplained: bool) -> None:
    """What names another part of the request is explained."""
    error = parse_refusal(400, {}, {"error": {"message": said}}).error("")
    assert isinstance(error, BadRequest)
    assert error.is_unexplained is unexplained


def test_the_wait_of_the_body_is_obeyed() -> None:
    """Gemini asks for it there, others in a header."""
    body = [{"error": {"code": 429, "details": [{"retryDelay": "34s"}]}}]
    error = parse_refusal(429, {"retry-after": "5"}, body).error("")
    assert isinstance(error, RateLimited)
    assert error.retry_after_s == 34


def test_an_echoed_request_is_not_read() -> None:
    """What the person wrote must not decide what a refusal means."""
    echo = {"detail": [{"loc": ["body", "x"], "msg": "wrong", "input": "the prompt is too long"}]}
    assert parse_refusal(422, {}, echo).meaning() is BadRequest
    assert window_in("at most 5000 characters in a message") is None
