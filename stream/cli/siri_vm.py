"""``hexveil siri-vm``: SIRI Vehicle Monitoring goes to Kafka or a file, or is released without Kafka."""

from __future__ import annotations

from stream.cli.snapshots import snapshot_command
from stream.sources.siri import SiriVehicleMonitoring

command = snapshot_command(
    SiriVehicleMonitoring,
    "Send Vehicle Monitoring (SIRI-VM) to the service. Missing speeds are derived from positions.",
)
