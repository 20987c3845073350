"""``hexveil bridge``: events of another topic, with derived speeds where they have none, go to the feed's own topic."""

from __future__ import annotations

from typing import Annotated

import typer

from stream.cli.feeding import refuse
from stream.cli.live import SummaryAsJson, run_live
from stream.cli.options import ConfigFile, choose_config
from stream.cli.snapshot_report import SnapshotReport, derived_speed_note
from stream.config import ConfigError, load_config
from stream.sources.recording import FORMATS


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("bridge")(bridge)


def bridge(
    topic: Annotated[str, typer.Argument(help="The topic to read, on the Kafka of the configuration.")],
    file_format: Annotated[
        str | None,
        typer.Option(
            "--format", help="canonical, capmetro, capmetro-2015, itms or declared; default: that of the feed."
        ),
    ] = None,
    config: ConfigFile = None,
    as_json: SummaryAsJson = False,
) -> None:
    """Send the events of another topic to the feed's own, with the speeds that feed.speeds asks for."""
    from stream.sources.bridge import Bridge

    try:
        settings = load_config(choose_config(config, silent=as_json))
        chosen = file_format or settings.feed.recorded_format
        if chosen not in FORMATS or (chosen == "declared" and settings.feed.fields is None):
            raise ValueError(f"--format {chosen} is none of {', '.join(FORMATS)} (declared: [feed.fields])")
        if topic == settings.feed.topic:
            raise ValueError(f"{topic} is feed.topic, to which events are sent; name the topic that they come from")
        source = Bridge(settings, topic, chosen)
    except (ConfigError, ValueError) as error:
        raise refuse(error) from None
    note = derived_speed_note(settings.relation, settings.feed.speeds)
    report = SnapshotReport(source, note, as_json, on_stderr=False, unit="batches")
    run_live(settings, source, source.run, topic, None, offline=False, force=False)
    report.summary()
