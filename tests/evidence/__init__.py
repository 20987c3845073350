"""Evidence of a release: audits, forced transcripts and planted bugs, in one dated report."""
