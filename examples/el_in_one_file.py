"""Epidemic Learning in one file: the algorithm of the paper, written to be read (de Vos et al., NeurIPS 2023).

n nodes hold private data and have no server. In every round each node
  1. trains its model on a few mini-batches of its own data,
  2. sends it to s others: by a random s-regular graph drawn for everybody (EL-Oracle), or
     to s targets that it draws by itself (EL-Local),
  3. averages what it received and its own.

The problem is logistic regression on synthetic data, so that plain NumPy is enough. The random numbers come from
`epidemic.core.rng`, so that this file and the real engine draw the same graphs and batches; a test compares their models.
"""

import numpy as np

from epidemic.core.rng import Streams, distinct


def el_local_targets(n, s, stream):
    """Row i: the s distinct others that node i sends to.   # (n, s)"""
    others = distinct(stream, n, n - 1, s)
    return others + (others >= np.arange(n)[:, None])  # skip oneself


def el_oracle_targets(n, s, stream):
    """A circulant s-regular graph whose nodes are relabelled at random.   # (n, s)"""
    offsets = [o for k in range(1, s // 2 + 1) for o in (k, -k)] + [n // 2] * (s % 2)
    order = stream.permutation(n)
    targets = np.empty((n, s), dtype=int)
    for i in range(n):
        targets[order[i]] = [order[(i + o) % n] for o in offsets]
    return targets


def gradient(x, inputs, labels, classes):
    """Of the mean cross-entropy of a linear model; x holds the (classes, features) weights, then the biases."""
    features = inputs.shape[1]
    weights, bias = x[: classes * features].reshape(classes, features), x[classes * features :]
    scores = inputs @ weights.T + bias
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    p[np.arange(len(labels)), labels] -= 1
    p /= len(labels)
    return np.concatenate([(p.T @ inputs).ravel(), p.sum(axis=0)])


def train(x, inputs, labels, batches, lr, classes):
    """Local SGD on one node: a step for each batch of sample numbers."""
    for batch in batches:
        x = x - lr * gradient(x, inputs[batch], labels[batch], classes)
    return x


def epidemic_learning(x0, inputs, labels, parts, *, s, rounds, lr, local_steps, batch_size, seed, oracle=False):
    """The models of all nodes after some rounds.   # (n, d)

    x0 is the common initial model, parts[i] the sample numbers that node i holds.
    """
    n, classes = len(parts), labels.max() + 1
    streams = Streams(seed)
    models = np.tile(x0, (n, 1))
    for t in range(rounds):
        # 1. Train. Batches are drawn with replacement from a node's own samples.
        u = streams("batches", t).uniforms(n, local_steps, batch_size)
        half = np.empty_like(models)
        for i in range(n):
            batches = parts[i][(u[i] * len(parts[i])).astype(int)]
            half[i] = train(models[i], inputs, labels, batches, lr, classes)

        # 2. Send.
        draw = el_oracle_targets if oracle else el_local_targets
        targets = draw(n, s, streams("topology", t))
        inbox = [[] for _ in range(n)]
        for sender in range(n):
            for receiver in targets[sender]:
                inbox[receiver].append(half[sender])

        # 3. Average, with equal weights, one's own model included. An empty inbox keeps the own model.
        for i in range(n):
            models[i] = np.mean([half[i], *inbox[i]], axis=0)
    return models


def accuracy(x, inputs, labels):
    """Share of samples whose class has the largest score."""
    classes, features = labels.max() + 1, inputs.shape[1]
    scores = inputs @ x[: classes * features].reshape(classes, features).T + x[classes * features :]
    return (scores.argmax(axis=1) == labels).mean()


def main():
    """32 nodes, of which each sees only two of eight classes."""
    n, classes, features, rng = 32, 8, 20, Streams(0)("example")
    centres = rng.normals(classes, features)
    labels = rng.integers(classes, 4000).astype(int)
    inputs = centres[labels] + 1.5 * rng.normals(4000, features)
    by_class = np.argsort(labels[:3200], kind="stable")
    shards = np.array_split(by_class, 2 * n)
    order = rng.permutation(2 * n)
    parts = [np.concatenate([shards[order[2 * i]], shards[order[2 * i + 1]]]) for i in range(n)]

    settings = {"rounds": 40, "lr": 0.1, "local_steps": 3, "batch_size": 8, "seed": 1}
    x0 = np.zeros(classes * features + classes)
    for name, s, oracle in (("alone", 0, False), ("EL-Local", 5, False), ("EL-Oracle", 5, True)):
        models = epidemic_learning(x0, inputs, labels, parts, s=s, oracle=oracle, **settings)
        found = [accuracy(x, inputs[3200:], labels[3200:]) for x in models]
        print(f"{name:>9}: accuracy {100 * np.mean(found):.1f} % (worst node {100 * min(found):.1f} %)")


if __name__ == "__main__":
    main()
