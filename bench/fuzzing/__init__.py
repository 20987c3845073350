"""Fuzzing of everything that reads bytes: mutators, the hunt that counts inputs and finds, and one module for each
reader."""
