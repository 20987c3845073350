"""The process that one peer runs in."""

from __future__ import annotations

import os
import sys
from importlib import import_module

peer, bootstrap, topic, events = sys.argv[1:]
import_module(f"bench.peers.{peer}").run(bootstrap, topic, int(events))
# Some engines have threads that do not end.
sys.stdout.flush()
os._exit(0)
