"""What is released of a window: planned from public facts, drawn with exact noise. No server, no clock."""
