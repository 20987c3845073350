"""State in Redis: rows of open windows, windows in progress, and the ledger of budgets."""
