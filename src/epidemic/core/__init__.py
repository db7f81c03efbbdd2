"""The base of everything else: errors with exit codes, tables of settings, safe files, formatting, keyed randomness, graphs, threads.

May be imported by every room, and imports none. To add something: a file of its own, if at least two rooms need it.
"""
