"""Adapters of four nodes, averaged factor by factor: how far that is from the average of what they do, and what freezing A costs.

    python examples/lora_average.py

A frozen random network with two layers and adapters of some rank, B zero at first. Every node has inputs around a centre of its own. Twenty rounds of
twenty steps of SGD; then everybody takes the average of all. For each learning rate, means over five seeds: the distance between (mean B)(mean A) and
the mean of B A after the first and after the last round, relative to the latter, and the mean loss in the end.
"""

import torch
from torch import nn

NODES, ROUNDS, STEPS, SEEDS = 4, 20, 20, 5
RATES = (0.05, 0.1, 0.2)


def play(rank: int, lr: float, seed: int, *, freeze: bool) -> tuple[float, float, float]:
    """The gap after the first and the last round, and the loss in the end."""
    torch.manual_seed(0)
    base = [nn.Linear(16, 32).requires_grad_(False), nn.Linear(32, 4).requires_grad_(False)]
    mean_a = [torch.randn(rank, 16) / 4, torch.randn(rank, 32) / 32**0.5]
    mean_b = [torch.zeros(32, rank), torch.zeros(4, rank)]
    draws = [torch.Generator().manual_seed(1000 * seed + i) for i in range(NODES)]
    centres = [torch.randn(16, generator=torch.Generator().manual_seed(77 + 1000 * seed + i)) for i in range(NODES)]
    gaps = []

    def loss_of(a: list[torch.Tensor], b: list[torch.Tensor], node: int, samples: int) -> torch.Tensor:
        x = torch.randn(samples, 16, generator=draws[node]) + centres[node]
        h = torch.tanh(base[0](x) + x @ a[0].T @ b[0].T)
        return (base[1](h) + h @ a[1].T @ b[1].T - x[:, :4].roll(1, 1)).square().mean()

    for _ in range(ROUNDS):
        found_a, found_b = [], []
        for node in range(NODES):
            a = [t.clone().requires_grad_(not freeze) for t in mean_a]
            b = [t.clone().requires_grad_(True) for t in mean_b]
            optimiser = torch.optim.SGD([t for t in (*b, *a) if t.requires_grad], lr=lr)
            for _ in range(STEPS):
                optimiser.zero_grad()
                loss_of(a, b, node, 32).backward()
                optimiser.step()
            found_a.append([t.detach() for t in a])
            found_b.append([t.detach() for t in b])
        mean_a = [sum(one[k] for one in found_a) / NODES for k in range(2)]
        mean_b = [sum(one[k] for one in found_b) / NODES for k in range(2)]
        exact = [sum(b[k] @ a[k] for a, b in zip(found_a, found_b, strict=True)) / NODES for k in range(2)]
        gaps.append(max(float((mean_b[k] @ mean_a[k] - exact[k]).norm() / exact[k].norm()) for k in range(2)))
    with torch.no_grad():
        loss = sum(float(loss_of(mean_a, mean_b, node, 500)) for node in range(NODES)) / NODES
    return gaps[0], gaps[-1], loss


if __name__ == "__main__":
    for freeze, rank in ((False, 4), (True, 4), (True, 8), (True, 16)):
        for lr in RATES:
            found = torch.tensor([play(rank, lr, seed, freeze=freeze) for seed in range(SEEDS)]).mean(0).tolist()
            what = "A frozen" if freeze else "both"
            print(
                f"{what:9} rank {rank:2}  lr {lr:<5} gap {found[0]:.2%} -> {found[1]:.2%}  loss {found[2]:.3f}",
                flush=True,
            )
