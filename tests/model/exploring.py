"""Visits every state that can be reached, breadth first, and judges what it finds."""

from __future__ import annotations

import gc
from array import array
from collections import deque
from dataclasses import dataclass, field
from itertools import pairwise

from tests.model.world import Move, State, World


@dataclass
class Graph:
    """The states that can be reached, by number, and from which each was reached first.

    ``trace``: a shortest way to a move that breaks a rule, or to a state from which moves without a fault never publish
    every window; None if there is none.
    """

    states: list[State] = field(default_factory=list)
    parents: array[int] = field(default_factory=lambda: array("l"))
    trace: list[str] | None = None


def explore(world: World) -> Graph:
    """Every state that can be reached; ends at the first move that breaks a rule."""
    gc.disable()  # states live to the end, so looking for garbage among them is in vain
    try:
        with world.seam:
            return _explored(world)
    finally:
        gc.enable()


def _explored(world: World) -> Graph:
    graph, numbers = Graph(), dict[State, int]()
    sources, targets, ends = array("l"), array("l"), list[int]()

    def number_of(state: State, parent: int) -> int:
        number = numbers.setdefault(state, len(graph.states))
        if number == len(graph.states):
            graph.states.append(state)
            graph.parents.append(parent)
        return number

    number_of(world.initial(), -1)
    for at, state in enumerate(graph.states):  # which grows meanwhile
        for move in world.moves(state):
            if move.broken is not None:
                graph.trace = [*_trace(world, graph, at, move), f"=> {move.broken}"]
                return graph
            after = number_of(move.after, at)
            if not move.fault:
                sources.append(at)
                targets.append(after)
            if move.refused or world.settled(move.after):
                ends.append(after)
    stuck = _stuck(len(graph.states), sources, targets, ends)
    if stuck is not None:
        graph.trace = [*_trace(world, graph, stuck), "=> from here on, a window is never published"]
    return graph


def _stuck(n: int, sources: array[int], targets: array[int], ends: list[int]) -> int | None:
    """The first state from which no end can be reached."""
    before: list[list[int]] = [[] for _ in range(n)]
    for source, target in zip(sources, targets, strict=True):
        before[target].append(source)
    reached = bytearray(n)
    queue = deque(ends)
    for end in ends:
        reached[end] = 1
    while queue:
        for source in before[queue.popleft()]:
            if not reached[source]:
                reached[source] = 1
                queue.append(source)
    number = reached.find(0)
    return None if number < 0 else number


def _trace(world: World, graph: Graph, number: int, last: Move | None = None) -> list[str]:
    """The way to state ``number`` and then ``last``: who did what. Workers keep their names, although states have
    none."""
    way = [number]
    while graph.parents[way[-1]] >= 0:
        way.append(graph.parents[way[-1]])
    way.reverse()
    moves = [
        next(move for move in world.moves(graph.states[a]) if move.after == graph.states[b]) for a, b in pairwise(way)
    ]
    moves += [] if last is None else [last]
    names, lines = ["A", "B"], []
    for at, move in zip(way, moves, strict=False):
        if move.worker is None:
            lines.append(move.text)
            continue
        lines.append(f"{names[move.worker]} {move.text}")
        other = graph.states[at].workers[1 - move.worker]
        if move.after.workers[move.worker] == other and move.after.workers[0] != move.after.workers[1]:
            names.reverse()
    return lines
