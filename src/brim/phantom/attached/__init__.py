"""The part of the phantom that runs inside of a job: what holds memory, and what is computed all the same."""
