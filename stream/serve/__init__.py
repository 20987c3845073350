"""The public side: reads the output topics only; no Redis, no ledger, no raw events."""
