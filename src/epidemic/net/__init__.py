"""Deployment: each node a process on some host, learning with the others over the network. A node is a population of one."""
