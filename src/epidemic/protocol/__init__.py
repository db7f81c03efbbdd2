"""Pure state machines that decide when a node trains, sends, waits, aggregates and ends.

They take events with their times and return actions; they have no clock, thread, socket or tensor. Times are whole microseconds.

`node.py` defines a node and the context that it asks to train, send, aggregate or wake it. `rounds.py` is the deployed round protocol, with `mailbox`,
`membership`, `adaptive_timeout`, `questions`, `offers` and `locate`. `clocked_rounds.py` is the round under the simulated clock, where a node knows all
others. `closing_rules.py` decides for both when a round closes. `asynchronous.py` drives methods without rounds. `member.py` holds what all deployed
nodes do: greet peers, answer them, rejoin, end.

Two drivers feed these machines: `simulator/` with a simulated clock, `deploy/` with the network. May be imported by every room but `core/`.
To add a closing rule: a Struct in `closing_rules.py`. To add a protocol: a class derived from `Member`, tested under the schedules of `tests/simulated.py`.
"""
