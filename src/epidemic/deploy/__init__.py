"""Deployment: nodes as processes that learn together over a network; a process hosts one node or several.

Decisions are made in `protocol/`: events go in, actions come out. This room carries the actions out, for synchronous and asynchronous methods alike.

- From folders to results: `node`, `assembly` (from an experiment to hosted nodes), `hosted` (a node that this process runs), `process`, `event_loop`.
- Messages: `wire` (their bytes, and the checks of received bytes), `messages` and `outbox` (sending), `limits`, `gate`, `replays` and `reader`
  (receiving), `learning` (what is computed), `hosted_models`, `views` (rounds as a node sees them).
- Before and besides messages: `handshake`, `agreement` (what nodes must agree on), `keys` and `keyring`, `status`, `contacts` and `peer_exchange`.
- The network: `transport`, `links`, `access`, `addresses`, `opening`, `runtime`, `link_monitor`, `relay`.
- Around nodes: `folders`, `processes`, `watching`, `gather`, `extending`, `next_run`, `isolation`, `secrets`, `epoch`.

May be imported by `web/` and `cli/`; imports neither these nor `simulator/`, and is imported by no file that a simulation needs.

To add a kind of message, list it in the method's `kinds`: `wire` then seals it, and refuses messages of any other form. Anything else that a protocol
asks for is an action in `protocol/events.py`, carried out by `process`, `messages` or `learning`.
"""
