"""Every target by its name."""

from __future__ import annotations

from collections.abc import Callable

from bench.fuzzing.agreements import FORMS as FILES_OF
from bench.fuzzing.agreements import Agreements
from bench.fuzzing.batches import Batches
from bench.fuzzing.brokers import MqttBroker
from bench.fuzzing.configuration import Configuration
from bench.fuzzing.hfp import HfpPublications
from bench.fuzzing.hunting import Target
from bench.fuzzing.inspections import Inspections
from bench.fuzzing.messages import FORMATS, Messages
from bench.fuzzing.parquet import ParquetFiles
from bench.fuzzing.pushed import PushedBodies, PushPort
from bench.fuzzing.recordings import Recordings
from bench.fuzzing.releases import Files, IntakeOfMessages, Query, Readers
from bench.fuzzing.requests import OperatorPort, PublicApi
from bench.fuzzing.siri import SiriDocuments
from bench.fuzzing.snapshots import Snapshots
from bench.fuzzing.timetables import Timetables

TARGETS: dict[str, Callable[[], Target]] = {
    **{f"messages-{name}": lambda name=name: Messages(name) for name in FORMATS},  # type: ignore[misc]
    **{f"recordings-{kind}": lambda kind=kind: Recordings(kind) for kind in ("csv", "ndjson")},  # type: ignore[misc]
    **{f"agreement-{form}": lambda form=form: Agreements(form) for form in FILES_OF},  # type: ignore[misc]
    **{
        kind.name: kind
        for kind in (
            ParquetFiles,
            Configuration,
            Snapshots,
            SiriDocuments,
            HfpPublications,
            MqttBroker,
            PushedBodies,
            Inspections,
            Timetables,
            Batches,
            IntakeOfMessages,
            Readers,
            Files,
            Query,
            PublicApi,
            OperatorPort,
            PushPort,
        )
    },
}
