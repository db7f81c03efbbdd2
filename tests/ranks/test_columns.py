"""Columns that are cut where ranks cut them are mixed to the same bits."""

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from epidemic.core.workers import Workers
from epidemic.mixing import Weights
from epidemic.runtime.mixing_arithmetic import COLUMNS, column_blocks, mix
from epidemic.sharding.routing import UNIT, cuts_of

N = 37


def everybody():
    return np.arange(N)


def sparse(rng):
    rows = [np.r_[i, np.sort(rng.choice(np.delete(np.arange(N), i), 7, replace=False))] for i in range(N)]
    return Weights(N, csr_array((rng.random(N * 8), np.concatenate(rows), np.arange(N + 1) * 8), shape=(N, N)))


def by_portions(rng):
    portions = rng.random(N)
    return Weights(N, None, everybody(), portions=portions / portions.sum())


KINDS = {
    "sparse": sparse,
    "complete": lambda _: Weights(N, None, everybody(), 1 / N),
    "sums": lambda _: Weights(N, None, everybody(), 1.0, 0.0),
    "some": lambda rng: Weights(N, None, np.sort(rng.choice(N, 20, replace=False)), 1 / N),
    "portions": by_portions,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_of_the_columns_is_mixed_as_all_of_them_are(kind, dtype):
    rng, workers = np.random.default_rng(3), Workers(1)
    for width in (1, 63, 65, 129, 650, 1897, COLUMNS + 1, COLUMNS + 71):
        x = torch.from_numpy(rng.standard_normal((N, width))).to(dtype)
        weights = KINDS[kind](rng)
        whole = mix(weights, x, workers, torch.empty_like(x))
        for ranks in (2, 3, 5):
            parts = [x[:, cut].contiguous() for cut in cuts_of(width, ranks, UNIT) if cut.stop > cut.start]
            assert torch.equal(torch.cat([mix(weights, p, workers, torch.empty_like(p)) for p in parts], 1), whole)
        slabs = [x[:, slab].contiguous() for slab in column_blocks(width, 2 * UNIT)]  # of which little travels at once
        assert torch.equal(torch.cat([mix(weights, p, workers, torch.empty_like(p)) for p in slabs], 1), whole)
    workers.close()


def test_cuts_cover_all_columns_in_order_at_multiples_of_the_unit():
    for width in (0, 1, 64, 65, 650, 40_000):
        for ranks in (1, 2, 3, 7):
            for full in (False, True):
                unit = (-(-width // ranks) // 16 + 1) * 16 if full else UNIT
                cuts = cuts_of(width, ranks, unit, full=full)
                assert len(cuts) == ranks
                assert [c for cut in cuts for c in range(cut.start, cut.stop)] == list(range(width))
                assert all(cut.start % unit == 0 or cut.start == width for cut in cuts)
                assert full or width == 1 or all(cut.stop - cut.start != 1 for cut in cuts)
