"""Runs Apache Kafka and Redis on this machine for the demo and the tests: on loopback only, ended with their parent."""
