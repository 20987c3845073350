"""Where committed messages come from: the output topics, or files of releases; one intake for both."""
