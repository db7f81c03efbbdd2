"""One simulation on several processes of `torch.distributed`: each hosts a block of the nodes, and rows travel between them.

`shard.py` is what the run loop calls (its interface is in `runtime/ranks.py`), `routing.py` chooses how rows travel, `transfer.py` moves them,
`communicator.py` talks to the other ranks, `rendezvous.py` connects them, `sharded_inbox.py` is a receiver's inbox. All numbers equal those of one process
to the bit. May be imported by `simulator/` and everything above it. To add a routing: its cost in `routing.py` and its movement in `transfer.py`.
"""
