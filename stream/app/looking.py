"""A service that looks for work over and over, and outlasts an outage of Redis."""

from __future__ import annotations

import structlog
from mode import Service
from redis.exceptions import RedisError

from stream.app.worker import Worker

log = structlog.get_logger()

RETRY_SECONDS = 5.0
"""How long a service waits after a failure that the next attempt may overcome."""


class Looking(Service):
    """Calls :meth:`look` over and over, once the worker has its partitions. Subclasses implement :meth:`look`."""

    away_seconds = RETRY_SECONDS
    """How long to wait when Redis does not answer."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self.worker = worker

    async def prepare(self) -> bool:
        """Prepare, once, before the first look. Returns False if there is nothing to look for."""
        return True

    async def look(self) -> float:
        """Do the work that is due now. Returns the seconds until the next look."""
        raise NotImplementedError

    @Service.task
    async def _look_again_and_again(self) -> None:
        await self.worker.ready.wait()
        if not await self.prepare():
            return
        while not self.should_stop:
            try:
                pause = await self.look()
            except RedisError as error:
                self.worker.metrics.redis_errors.inc()
                log.warning("redis unreachable", reason=str(error))
                pause = self.away_seconds
            await self.sleep(pause)
