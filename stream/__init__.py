"""The Hexveil service: vehicle events in, differentially private releases out."""
