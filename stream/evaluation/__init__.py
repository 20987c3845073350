"""Error against the truth. NOT PRIVATE: inside the trust boundary only."""
