"""The pure heart of Surefoot: values and decisions, without I/O, clock, randomness or threads."""
