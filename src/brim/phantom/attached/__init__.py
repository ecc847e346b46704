"""The part of the phantom that runs inside of a job, in Python: what holds memory, and what is computed all the same."""
