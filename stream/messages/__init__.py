"""What leaves the boundary: topics, messages, their schemas, and how a range is answered from them."""
