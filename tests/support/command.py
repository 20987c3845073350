"""The command line in this process, without the second that a process of its own takes."""

from typing import Any

from click.testing import Result
from typer.testing import CliRunner

from stream.cli import app


def run(*arguments: object, code: int = 0, **given: Any) -> Result:
    """``hexveil`` with these arguments, which must end with ``code`` and no error but the one it tells. ``given``: what
    :meth:`CliRunner.invoke` takes beside."""
    result = CliRunner().invoke(app, list(map(str, arguments)), **given)
    assert result.exception is None or isinstance(result.exception, SystemExit), (arguments, result.exception)
    assert result.exit_code == code, (arguments, result.output)
    return result
