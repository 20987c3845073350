"""One-line bugs, each of which breaks the privacy guarantee, with the test that must fail: ``make planted-bugs``."""
