"""What every component and every table of settings is: a frozen value whose fields are its settings, named when it is made.

The first setting may be given without its name, as in `ELLocal(7)` or `Dirichlet(0.1)`; all others need theirs. That holds in Python only and is
decided here, once for all classes; tables of files name everything anyway.
"""

# ruff: noqa: N805 - of a metaclass, "self" is a class

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, Self

import msgspec

from epidemic.core.errors import suggestion


class SettingsMeta(msgspec.StructMeta):
    """Makes every setting but the first keyword-only.

    msgspec's own `kw_only` concerns all fields that a class declares, and sorts those that a subclass declares again before the subclass's own.
    """

    @property
    def first_setting(cls) -> str | None:
        """The setting that needs no name: the first that neither the class nor a base of it declares as `kw_only`; None if all do."""
        return _first_setting(cls)

    @property
    def __signature__(cls) -> inspect.Signature:
        """As `help` and editors show it."""
        declared = super().__signature__
        first = cls.first_setting
        by_name = [p.replace(kind=p.KEYWORD_ONLY) for p in declared.parameters.values() if p.name != first]
        alone = [] if first is None else [declared.parameters[first]]
        return declared.replace(parameters=[*alone, *by_name])

    def __call__(cls, /, *values: Any, **settings: Any) -> Any:
        """Make one.

        Args:
            values: The first setting, or nothing.
            settings: The others, by name.
        """
        if values:
            first = cls.first_setting
            if first is None or len(values) > 1:
                raise TypeError(_misused(cls, first, len(values)))
            if first in settings:
                raise TypeError(f"{cls.__name__}() got {first} twice: without a name and as {first}=")
            settings = {first: values[0], **settings}
        return super().__call__(**settings)


@cache  # signatures are read slowly, and values are made often
def _first_setting(cls: SettingsMeta) -> str | None:
    named: set[str] = set()
    for base in cls.__mro__:
        if isinstance(base, msgspec.StructMeta):
            parameters = msgspec.StructMeta.__signature__.__get__(base).parameters.values()
            named.update(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
    return next((name for name in cls.__struct_fields__ if name not in named), None)


def _misused(cls: SettingsMeta, first: str | None, given: int) -> str:
    """The line that says how a class is called."""
    others = [f"{name}=..." for name in cls.__struct_fields__ if name != first]
    if not cls.__struct_fields__:
        return f"{cls.__name__}() has no settings, but {given} {'was' if given == 1 else 'were'} given"
    alone = "no value without a name" if first is None else f"one value without a name ({first})"
    use = ", ".join(([] if first is None else ["..."]) + others)
    return f"{cls.__name__}() takes {alone}, but {given} {'was' if given == 1 else 'were'} given; write {cls.__name__}({use})"


class Settings(msgspec.Struct, metaclass=SettingsMeta, frozen=True):
    """Base of all components and tables of settings: only the first setting may be given without its name."""

    def replace(self, **changes: object) -> Self:
        """A value that differs in these settings and is checked like a new one.

        Args:
            changes: The settings that are different, by name.

        Returns:
            A new value; this one stays as it is.

        Example:
            >>> longer = experiment.replace(rounds=500, algorithm=experiment.algorithm.replace(lr=0.1))
        """
        for name in changes:
            if name not in self.__struct_fields__:
                raise TypeError(
                    f"{type(self).__name__} has no setting {name!r}{suggestion(name, self.__struct_fields__)}"
                )
        return msgspec.structs.replace(self, **changes)

    def __reduce__(self) -> tuple[Any, ...]:
        """How copies and other processes make it anew."""
        return _made_again, (type(self), {name: getattr(self, name) for name in self.__struct_fields__})


def _made_again(cls: type[Settings], settings: dict[str, Any]) -> Settings:
    return cls(**settings)
