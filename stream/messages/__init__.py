"""What leaves the trust boundary: topics, messages, their schemas, and the answers to range queries from them."""
