"""Nodes with data of their own agree on what the classes are called, or part with a line that says so."""

import io
import json

import epidemic as ep
from conftest import experiment


def _hospital(root, names):
    """Pictures in folders by class, each class of another shade."""
    from PIL import Image

    for name in names:
        (root / name).mkdir(parents=True)
        for i in range(10):
            stored = io.BytesIO()
            Image.new("L", (4, 4), 40 + 80 * ["benign", "malignant", "unclear"].index(name) + i).save(stored, "PNG")
            (root / name / f"{i}.png").write_bytes(stored.getvalue())
    return root


def _declare(there, node_id, data, classes=None):
    """Set in a node's own file where its data is, and what the classes are."""
    path = there.folders[node_id] / "experiment.toml"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("path = ")]
    at = lines.index("[data]") + 1
    own = [f"path = {json.dumps(str(data))}"] + ([] if classes is None else [f"classes = {json.dumps(classes)}"])
    path.write_text("\n".join([*lines[:at], *own, *lines[at:]]))


def test_hospitals_with_contradicting_classes_are_refused_by_name_until_they_declare_them(deploy, tmp_path):
    """Both have two classes, so their models fit, but class 0 is benign in one and malignant in the other."""
    what = experiment(
        nodes=2, rounds=20, topology=ep.ELLocal(1), data=ep.ImageFolder(path="nowhere", channels=1), model=ep.Logistic(),
        eval=ep.Eval(every=20, samples="all"), network=ep.Network(data="own"),
    )  # fmt: skip
    there = deploy(what)
    hospitals = [
        _hospital(tmp_path / "a", ["benign", "malignant"]),
        _hospital(tmp_path / "b", ["malignant", "unclear"]),
    ]
    for node_id, data in enumerate(hospitals):
        _declare(there, node_id, data)
    there.start().finish()
    assert [child.process.exitcode for child in there.cluster.children] == [2, 2]
    for node_id in range(2):
        last = there.log(node_id)[-1]
        assert "error: " in last
        assert "[benign, malignant]" in last
        assert "[malignant, unclear]" in last
        assert "data.classes" in last
    # Nothing had begun, so they go on in the same folders. Now one lacks the first class, the other the last.
    for node_id, data in enumerate(hospitals):
        _declare(there, node_id, data, ["benign", "malignant", "unclear"])
    there.start().finish()
    assert [child.process.exitcode for child in there.cluster.children] == [0, 0], [
        there.log(0)[-3:],
        there.log(1)[-3:],
    ]
    assert [there.node(node_id)["classes"] for node_id in range(2)] == [[8, 8, 0], [0, 8, 8]]
    info = json.loads((there.run(0) / "run.json").read_text())
    assert info["classes"] == ["benign", "malignant", "unclear"]
