"""A child process that runs the tasks of one service one after the other, so that the event loop never stalls."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from stream.protocol.close_process import begin_closing

_STEP_SECONDS = 4.0
"""How long a stopping worker waits for a child to finish its step."""

T = TypeVar("T")


class ProcessDiedError(RuntimeError):
    """The process ended during its task; the next task gets a new process."""


class WorkProcess:
    """A process that is started with its first task and kept for the next ones. It ends with its parent."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._stopped = False

    async def run(self, task: Callable[..., T], *given: object) -> T:
        """Run ``task`` with the given arguments in the process. Raises :class:`ProcessDiedError`, and the errors of the
        task.

        After a stop it begins no task, and waits until its caller is cancelled.
        """
        if self._stopped:
            await asyncio.Event().wait()
        if self._pool is None:
            context, parent = multiprocessing.get_context("spawn"), multiprocessing.current_process().pid or 0
            self._pool = ProcessPoolExecutor(1, mp_context=context, initializer=begin_closing, initargs=(parent,))
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, task, *given)
        except BrokenProcessPool as error:
            if self._stopped:
                await asyncio.Event().wait()
            self._pool = None
            raise ProcessDiedError(str(error)) from None

    async def stop(self) -> None:
        """Give the task some time to finish its step. What it leaves is finished after the next start."""
        self._stopped = True
        if self._pool is None:
            return
        self._pool.shutdown(wait=False, cancel_futures=True)
        children, clock = multiprocessing.active_children(), asyncio.get_running_loop().time
        deadline = clock() + _STEP_SECONDS
        while any(child.is_alive() for child in children) and clock() < deadline:
            await asyncio.sleep(0.05)
        for child in children:
            child.kill()
