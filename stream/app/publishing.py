"""The service that publishes committed windows at fixed instants, if the configuration asks for that."""

from __future__ import annotations

from contextlib import suppress

import structlog
from mode import Service
from redis.exceptions import RedisError

from stream.app.process import ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.protocol.close_process import PUBLICATION_LEAD_SECONDS, forget_everything, publish_in_process

log = structlog.get_logger()

_LOOK_SECONDS = 0.5
_RETRY_SECONDS = 5.0


class Publishing(Service):
    """Publishes committed windows in a process that never draws, so that no draw delays the publication of another window."""

    def __init__(self, worker: Worker) -> None:
        super().__init__()
        self._worker = worker
        self._process = WorkProcess()

    @Service.task
    async def _publish(self) -> None:
        await self._worker.ready.wait()
        if self._worker.config.publication is None:
            return
        with suppress(ProcessDiedError):
            await self._process.run(
                forget_everything
            )  # start the process now, so that the first window need not wait for it
        while not self.should_stop:
            pause = _LOOK_SECONDS
            try:
                if slots := await self._worker.to_publish(PUBLICATION_LEAD_SECONDS):
                    pause = await self._publish_alone(slots)
            except RedisError as error:
                self._worker.metrics.redis_errors.inc()
                log.warning("redis unreachable", reason=str(error))
                pause = _RETRY_SECONDS
            await self.sleep(pause)

    async def _publish_alone(self, slots: list[int]) -> float:
        """Publish ``slots`` unless another worker does so. Returns the seconds until the next look."""
        async with self._worker.publication_lease.hold() as mine:
            if not mine:
                return _LOOK_SECONDS
            try:
                reports = await self._process.run(publish_in_process, self._worker.config, slots)
            except ProcessDiedError:
                log.error("publishing process died")
                return _RETRY_SECONDS
        for report in reports:
            self._worker.record(report)
        return _RETRY_SECONDS if any(report.failure for report in reports) else 0.0

    async def on_stop(self) -> None:
        """Give the publishing process some time to finish. The next worker publishes what it leaves."""
        await self._process.stop()
