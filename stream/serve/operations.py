"""The paths of the API: each handler declares its path, parameters and answers; its docstring says what is there."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from aiohttp import web

from stream.serve import parameters as p

Handler = Callable[..., Awaitable[web.StreamResponse]]
Method = TypeVar("Method", bound=Handler)

BASE = "/api/v1"


@dataclass(frozen=True)
class Operation:
    """GET (and HEAD) of one path. ``content``: media type -> name of a schema of the document, None for bytes.

    ``errors``: besides 400 and 503, which every path may answer, and those of its parameters.
    """

    path: str
    name: str
    summary: str
    handler: Handler
    parameters: tuple[p.Parameter, ...]
    content: Mapping[str, str | None]
    tag: str
    errors: tuple[int, ...] = ()
    conditional: bool = True


_DECLARED: dict[Handler, list[Operation]] = {}


def get(
    path: str, name: str, content: Mapping[str, str | None], *parameters: str | p.Parameter, tag: str, base: str = BASE,
    errors: tuple[int, ...] = (), conditional: bool = True, summary: str = "", **given: str,
) -> Callable[[Method], Method]:  # fmt: skip
    """Declares that a method answers ``path`` below ``base``; its docstring is the summary, unless one is given.

    ``parameters``: besides those in the path. ``given``: further arguments of the method.
    """

    def declare(method: Method) -> Method:
        said = summary or " ".join((method.__doc__ or "").split()).removesuffix(".")
        named = [*re.findall(r"{(\w+)}", path), *parameters]
        read = tuple(p.described(path, one) if isinstance(one, str) else one for one in named)
        handler = partial(method, **given)
        _DECLARED.setdefault(method, []).append(
            Operation(base + path, name, said, handler, read, content, tag, errors, conditional)
        )
        return method

    return declare


def files(
    path: str, name: str, summary: str, formats: Mapping[str, str], *parameters: str, errors: tuple[int, ...] = ()
) -> Callable[[Method], Method]:
    """Declares a path for each format of a file, which the method gets as ``suffix``."""

    def declare(method: Method) -> Method:
        for suffix, kind in formats.items():
            content = {kind: "DownloadFeatures" if suffix == "geojson" else None}
            refused = (*errors, 501) if suffix == "parquet" else errors
            place, identifier, said = f"{path}.{suffix}", f"{name}{suffix.capitalize()}", summary.format(suffix)
            get(
                place, identifier, content, *parameters, tag="Downloads", errors=refused, summary=said, suffix=suffix,
            )(method)  # fmt: skip
        return method

    return declare


def operations(feed: str, *services: object) -> list[Operation]:
    """Every path that the methods of the ``services`` declare, in their order; ``feed``: the default one."""
    named = p.feed(feed)
    return [
        replace(
            operation,
            handler=partial(operation.handler, service),
            parameters=tuple(named if one is p.FEED else one for one in operation.parameters),
        )
        for service in services
        for method in vars(type(service)).values()
        if callable(method)
        for operation in _DECLARED.get(method, ())
    ]


def bound(operation: Operation) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """The handler with its parameters read from the request."""

    async def handle(request: web.Request) -> web.StreamResponse:
        given: dict[str, Any] = p.read_all(request, operation.parameters)
        return await operation.handler(request, **given)

    return handle
