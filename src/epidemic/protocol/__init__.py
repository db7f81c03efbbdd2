"""When a node does what: pure state machines. Events go in with their time, actions come out; no clock, thread, socket or tensor.

`node.py` says what a node is: events come as calls, and what it wants done it says to its context (train, send, aggregate, wake me). Times are
whole microseconds. `rounds.py` is the deployed round protocol, with `mailbox`, `membership`, `adaptive_timeout`, `questions`, `offers` and `locate`;
`clocked_rounds.py` is a round that knows everybody, for the simulated clock; `closing_rules.py` says when a round closes, for both; `asynchronous.py`
drives methods without rounds. `member.py` is what all deployed nodes do: greet, answer, return, end.

Two drivers feed these machines: `simulator/` with a simulated clock, `deploy/` with the network. May be imported by every room but `core/`.
To add a closing rule: a Struct in `closing_rules.py`. To add a protocol: a class derived from `Member`, tested under the schedules of `tests/simulated.py`.
"""
