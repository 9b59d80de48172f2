"""What to install where an optional package is missing: one line that names the command."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Import optional packages in this block; where one is missing, the error says what to install.

    Args:
        extra: The extra of Scoreveil that brings them.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        message = f"The package {package} is missing: pip install 'scoreveil[{extra}]'."
        raise ModuleNotFoundError(message, name=error.name) from None
