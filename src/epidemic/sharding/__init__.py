"""One simulation on several processes of `torch.distributed`: each hosts a block of the nodes, and rows travel between them.

`shard.py` is what the run loop asks (`runtime/ranks.py` says what that is), `routing.py` chooses how rows travel, `transfer.py` moves them, `communicator.py`
talks to the other ranks, `rendezvous.py` finds them, `sharded_inbox.py` is what a receiver holds. All numbers are those of one process, to the bit.
May be imported by `simulator/` and everything above it. To add a way for rows to travel: its cost in `routing.py` and its movement in `transfer.py`.
"""
