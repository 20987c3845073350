"""The public side: serves releases from the output topics or from files. It uses no Redis, no ledger and no raw
events."""
