"""`epidemic theory hostile`: what it prints and draws, and that `epidemic theory` itself is as it was."""

import json

import pytest

from epidemic import theory
from epidemic.cli import main
from epidemic.report.topologies import risk_figure, several


def run(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def hostile(capsys, line):
    code, out, _ = run(capsys, "theory", "hostile", *line.split(), "--json")
    assert code == 0
    return json.loads(out)


def test_what_is_said_of_five_liars_among_96(capsys):
    code, out, _ = run(capsys, "theory", "hostile", "-n", "96", "-b", "5", "-s", "7")
    assert code == 0
    said = " ".join(out.split())
    assert (
        "s = 7 can meet more than 3 malicious of 5 in 96 nodes: expect 14.6 bad node-rounds in 3,000 rounds; s = 10 with f = 5 none."
        in said
    )
    assert "chance that a node-round is bad 5.35e-05 0.000139 5.35e-05" in said
    assert "at most, if liars are chosen on the graphs 135 205 44" in said
    assert "(0, 1, 2, ...: 0 1 2 3 4 4 5, and no more): 16.2% of the node-rounds can aggregate." in said
    assert "f < (s + 1) / 2, which every rule needs 10 (5) 10 (5)" in said
    assert (
        "RPEL, Lemma A.4 22 RPEL, Lemma 4.1 (more than all nodes) 1,069 RPEL, Lemma 5.2 (proof of convergence) 43 (5)"
        in said
    )


def test_json_has_the_numbers_of_the_theory(capsys):
    found = hostile(capsys, "--nodes 96 --malicious 10 -s 14 --rounds 500 --risk 0.001")
    assert list(found["laws"]) == ["el-oracle", "el-local", "pull"]
    for kind, law in found["laws"].items():
        f = law["f"]
        assert f == min(theory.tolerate(96, 10, 14, 500, 0.001, kind), 7)
        assert law["p_bad"] == theory.malicious_law(96, 10, 14, kind).more_than(f)
        assert law["expected_bad"] == theory.expected_bad(96, 10, 14, 500, f, kind)
        assert law["p_clean"] == theory.p_clean(96, 10, 14, 500, f, kind)
        assert law["adaptive_bad"] == theory.adaptive_bad(96, 10, 14, 500, f, 0.001, kind)
    assert found["laws"]["pull"]["smallest_s"]["third"] == {
        "s": theory.smallest_s(96, 10, 500, 0.001, share=1 / 3),
        "f": 10,
    }
    local = found["laws"]["el-local"]
    assert local["smallest_s"]["0.9"] == theory.smallest_s_local(96, 10, 500, 0.001, 0.9)
    assert local["f_by_received"] == [
        theory.tolerate_among(96, 10, a, 500, 0.001) for a in range(len(local["f_by_received"]))
    ]
    assert local["aggregating"] == theory.aggregating_local(96, 10, 14, 500, 0.001)
    assert found["rpel"]["lemma_a4"] == theory.rpel_lemma_a4(96, 10, 500, 0.001)


def test_an_f_by_hand_and_one_topology(capsys):
    found = hostile(capsys, "-n 96 -b 5 -s 7 -f 2 --topology pull")
    assert list(found["laws"]) == ["pull"]
    assert found["laws"]["pull"]["f"] == 2
    assert found["laws"]["pull"]["expected_bad"] == theory.expected_bad(96, 5, 7, 3000, 2)
    _, out, _ = run(capsys, "theory", "hostile", "-n", "96", "-b", "5", "-s", "7", "--topology", "el-local")
    assert "EL-Oracle" not in out
    assert "pull" not in out


def test_no_el_oracle_where_no_regular_graph_exists(capsys):
    assert hostile(capsys, "-n 9 -b 1 -s 3")["laws"]["el-oracle"] is None
    _, out, _ = run(capsys, "theory", "hostile", "-n", "9", "-b", "1", "-s", "3")
    assert "EL-Oracle does not exist here: nodes * s = 27 is odd." in out
    code, out, _ = run(capsys, "theory", "hostile", "-n", "9", "-b", "1", "-s", "3", "--topology", "el-oracle")
    assert code == 0
    assert "is odd" in out


def test_a_graph_that_never_changes(capsys):
    found = hostile(capsys, "-n 96 -b 5 -s 8 --topology regular")["graph"]
    tail = theory.malicious_among(96, 5, 8).more_than(3)
    assert (found["received"], found["f"], found["refused"]) == ([8, 8], [3, 3], None)
    assert found["expected_bad_nodes"] == pytest.approx(91 * tail)
    assert found["expected_bad"] == pytest.approx(3000 * 91 * tail)
    assert found["adaptive_bad_nodes"] == 5 * 8 // 4
    _, out, _ = run(capsys, "theory", "hostile", "-n", "96", "-b", "10", "--topology", "ring")
    said = " ".join(out.split())
    assert "needs f = 2 at nodes that receive 2 models, which tolerate 1" in said
    assert "or el-oracle with s = 18" in said


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hostile -n 96", "Missing option '--malicious' / '-b'; see 'epidemic theory hostile --help'"),
        ("hostile -b 5", "Missing option '--nodes' / '-n'"),
        ("hostile -n 96 -b 0", "malicious = 0 must be at least 1"),
        ("hostile -n 96 -b 48", "malicious = 48 must be less than half of nodes = 96"),
        ("hostile -n 2 -b 1", "nodes = 2 must be at least 3"),
        ("hostile -n 96 -b 5 -s 96", "s = 96 must be at most nodes - 1 = 95"),
        ("hostile -n 96 -b 5 --rounds 0", "--rounds = 0 must be at least 1"),
        ("hostile -n 96 -b 5 --risk 0", "--risk = 0.0 must be greater than 0"),
        ("hostile -n 96 -b 5 --risk 1", "--risk = 1 must be less than 1"),
        ("hostile -n 96 -b 5 -f -1", "f = -1 must be at least 0"),
        (
            "hostile -n 96 -b 5 -s 7 -f 4",
            "f = 4 must be at most s / 2 = 3: a rule needs more than 2 f models; use s = 8",
        ),
        ("hostile -n 96 -b 5 -f 48 --topology el-local", "f = 48 must be at most (nodes - 1) / 2 = 47"),
        ("hostile -n 96 -b 5 --topology ringg", "did you mean 'ring'?"),
        ("hostile -n 96 -b 5 --topology every", "--topology 'every' has no law here"),
        ("hostile -n 96 -b 5 -s 2 --topology ring", "ring takes no -s; leave it out"),
        ("hostile -n 96 -b 5 --plot risk.bmp", "risk.bmp must end in .png"),
        ("--loss 0.1 hostile -n 96 -b 5", "--loss stands before 'hostile'; put options behind it"),
        ("-n 96 hostile -b 5", "--nodes stands before 'hostile'"),
        ("hostil -n 96 -b 5", "No such command 'hostil'"),
        ("", "Missing option '--nodes' / '-n'; see 'epidemic theory --help'"),
    ],
)
def test_bad_input_gets_one_line(capsys, line, message):
    code, out, err = run(capsys, "theory", *line.split())
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_theory_itself_is_as_it_was(capsys):
    _, out, _ = run(capsys, "theory", "-n", "96", "-s", "7", "--json")
    assert json.loads(out)["alpha"] == theory.alpha(96, 7)
    _, out, _ = run(capsys, "theory", "--help")
    assert "hostile" in out
    assert "epidemic theory --nodes 96 -s 7 --loss 0.1" in out


def test_the_picture(capsys, tmp_path):
    code, _, _ = run(capsys, "theory", "hostile", "-n", "40", "-b", "3", "--json", "--plot", str(tmp_path / "risk.png"))
    assert code == 0
    assert (tmp_path / "risk.png").read_bytes().startswith(b"\x89PNG")
    assert several(96, 5) == [2, 5, 10, 19, 29]
    assert several(10, 4) == [1, 2, 3, 4]
    figure = risk_figure(40, several(40, 3), 3000, 0.01, 3)
    left, right = figure.axes
    assert left.get_yscale() == "log"
    assert len(left.lines) == len(right.lines) == len(several(40, 3)) + 1  # and the risk, or a half
    for line, b in zip(left.lines, several(40, 3), strict=False):
        for s, risk in zip(line.get_xdata(), line.get_ydata(), strict=True):
            assert risk == pytest.approx(max(theory.p_some_bad(40, b, int(s), 3000, int(s) // 2), 1e-11))
        assert line.get_ydata()[-1] < 1e-9
