"""The public side: serves releases from the output topics or from files. It has no Redis, no ledger, no raw events."""
