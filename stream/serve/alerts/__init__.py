"""Alerts: which claims about exact means the released numbers support, and telling them."""
