"""The service that publishes committed windows at fixed instants, if the configuration asks for that."""

from __future__ import annotations

from contextlib import suppress

import structlog

from stream.app.looking import RETRY_SECONDS, Looking
from stream.app.process import ProcessDiedError, WorkProcess
from stream.app.worker import Worker
from stream.protocol.close_process import PUBLICATION_LEAD_SECONDS, begin_anew, publish_in_process

log = structlog.get_logger()

_LOOK_SECONDS = 0.5


class Publishing(Looking):
    """Publishes committed windows in a process that never draws, so that no draw delays another window."""

    def __init__(self, worker: Worker) -> None:
        super().__init__(worker)
        self._process = WorkProcess()
        self._lead_seconds = PUBLICATION_LEAD_SECONDS

    async def prepare(self) -> bool:
        """Start the process now, so that the first window need not wait for it."""
        if self.worker.config.publication is None:
            return False
        with suppress(ProcessDiedError):
            await self._process.run(begin_anew)
        return True

    async def look(self) -> float:
        """Publish what is committed and whose instant is near."""
        slots = await self.worker.to_publish(self._lead_seconds)
        return await self._publish_alone(slots) if slots else _LOOK_SECONDS

    async def _publish_alone(self, slots: list[int]) -> float:
        """Publish ``slots`` unless another worker does so. Returns the seconds until the next look."""
        async with self.worker.publication_lease.hold() as mine:
            if not mine:
                return _LOOK_SECONDS
            try:
                reports = await self._process.run(publish_in_process, self.worker.config, slots, self._lead_seconds)
            except ProcessDiedError:
                log.error("publishing process died")
                return RETRY_SECONDS
        if not reports:
            self._lead_seconds *= 2
            log.warning(
                "connecting and verifying the ledger took so long that windows missed their instant; it begins earlier "
                "from now on",
                windows=slots,
                lead_seconds=self._lead_seconds,
            )
        for report in reports:
            self.worker.record(report)
        return RETRY_SECONDS if any(report.failure for report in reports) else 0.0

    async def on_stop(self) -> None:
        """Give the publishing process some time to finish. The next worker publishes what it leaves."""
        await self._process.stop()
