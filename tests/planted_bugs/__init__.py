"""One-line bugs, each of which breaks the privacy guarantee or the bound on false alarms, with the test that must fail:
``make planted-bugs``."""
