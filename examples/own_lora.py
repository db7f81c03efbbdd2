"""Adapters travel, the base stays: a frozen model with low-rank adapters, whose optimiser survives a restart.

    epidemic cluster up --script own_lora.py --nodes 4

Only B travels: A is frozen, so that the average of the nodes' B is exactly the average of what their adapters do.
"""

import torch
from torch import nn

import epidemic as ep


class Adapted(nn.Module):
    """A frozen layer, and a low-rank change of it: W x + B A x."""

    def __init__(self, layer: nn.Linear, rank: int) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, layer.in_features) / layer.in_features**0.5)
        self.lora_B = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The frozen layer, and the change."""
        return self.layer(x) + x @ self.lora_A.T @ self.lora_B.T


torch.manual_seed(0)  # stands for pretrained weights, the same on all nodes; and everybody has the same A
model = nn.Sequential(Adapted(nn.Linear(16, 32), rank=8), nn.Tanh(), Adapted(nn.Linear(32, 4), rank=8))

with ep.join() as node:
    node.attach(model, freeze_lora="A")
    optimiser = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.02)
    node.keep(optimiser)
    draw = torch.Generator().manual_seed(100 + node.node_id)
    for round in node.rounds():
        for _ in range(20):
            x = torch.randn(64, 16, generator=draw)
            loss = (model(x) - x[:, :4].roll(1, dims=1)).square().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        node.report(loss=loss)
        node.exchange()
        print(f"round {round}: loss {loss.item():.3f}")
