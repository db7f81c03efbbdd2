"""A training loop of your own as a node of a network: what is added to an ordinary script are the lines that say `node`.

Four nodes on this machine, each with other data:

    epidemic cluster up --script own_loop.py --nodes 4
"""

import torch

import epidemic as ep

torch.manual_seed(0)  # everybody begins with the same values
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
optimiser = torch.optim.SGD(model.parameters(), lr=0.02)

with ep.join() as node:
    node.attach(model)
    draw = torch.Generator().manual_seed(100 + node.node_id)  # stands for this node's own data
    for round in node.rounds():
        for _ in range(10):
            x = torch.randn(32, 8, generator=draw)
            y = x.sin().sum(1, keepdim=True)
            loss = (model(x) - y).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        node.report(loss=loss)
        heard = node.exchange()
        print(f"round {round}: loss {loss.item():.3f}, heard {heard}")
