"""Statements that are built once: constructing an expression costs five times its execution."""

from collections.abc import Callable
from functools import cache, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar, cast

from sqlalchemy import bindparam

P = ParamSpec("P")
S = TypeVar("S")


def built_once(build: Callable[P, S]) -> Callable[P, tuple[S, dict[str, Any]]]:
    """Return a function that gives `conn.execute` a statement and its values.

    `build` is called once, with bind parameters in place of its arguments; it must therefore not
    look at them, only put them into the statement.
    """
    names = tuple(signature(build).parameters)
    keys = {name: f"p_{name}" for name in names}

    @cache
    def statement() -> S:
        parameters: dict[str, Any] = {name: bindparam(key) for name, key in keys.items()}
        return cast("Callable[..., S]", build)(**parameters)

    @wraps(build)
    def bound(*args: P.args, **kwargs: P.kwargs) -> tuple[S, dict[str, Any]]:
        values = {keys[name]: value for name, value in zip(names, args, strict=False)}
        values.update({keys[name]: value for name, value in kwargs.items()})
        return statement(), values

    return bound
