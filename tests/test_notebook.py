"""The example notebook works as it is, in a real kernel, and shows what it promises."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOK = Path(__file__).parents[1] / "examples" / "first_steps.ipynb"


@pytest.mark.filterwarnings("default")  # of the kernel's own libraries
def test_the_notebook_runs_and_shows_tables_figures_and_progress(tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells), "clear its outputs before saving"
    for cell in cells:  # a few rounds are enough here
        cell.source = cell.source.replace("rounds=40", "rounds=4").replace("target=0.8", "target=0.1")
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, startup_timeout=300, resources=where).execute()
    shown = ["".join(str(o.get("data", o.get("text"))) for o in cell.outputs) for cell in cells]
    kinds = [{kind for output in cell.outputs for kind in output.get("data", {})} for cell in cells]
    by_source = {cell.source.splitlines()[-1]: i for i, cell in enumerate(cells)}
    for last in ("experiment", "run", "run.summary", "found"):
        assert "text/html" in kinds[by_source[last]], last
    for last in ("run.plot()", "sweep.plot()"):
        assert "image/png" in kinds[by_source[last]], last
    assert shown[by_source["run"]].count("<progress") == 3, "one bar for each seed, in one place"
    assert "3 of 3 runs" in shown[by_source["sweep.plot()"]]
    assert "ended early" in shown[by_source["short.summary.rounds"]]
    assert not any(o.output_type == "stream" and o.name == "stderr" for cell in cells for o in cell.outputs)
