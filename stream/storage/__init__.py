"""What Redis holds: rows of open windows and the budget ledger."""
