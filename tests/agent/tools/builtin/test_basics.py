"""The tools `calculate` and `current_time`."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ToolError
from agent.tools.builtin.basics import (
    CalculateArguments,
    TimeArguments,
    calculate,
    current_time,
    evaluate,
)
from tests.agent.tools.doubles import context
from tests.support.effort import effort


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("12*7", "84"),
        (" 1 + 2 * 3 ", "7"),
        ("(1 + 2) * 3", "9"),
        ("-2 ** 2", "-4"),
        ("+5 - -5", "10"),
        ("0.1 + 0.2", "0.3"),
        ("6 / 3", "2"),
        ("7 / 2", "3.5"),
        ("7 // 2", "3"),
        ("10 % 4", "2"),
        ("2 ^ 10", "1024"),
        ("2 \N{MULTIPLICATION SIGN} 3 \N{DIVISION SIGN} 4 \N{MINUS SIGN} 1", "0.5"),
        ("2 ** -1", "0.5"),
        ("1 ** 1000000000", "1"),
        ("2 ** 100", "1267650600228229401496703205376"),
        ("sqrt(144)", "12"),
        ("SQRT(2)", "1.4142135623731"),
        ("sin(0) + cos(0) + tan(0)", "1"),
        ("log(e) + log(8, 2) + log10(1000)", "7"),
        ("exp(0)", "1"),
        ("abs(-3) + min(4, 5) + max(1, 2, 3)", "10"),
        ("round(pi, 2)", "3.14"),
        ("round(2.6) + floor(2.6) + ceil(2.1)", "8"),
        ("tau / 2 - pi", "0"),
        ("factorial(20)", "2432902008176640000"),
        ("1e20", "1e+20"),
    ],
)
async def test_arithmetic(expression: str, told: str) -> None:
    """Whole numbers are exact, others have 15 digits."""
    assert await calculate.run(context(), CalculateArguments(expression=expression)) == told


@pytest.mark.parametrize(
    "expression",
    [
        "9**9**9",
        "10 ** 10 ** 10",
        "(2 ** 9999) * (2 ** 9999)",
        "factorial(10**6)",
        "factorial(factorial(100))",
        "round(5, -10**9)",
        "2.0 ** 100000",
        "1e308 * 10",
        "exp(1000)",
        "(2 ** 9000) * 1.5",
        "1" * 501,
        "+".join(["1"] * 300),
        "(" * 300 + "1" + ")" * 199,
    ],
)
def test_what_would_be_too_large_is_refused_at_once(expression: str) -> None:
    """Neither the size of a number nor the depth of an expression keeps the process busy."""

    def refused() -> None:
        with pytest.raises(ToolError):
            evaluate(expression)

    assert effort(refused) < 50


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("1 / 0", "division by zero"),
        ("1 % 0", "division by zero"),
        ("(-8) ** 0.5", "not a real number"),
        ("sqrt(-1)", "not valid arithmetic"),
        ("1 +", "not valid arithmetic"),
        ("", "not valid arithmetic"),
        ("sqrt()", "wrong arguments"),
        ("factorial(1.5)", "whole number"),
        ("factorial(-1)", "whole number"),
        ("True + 1", "'True' is not supported"),
        ("1j", "'1j' is not supported"),
        ("'a' * 3", "is not supported"),
        ("x + 1", "'x' is not supported; use numbers, "),
        ("1 < 2", "is not supported"),
        ("1, 2", "is not supported"),
        ("min(1, key=2)", "is not supported"),
        ("__import__('os')", "is not supported"),
        ("(1).real", "is not supported"),
        ("open('/etc/passwd')", "is not supported"),
        ("[x for x in (1,)]", "is not supported"),
    ],
)
def test_what_is_no_arithmetic_is_explained(expression: str, problem: str) -> None:
    """Only numbers, operators and the named functions are evaluated."""
    with pytest.raises(ToolError) as error:
        evaluate(expression)
    assert problem in str(error.value)


@given(st.text("0123456789.+-*/%()e ,pisqrt^", max_size=60))
def test_any_text_gives_a_number_or_a_tool_error(expression: str) -> None:
    """Nothing else comes out, whatever the model writes."""
    try:
        value = evaluate(expression)
    except ToolError:
        return
    assert isinstance(value, int | float)


@pytest.mark.parametrize(
    ("zone", "readable", "iso"),
    [
        ("UTC", "12:30:00 UTC (UTC+00:00)", "2026-03-01T12:30:00+00:00"),
        ("Asia/Kolkata", "18:00:00 Asia/Kolkata (UTC+05:30)", "2026-03-01T18:00:00+05:30"),
        (" Etc/GMT+5 ", "07:30:00 Etc/GMT+5 (UTC-05:00)", "2026-03-01T07:30:00-05:00"),
    ],
)
async def test_the_time_of_a_zone(zone: str, readable: str, iso: str) -> None:
    """Weekday, date, time and offset are told, readable and as ISO 8601."""
    told = await current_time.run(context(), TimeArguments(timezone=zone))
    assert told == f"Sunday, 1 March 2026, {readable}; {iso}"


async def test_the_default_zone_is_utc() -> None:
    """A call without arguments works."""
    assert "UTC+00:00" in await current_time.run(context(), TimeArguments())


@pytest.mark.parametrize("zone", ["", "Narnia", "../../etc/passwd", "a\x00b", "America", "x" * 999])
async def test_what_is_no_zone_is_refused(zone: str) -> None:
    """Paths, directories and nonsense end as an error for the model."""
    with pytest.raises(ToolError, match="there is no time zone"):
        await current_time.run(context(), TimeArguments(timezone=zone))
