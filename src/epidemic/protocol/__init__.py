"""When a node does what: pure state machines. Events go in with their time, actions come out; no clock, thread, socket or tensor.

Times are whole microseconds. Who drives a protocol (a deployed node, or a simulated clock in tests) feeds it events and carries out its actions.
"""
