"""Numbers for people."""

from types import SimpleNamespace

import pytest

from epidemic.shown import score, size


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (3 * 2**29, "1.50 GiB"),
        (2**40, "1.00 TiB"),
        (2**61, "2,048.00 PiB"),
    ],
)
def test_bytes_have_one_way_to_be_said(value, said):
    assert size(value) == said


def test_models_are_as_good_as_their_accuracy_or_else_their_loss():
    half, loss = SimpleNamespace(mean=0.5), SimpleNamespace(mean=1.23456)
    assert score(half, loss) == "accuracy 50.00%"
    assert score(None, loss) == "loss 1.2346"
