"""``hexveil siri-vm``: SIRI Vehicle Monitoring goes to Kafka or a file, or is released without Kafka."""

from __future__ import annotations

import typer

from stream.cli.snapshots import snapshot_command
from stream.sources.siri import SiriVehicleMonitoring


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    what = "Send Vehicle Monitoring (SIRI-VM) to the service. Missing speeds are derived from positions."
    app.command("siri-vm", help=what)(snapshot_command(SiriVehicleMonitoring))
