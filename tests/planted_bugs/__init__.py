"""One-line bugs that privacy would not survive, each with the test that must fail: ``make planted-bugs``."""
