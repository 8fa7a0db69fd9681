"""The tools without any dependency: `calculate` and `current_time`."""

import ast
import math
import operator
from collections.abc import Callable
from datetime import UTC, tzinfo
from zoneinfo import ZoneInfo

from pydantic import Field

from agent.errors import ToolError
from agent.tools.context import ToolContext
from agent.tools.registry import Arguments, tool

Number = int | float

MAX_EXPRESSION_CHARS = 500
MAX_RESULT_BITS = 10_000
"""Limit of the largest intermediate integer, about 3,000 digits (Python prints up to 4,300)."""
MAX_FACTORIAL = 1000
MAX_ROUNDING = 300


class CalculateArguments(Arguments):
    """Arguments of `calculate`."""

    expression: str = Field(description="Such as 3 * (4 + 5) ** 2, round(sqrt(pi), 4)")


@tool("Computes arithmetic exactly; use it for every calculation.", "read")
async def calculate(_context: ToolContext, arguments: CalculateArguments) -> str:
    """Return the value of an expression: integers exactly, others with 15 digits."""
    return shown(evaluate(arguments.expression))


def evaluate(expression: str) -> Number:
    """Evaluate an arithmetic expression; raise a ToolError if it is invalid or out of bounds."""
    if len(expression) > MAX_EXPRESSION_CHARS:
        raise ToolError(f"the expression is longer than {MAX_EXPRESSION_CHARS} characters")
    try:
        # Parsed, never executed: everything not listed below is refused.
        return _value(ast.parse(expression.translate(_SIGNS).strip(), mode="eval").body)
    except (SyntaxError, ValueError, MemoryError, RecursionError) as exc:
        raise ToolError(f"this is not valid arithmetic: {exc}") from exc
    except ZeroDivisionError as exc:
        raise ToolError("division by zero") from exc
    except OverflowError as exc:
        raise ToolError("the result is too large") from exc
    except TypeError as exc:
        raise ToolError(f"wrong arguments: {exc}") from exc


def shown(value: Number) -> str:
    """Format a number: 0.1 + 0.2 is 0.3, 6 / 3 is 2."""
    # A float has 15 reliable digits; the 17 of `repr` show 0.1 + 0.2 as 0.30000000000000004.
    return str(value) if isinstance(value, int) else f"{value:.15g}"


_SIGNS = str.maketrans({
    "^": "**",
    "\N{MULTIPLICATION SIGN}": "*",
    "\N{MIDDLE DOT}": "*",
    "\N{DIVISION SIGN}": "/",
    "\N{MINUS SIGN}": "-",
    "\N{EN DASH}": "-",
})


def _value(node: ast.expr) -> Number:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return _bounded(value)
        case ast.Name(id=name) if name.lower() in _CONSTANTS:
            return _CONSTANTS[name.lower()]
        case ast.UnaryOp(op=ast.UAdd() | ast.USub() as sign, operand=operand):
            value = _value(operand)
            return -value if isinstance(sign, ast.USub) else value
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            return _bounded(_OPERATORS[type(sign)](_value(left), _value(right)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name.lower() in _FUNCTIONS:
            return _bounded(_FUNCTIONS[name.lower()](*map(_value, args)))
        case _:
            raise ToolError(f"{ast.unparse(node)!r} is not supported; use numbers, {_VOCABULARY}")


def _bounded(value: object) -> Number:
    if isinstance(value, int) and value.bit_length() <= MAX_RESULT_BITS:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    # An even root of a negative number: (-1) ** 0.5 is complex in Python.
    if isinstance(value, complex):
        raise ToolError("the result is not a real number")
    raise ToolError("the result is too large")


def _power(base: Number, exponent: Number) -> Number:
    both_whole = isinstance(base, int) and isinstance(exponent, int)
    # Refused before evaluation: 9**9**9 would take minutes and gigabytes.
    if both_whole and abs(base) > 1 and exponent * math.log2(abs(base)) > MAX_RESULT_BITS:
        raise ToolError("the result is too large")
    result: Number = base**exponent
    return result


def _factorial(value: Number) -> int:
    if value != int(value) or not 0 <= value <= MAX_FACTORIAL:
        raise ToolError(f"factorial needs a whole number from 0 to {MAX_FACTORIAL}")
    return math.factorial(int(value))


def _round(value: Number, digits: Number = 0) -> Number:
    if abs(digits) > MAX_ROUNDING:
        raise ToolError(f"round is limited to {MAX_ROUNDING} digits")
    return round(value, int(digits)) if digits else round(value)


_CONSTANTS: dict[str, float] = {"pi": math.pi, "e": math.e, "tau": math.tau}
_OPERATORS: dict[type[ast.operator], Callable[[Number, Number], Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_FUNCTIONS: dict[str, Callable[..., Number]] = {
    **{name: getattr(math, name) for name in ("sqrt", "sin", "cos", "tan", "log", "log10", "exp")},
    "abs": abs,
    "round": _round,
    "min": min,
    "max": max,
    "floor": math.floor,
    "ceil": math.ceil,
    "factorial": _factorial,
}
_VOCABULARY = f"+ - * / // % ** ( ), {', '.join(_FUNCTIONS)}, {', '.join(_CONSTANTS)}"


class TimeArguments(Arguments):
    """Arguments of `current_time`."""

    timezone: str = Field("UTC", description="IANA name, such as Europe/Berlin")


@tool("Tells the current date and time.", "read")
async def current_time(context: ToolContext, arguments: TimeArguments) -> str:
    """Return the current weekday, date, time and offset of a zone, also as ISO 8601."""
    zone = _zone(arguments.timezone.strip())
    now = context.clock().astimezone(zone)
    offset = now.strftime("%z")
    readable = f"{now:%A}, {now.day} {now:%B %Y, %H:%M:%S}"
    return (
        f"{readable} {arguments.timezone.strip()} (UTC{offset[:3]}:{offset[3:5]}); "
        f"{now.isoformat(timespec='seconds')}"
    )


def _zone(name: str) -> tzinfo:
    if name.upper() in {"UTC", "GMT", "Z"}:
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as exc:
        raise ToolError(f"there is no time zone {name!r}; use a name like Europe/Berlin") from exc
