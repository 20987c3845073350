"""The source stays legible: files have one subject, functions fit on a screen, locals are named for what they hold."""

from __future__ import annotations

import ast
import gc
import re
import textwrap
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from stream.local import REPO_ROOT

MOST_LINES, MOST_LOCALS = 60, 20
"""Limits of a function: lines from ``def`` to its end, and names that it binds, including arguments and comprehensions.
"""
MOST_LINES_OF_A_FILE = 460
"""Limit of a file's lines: a longer one has two subjects."""
REASON = "# long: "
"""On the line above a function that is longer, with the reason after it."""
EMPTY_NAMES = {"found", "held", "told", "some"}
"""Names of locals that do not say what the local holds."""

ROOMS = ("stream", "dpcore", "bench", "research")
BY_NAME = {"setattr", "delattr", "getattr", "hasattr", "object"}
"""Functions that reach an attribute by its name in a string: Python's, and those of pytest's and unittest's patches."""
CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "now", "utcnow", "today"}
"""Functions that read a clock."""
OF_OTHERS = {"_name"}
"""Private names of ours that objects of other libraries have too: the metrics of prometheus_client."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
FILES = sorted(path for room in ROOMS for path in (REPO_ROOT / room).rglob("*.py"))
TESTS = sorted((REPO_ROOT / "tests").rglob("*.py"))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes_of(source: str) -> list[ast.AST]:
    """All nodes of the tree, which several tests look through."""
    return list(ast.walk(ast.parse(source)))


@pytest.fixture(scope="module", autouse=True)
def unlooked_for_garbage() -> Iterator[None]:
    """Trees of all files live to the end of these tests, so looking for garbage among them is in vain."""
    gc.disable()
    yield
    nodes_of.cache_clear()
    gc.enable()


def functions_in(nodes: Iterable[ast.AST]) -> Iterator[Function]:
    return (node for node in nodes if isinstance(node, Function))


def locals_of(function: Function) -> set[str]:
    """Names that a function binds, without those that functions and classes inside it bind."""
    arguments = function.args
    named = {
        argument.arg
        for argument in (
            *(arguments.posonlyargs + arguments.args + arguments.kwonlyargs),
            *filter(None, (arguments.vararg, arguments.kwarg)),
        )
    }

    def bound(node: ast.AST) -> None:
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                named.add(name)
                return
            case ast.Lambda():
                return
            case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)):
                named.add(name)
            case ast.alias(name=module, asname=name):
                named.add(name or module.partition(".")[0])
        for child in ast.iter_child_nodes(node):
            bound(child)

    for statement in function.body:
        bound(statement)
    return named


def problems_of(source: str) -> list[str]:
    """Functions that are too long without a stated reason, and reasons at functions that are short."""
    lines, problems = source.splitlines(), []
    for function in functions_in(nodes_of(source)):
        length, names = function.end_lineno - function.lineno + 1, len(locals_of(function))
        first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
        above = lines[first - 2].strip() if first > 1 else ""
        excused, long = (
            len(above) > len(REASON) and above.startswith(REASON),
            length > MOST_LINES or names > MOST_LOCALS,
        )
        if long and not excused:
            problems.append(f"{function.name}: {length} lines, {names} locals; divide it, or say why above: {REASON}…")
        if excused and not long:
            problems.append(f"{function.name}: {length} lines, {names} locals are not long; take the reason away")
    return problems


def test_every_function_is_short_or_says_why_not() -> None:
    problems = [f"{path.relative_to(REPO_ROOT)} {problem}" for path in FILES for problem in problems_of(text_of(path))]
    assert not problems, "\n".join(problems)


def test_every_file_has_one_subject() -> None:
    sizes = {path.relative_to(REPO_ROOT): len(text_of(path).splitlines()) for path in FILES}
    assert not {path: size for path, size in sizes.items() if size > MOST_LINES_OF_A_FILE}


def empty_names_of(source: str) -> set[str]:
    """Where functions name a local or an argument, and lambdas and comprehensions what they bind, by an empty name."""
    if not re.search(rf"\b(?:{'|'.join(EMPTY_NAMES)})\b", source):  # most files need no parsing
        return set()
    problems = set()
    for node in nodes_of(source):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                problems |= {f"{name} names a local {local!r}" for local in locals_of(node) & EMPTY_NAMES}
            case ast.Lambda(args=bound) | ast.comprehension(target=bound):
                problems |= {f"{part.lineno}: binds {name!r}" for part, name in bindings(bound) if name in EMPTY_NAMES}
    return problems


def bindings(bound: ast.AST) -> Iterator[tuple[ast.arg | ast.Name, str]]:
    """Names in the arguments of a lambda or the target of a comprehension."""
    for node in ast.walk(bound):
        match node:
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()):
                yield node, name


def test_no_local_has_a_name_that_says_nothing() -> None:
    problems = [
        f"{path.relative_to(REPO_ROOT)}: {problem}"
        for path in FILES + TESTS
        for problem in empty_names_of(text_of(path))
    ]
    assert not problems, "\n".join(sorted(problems))


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    found = 1",
        "def f(held):\n    pass",
        "async def f():\n    async with g() as told:\n        pass",
        "def f():\n    try:\n        pass\n    except E as found:\n        pass",
        "def f():\n    return (some := 1)",
        "class A:\n    def f(self):\n        for _, told in g():\n            pass",
        "names = [found.name for found in g()]",
        "key = lambda some: some.name",
    ],
    ids=["local", "argument", "with", "except", "walrus", "loop", "comprehension", "lambda"],
)
def test_a_name_that_says_nothing_is_noticed_wherever_it_is_bound(source: str) -> None:
    assert empty_names_of(source)


def test_fields_and_functions_may_be_named_so() -> None:
    assert not empty_names_of("class A:\n    found: str\n    def held(self):\n        return self.found\n")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names_of(source: str) -> set[str]:
    """Names with a leading underscore that a file defines: functions, classes, globals, and attributes of ``self``."""
    names = set()
    for node in nodes_of(source):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(attr=name, ctx=ast.Store()) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
    return set(filter(is_private, names))


def reaches_inside(source: str, private: set[str]) -> list[str]:
    """Where a test imports a private name from ours, or uses an attribute that is one of our ``private`` names. What
    the test's own classes define, they may use.
    """
    problems, own = [], private_names_of(source)
    for node in nodes_of(source):
        match node:
            case ast.ImportFrom(module=str(module), names=aliases) if module.partition(".")[0] in ROOMS:
                # A module that is private as a whole defines public names for the tests of its functions.
                reached = [
                    alias.name for alias in aliases if is_private(alias.name) and not is_module(module, alias.name)
                ]
                problems += [f"{node.lineno}: imports {name} from {module}" for name in reached]
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in own:
                pass
            case ast.Attribute(attr=name) if is_private(name) and name in private - OF_OTHERS:
                problems.append(f"{node.lineno}: uses {ast.unparse(node)}")
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=arguments) if called in BY_NAME:
                names = {name for argument in arguments[:2] for name in names_in(argument)}
                reached = sorted(names & (private - OF_OTHERS - own))
                problems += [f"{node.lineno}: names {name} in {called}" for name in reached]
    return problems


def names_in(argument: ast.expr) -> set[str]:
    """The parts of a literal name with dots; an empty set for any other expression."""
    match argument:
        case ast.Constant(value=str(name)):
            return set(name.split("."))
    return set()


def is_module(package: str, name: str) -> bool:
    return (REPO_ROOT / package.replace(".", "/") / f"{name}.py").is_file()


def test_tests_reach_our_code_through_public_names_alone() -> None:
    private = set().union(*(private_names_of(text_of(path)) for path in FILES))
    problems = [
        f"{path.relative_to(REPO_ROOT)}:{problem}"
        for path in TESTS
        for problem in reaches_inside(text_of(path), private)
    ]
    assert not problems, "\n".join(problems)


def imported_tests(source: str) -> list[str]:
    """Modules of tests that a file imports from."""
    nodes = [node for node in nodes_of(source) if isinstance(node, ast.ImportFrom)]
    names = [(node.module or "").split(".") for node in nodes]
    return [".".join(name) for name in names if name[0] == "tests" and name[-1].startswith("test_")]


def test_no_test_imports_from_another_test() -> None:
    """What several tests use is in ``tests/support``, or beside them in a module without tests."""
    problems = [f"{path.relative_to(REPO_ROOT)}: {name}" for path in TESTS for name in imported_tests(text_of(path))]
    assert not problems, "\n".join(problems)
    assert imported_tests("from tests.stream.app.test_worker import charges"), "a planted import is noticed"


def clock_readings(node: ast.AST) -> Iterator[str]:
    """Readings of a clock that happen while a module is imported: outside of functions, or as a default of an
    argument."""
    match node:
        case ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            parts = [part for part in ast.iter_child_nodes(node) if part not in body]
        case ast.Lambda(args=arguments):
            parts = [arguments]
        case _:
            parts = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in CLOCKS:
        yield f"{node.lineno}: {ast.unparse(node)}"
    for part in parts:
        yield from clock_readings(part)


def test_no_test_reads_the_clock_while_it_is_collected() -> None:
    """It may run a quarter of an hour later, when an event of that moment is no longer in time."""
    problems = [
        f"{path.relative_to(REPO_ROOT)}:{reading}"
        for path in TESTS
        for reading in clock_readings(nodes_of(text_of(path))[0])
    ]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("NOW = time.time()", 1),
        ("class A:\n    now = [datetime.now(UTC)]", 1),
        ("def f(now=time_ns()):\n    pass", 1),
        ("@mark(date.today())\nasync def f():\n    pass", 1),
        ("def f():\n    now = time.time()", 0),
        ("now = lambda: time.time()", 0),
        ("clock = time.time", 0),
    ],
    ids=["module", "class", "default", "decorator", "function", "lambda", "clock"],
)
def test_a_clock_that_is_read_during_collection_is_noticed(source: str, count: int) -> None:
    assert len(list(clock_readings(ast.parse(source)))) == count


@pytest.mark.parametrize(
    "source",
    [
        "from dpcore.noise import _draw",
        "from stream.app import closing\nclosing._draw()",
        "class A(Ours):\n    def f(self):\n        self._draw()",
        "class A(Ours):\n    def _draw(self):\n        super()._draw()",
        "monkeypatch.setattr(closing, '_draw', 1)",
        "patch.setattr('stream.app.closing._draw', 1)",
        "setattr(closing, '_draw', 1)",
        "getattr(closing, '_draw')",
        "patch.delattr(closing, '_draw')",
        "mock.patch.object(closing, '_draw')",
    ],
    ids=["import", "call", "subclass", "super", "patched", "dotted", "set", "got", "deleted", "mocked"],
)
def test_a_test_that_reaches_inside_is_noticed(source: str) -> None:
    assert reaches_inside(source, {"_draw"})


def test_what_a_test_defines_itself_and_what_others_define_is_none_of_ours() -> None:
    own = "class A:\n    def _draw(self):\n        self._draw()\n"
    others = "from redis import _draw\nmetric._name\nfrom dpcore.spatial._mixture import Nodes\n"
    others += "setattr(closing, 'draw', '_draw')\nsetattr(metric, '_name', 1)\n"
    assert not reaches_inside(own + others, {"_draw", "_name"})


LONG = "def f():\n" + "    pass\n" * 60
BUSY = "def f(a, *b, **c):\n" + "".join(f"    x{n} = a\n" for n in range(17)) + "    return [y for y in b]\n"


@pytest.mark.parametrize(
    "source", [LONG, BUSY, f"def g():\n{textwrap.indent(LONG, '    ')}"], ids=["lines", "locals", "inside"]
)
def test_what_is_too_long_is_noticed_wherever_it_stands(source: str) -> None:
    assert any(problem.startswith("f: ") for problem in problems_of(source))


def test_a_reason_excuses_what_is_long_and_nothing_else() -> None:
    reason = f"{REASON}a table of literals\n"
    assert not problems_of(reason + LONG)
    assert not problems_of(f"{reason}@cache\n{BUSY}")
    assert problems_of(f"{REASON}\n{LONG}"), "an empty reason is none"
    assert problems_of(f"{reason}def f():\n    pass\n"), "a reason that outlived its function"
    assert not problems_of(LONG.replace("    pass\n", "", 1))
