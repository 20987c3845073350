"""Puts the services of a worker together and runs them until a signal ends them."""

from __future__ import annotations

import asyncio

import faust
import structlog

from stream.app.awaiting import servers_answer
from stream.app.ingesting import Ingesting
from stream.app.services import Closing, Publishing, Retiring
from stream.app.worker import Worker
from stream.config import Config

log = structlog.get_logger()


def run_worker(config: Config) -> None:
    """Run a worker until SIGTERM or SIGINT. Returns after a clean shutdown; else raises the error that ended it."""
    log.info("worker starting", feed=config.feed.name, relation=config.relation)
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    if not loop.run_until_complete(servers_answer(config)):
        log.info("worker stopped")
        return
    worker = Worker(config)
    faust_worker = faust.Worker(
        worker.app,
        Ingesting(worker),
        Closing(worker),
        Publishing(worker),
        Retiring(worker),
        loglevel="warning",
        redirect_stdouts=False,
        quiet=True,
        override_logging=False,
        loop=loop,
    )
    faust_worker.spinner = None  # it writes escape sequences into the log, also where that is no terminal
    try:
        faust_worker.execute_from_commandline()
    except SystemExit as ended:
        log.info("worker stopped")
        if ended.code:
            raise (ended.__context__ or ended) from None  # Faust turns the error that ended it into an exit code
