"""References of the form module:name to objects that another process or a later run can import."""

from functools import reduce
from importlib import import_module
from typing import Any

from .checks import brief


def reference_to(thing: Any) -> str | None:
    """Returns the module:name of a function or class; None for anything else."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    return f"{module}:{name}" if isinstance(module, str) and isinstance(name, str) else None


def is_importable(reference: Any) -> bool:
    """Whether a reference can be imported. Names inside a script, a notebook or a function cannot."""
    module, _, name = str(reference).partition(":")
    return module != "__main__" and all(part.isidentifier() for part in [*module.split("."), *name.split(".")])


def resolve(label: str, reference: str) -> Any:
    """Returns the object that `reference` names; `label`, the object's role, begins the error message.

    Raises ValueError if the module or the name in it does not exist, or if the import fails.
    """
    if not is_importable(reference):
        raise ValueError(f"{label}: expected module:name of something that can be imported, got {brief(reference)}")
    module, _, name = reference.partition(":")
    try:
        return reduce(getattr, name.split("."), import_module(module))
    except Exception as error:  # a module may raise anything while it is imported
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        missing = isinstance(error, (ImportError, AttributeError))  # their text is complete
        message = f"{label}: expected something that can be imported, got {brief(reference)} ({reason})"
        raise ValueError(message) from (None if missing else error)
