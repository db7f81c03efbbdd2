"""Deployment: each node is a process on some host, or one of several in a process, and learns with the others over the network.

What decides is in `protocol/`: events go in, actions come out. This room has what acts. The same files serve methods with rounds and without.

- From folders to results: `node`, `assembly` (from an experiment to hosted nodes), `hosted` (a node that this process runs), `process`, `event_loop`.
- A message: `wire` (its bytes, and what is checked of the bytes of strangers), `messages` and `outbox` (the way out), `limits`, `gate`, `replays`
  and `reader` (the way in), `learning` (what is computed), `hosted_models`, `views` (rounds as a node sees them).
- Before and beside messages: `handshake`, `agreement` (what nodes must agree on), `keys` and `keyring`, `status`, `contacts` and `peer_exchange`.
- The network: `transport`, `links`, `access`, `addresses`, `opening`, `runtime`, `link_monitor`, `relay`.
- Around nodes: `folders`, `processes`, `watching`, `gather`, `extending`, `next_run`, `isolation`, `secrets`, `epoch`.

May be imported by `web/` and `cli/`; imports neither these nor `simulator/`, and is imported by no file that a simulation needs.

To add a kind of message, list it in the method's `kinds`: `wire` then seals it, and refuses what does not look like it. Whatever else a protocol
wants done is an action in `protocol/events.py`, carried out by `process`, `messages` or `learning`.
"""
