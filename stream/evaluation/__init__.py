"""Compares releases with true values. NOT PRIVATE: use it inside the trust boundary only."""
