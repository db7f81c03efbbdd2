"""Files of devices: read strictly, given to nodes by chance, made and shipped."""

import json
import pickle
import subprocess
import sys
from collections import Counter

import pytest

from epidemic.cli import main
from epidemic.clock import SHIPPED, Clock, DeviceChurn, DeviceCompute, Links, MatrixLatency, read_devices
from epidemic.clock import devices as module
from epidemic.clock.converting import convert
from epidemic.clock.devices import Line
from epidemic.clock.make_devices import make, write_shipped, written
from epidemic.core.errors import BadInput
from epidemic.core.rng import Streams


def file_of(tmp_path, *lines):
    path = tmp_path / "devices.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def world(tmp_path, *lines, n=2, batch_size=8, seed=1, **parts):
    file_of(tmp_path, *lines)
    return Clock(devices="devices.jsonl", **parts).world(n, Streams(seed), batch_size, tmp_path)


FULL = {"id": "a", "ms_per_sample": 4.0, "up_kbps": 8000, "down_kbps": 16000, "on": [[1, 3], [5, 8.5]], "period_s": 10}


def test_a_device_is_what_its_line_says(tmp_path):
    device, other = read_devices(file_of(tmp_path, FULL, "", {}))
    assert (device.id, device.ms_per_sample, device.up_kbps, device.down_kbps) == ("a", 4.0, 8000, 16000)
    assert device.on.tolist() == [[1, 3], [5, 8.5]]
    assert (other.id, other.on, other.cycle()) == ("line 3", None, None)


def test_nodes_are_as_their_devices(tmp_path):
    w = world(
        tmp_path, FULL, n=1, compute=DeviceCompute(), churn=DeviceChurn(), links=Links(model="duplex"), batch_size=32
    )
    assert w.step_cost(0, 5) == 3 * 32 * 4_000
    assert (w.uplink[0], w.downlink[0]) == (1.0, 2.0)  # 8 Mbit/s is one byte per microsecond
    assert not w.on_at_start(0)
    assert [w.next_change(0, t * 10**6) for t in (0, 1, 3, 5, 9, 11)] == [10**6 * t for t in (1, 3, 5, 8.5, 11, 13)]
    assert w.describe()["availability"]["mean"] == pytest.approx(0.55)
    assert w.describe()["devices"] == 1


def test_fedscales_own_example(tmp_path):
    """active [1, 3, 6, 9], inactive [1, 4, 7, 10], period 10."""
    w = world(tmp_path, {"on": [[3, 4], [6, 7], [9, 10]], "period_s": 10}, n=1, churn=DeviceChurn())
    assert [w.on_at(0, t * 10**6) for t in (2, 6, 8, 9, 10, 15)] == [False, True, False, True, False, False]


def test_sessions_without_a_period_are_not_repeated(tmp_path):
    w = world(tmp_path, {"on": [[3, 4]]}, {}, n=2, churn=DeviceChurn())
    (limited,) = (i for i in range(2) if not w.on_at_start(i))
    assert (w.next_change(limited, 0), w.next_change(limited, 3 * 10**6)) == (3 * 10**6, 4 * 10**6)
    assert w.next_change(limited, 4 * 10**6) is None
    assert w.next_change(1 - limited, 0) is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ({"speed": 3}, "line 2: device.speed is not a known key"),
        ({"ms_per_smple": 3}, "did you mean 'ms_per_sample'"),
        ({"up_kbps": -5}, "line 2: up_kbps = -5.0 must be greater than 0"),
        ({"ms_per_sample": 0}, "line 2: ms_per_sample = 0.0 must be greater than 0"),
        ({"up_kbps": "fast"}, "line 2: device.up_kbps = 'fast' must be a number"),
        ({"on": [[3, 4], [1, 2]]}, "on[1] = [1, 2] comes before on[0] = [3, 4]"),
        ({"on": [[1, 4], [3, 5]]}, "on[1] = [3, 5] overlaps on[0] = [1, 4]"),
        ({"on": [[4, 4]]}, "on[0] = [4, 4] must end later than it begins"),
        ({"on": [[-1, 4]]}, "on[0] = [-1, 4] must not begin before 0"),
        ({"on": [[1, 4], [5, 11]], "period_s": 10}, "on[1] = [5, 11] must end by period_s = 10"),
        ({"on": [[1, 2, 3]]}, "line 2: device.on[0]"),
        ({"period_s": 10}, "period_s = 10 is about on, which is missing"),
        ({"period_s": -1, "on": []}, "period_s = -1.0 must be at least"),
        ({"id": "a"}, "line 2: id 'a' is that of"),
        ([1], "line 2 must be a device"),
        ("{", "line 2 is not JSON"),
        ('{"up_kbps": NaN}', "line 2 is not JSON"),
        ('{"up_kbps": 1e999}', "line 2"),
        ("[" * 100_000, "line 2 is not JSON"),
        ("\udcff", "line 2 is not JSON"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_bad_line_is_told_with_its_number(tmp_path, line, says):
    path = tmp_path / "devices.jsonl"
    text = json.dumps({"id": "a"}) + "\n" + (line if isinstance(line, str) else json.dumps(line))
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadInput) as problem:
        read_devices(path)
    assert says in str(problem.value)
    assert "\n" not in str(problem.value)
    assert len(str(problem.value)) < 500


def test_what_is_no_device_file_is_refused(tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="has no devices"):
        read_devices(file_of(tmp_path, ""))
    with pytest.raises(BadInput, match="cannot be read: Is a directory"):
        read_devices(tmp_path)
    (tmp_path / "trace.pkl").write_bytes(b"\x80\x04\x95")
    with pytest.raises(BadInput, match="is a pickle, which can run anything and is never read"):
        read_devices(tmp_path / "trace.pkl")
    monkeypatch.setattr(module, "LONGEST_LINE", 20)
    with pytest.raises(BadInput, match="line 1 has more than"):
        read_devices(file_of(tmp_path, {"id": "a" * 30}))
    monkeypatch.setattr(module, "LARGEST_FILE", 30)
    with pytest.raises(BadInput, match="has more than"):
        read_devices(file_of(tmp_path, *({"id": i} for i in range(9))))
    monkeypatch.setattr(module, "MOST_DEVICES", 2)
    with pytest.raises(BadInput, match="more than 2 devices"):
        read_devices(file_of(tmp_path, {}, {}, {}))


def rates(w):
    return [round(rate / 0.125 * 1000) for rate in w.uplink]


MANY = [{"id": i, "up_kbps": 1000 + i} for i in range(20)]


def test_devices_are_given_by_chance_without_replacement(tmp_path):
    seen = [rates(world(tmp_path, *MANY, n=12, seed=seed)) for seed in range(50)]
    assert all(len(set(one)) == 12 for one in seen)
    assert len({tuple(one) for one in seen}) == 50
    assert len({rate for one in seen for rate in one}) == 20
    assert rates(world(tmp_path, *MANY, n=12, seed=3)) == seen[3]


def test_more_nodes_than_devices_is_refused_unless_reuse(tmp_path):
    with pytest.raises(BadInput, match=r"nodes = 21, but clock.devices has 20 devices; .*clock.reuse = true"):
        world(tmp_path, *MANY, n=21)
    given = rates(world(tmp_path, *MANY, n=50, reuse=True))
    assert sorted(Counter(given).values()) == [2] * 10 + [3] * 10
    assert given[:20] != given[20:40]


@pytest.mark.parametrize(
    ("lines", "parts", "says"),
    [
        ([{"up_kbps": 5}, {}], {"compute": DeviceCompute()}, "has no ms_per_sample, which clock.compute.kind"),
        ([{"ms_per_sample": 5}, {"ms_per_sample": 5}], {}, "is of no use here"),
        ([{"up_kbps": 5}, {"down_kbps": 5}], {}, "line 2 has no up_kbps, but others have"),
        (
            [{"up_kbps": 5}, {"up_kbps": 5}],
            {"links": Links(uplink=3)},
            "clock.links.uplink = 3, but .* has up_kbps already",
        ),
        ([{"up_kbps": 5}, {"up_kbps": 5}], {"churn": DeviceChurn()}, "none of the devices says when it is on"),
    ],
)
def test_what_the_file_cannot_give_is_told(tmp_path, lines, parts, says):
    with pytest.raises(BadInput, match=says):
        world(tmp_path, *lines, **parts)


def test_a_file_that_is_not_there_is_told_with_what_is(tmp_path):
    for name, says in (
        ("stragglers", "did you mean 'stragglers-60'"),
        ("other.jsonl", "there is no file .*other.jsonl"),
    ):
        with pytest.raises(BadInput, match=says):
            Clock(devices=name).world(4, Streams(1), 8, tmp_path)


def test_the_users_own_files_are_named(tmp_path):
    file_of(tmp_path, {"up_kbps": 5})
    links = Links(latency=MatrixLatency("ms.csv"))
    assert Clock(devices="devices.jsonl", links=links).files == ["devices.jsonl", "ms.csv"]
    assert Clock(devices="stragglers-60").files == Clock().files == []


# -- those that come with the package ---------------------------------------------------------------------------------


def test_shipped_files_are_what_is_said_of_them(tmp_path):
    w = Clock(devices="stragglers-60").world(60, Streams(1), 8, tmp_path)
    found = sorted(rate / 0.125 for rate in w.uplink)
    assert found == [10, 10.5, 11, 11.5, 12, 12.5, 13] + [60] * 53
    w = Clock(devices="ten-regions").world(60, Streams(1), 8, tmp_path)
    found = Counter(rates(w))
    assert set(found.values()) == {6}
    assert len(found) == 10
    assert (min(found), max(found)) == (21_000, 405_000)
    assert (w.uplink == w.downlink).all()


def test_shipped_files_are_made_again_to_the_same_bytes(tmp_path):
    write_shipped(tmp_path)
    for path in SHIPPED.values():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


# -- making -----------------------------------------------------------------------------------------------------------


def test_what_is_made_can_be_read_and_depends_on_the_seed(tmp_path):
    laws = {"speed": "lognormal:5:0.6", "up": "uniform:5:20", "down": "constant:50", "on": "exponential:600:300"}
    text = written(make(30, 1, **laws, period=7200))
    assert text == written(make(30, 1, **laws, period=7200)) != written(make(30, 2, **laws, period=7200))
    path = tmp_path / "made.jsonl"
    path.write_bytes(text)
    devices = read_devices(path)
    assert len({device.id for device in devices}) == 30
    assert all(5000 <= device.up_kbps <= 20000 and device.down_kbps == 50000 for device in devices)
    assert len({device.ms_per_sample for device in devices}) == 30
    assert all(device.on is not None and device.period_s == 7200 for device in devices)


@pytest.mark.parametrize("on", ["lognormal:600:300:1", "diurnal:0.2:0.6", "always"])
def test_every_law_of_availability_makes_a_file(tmp_path, on):
    path = tmp_path / "made.jsonl"
    path.write_bytes(written(make(20, 1, speed="none", up="constant:5", on=on, period=3600)))
    assert len(read_devices(path)) == 20


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"speed": "lognorml:5:1"}, "speed 'lognorml:5:1' is not a known law; did you mean 'lognormal'"),
        ({"speed": "lognormal:5"}, "must have the form lognormal:MEDIAN:SIGMA"),
        ({"speed": "lognormal:5:x"}, "must have the form lognormal:MEDIAN:SIGMA"),
        ({"speed": "lognormal:5:3"}, "sigma of a lognormal law = 3.0 must be at most 2"),
        ({"up": "uniform:5:1"}, "smaller number first"),
        ({"up": "constant:0"}, "up 'constant:0' gives 0; all values must be greater than 0"),
        ({"on": "exponential:0.1:0.1"}, "gives more than 10,000 sessions"),
        ({"on": "diurnal:0.9:0.1"}, "low = 0.9 must be at most high = 0.1"),
        ({"nodes": 0}, "nodes = 0 must be at least 1"),
        ({"period": 0}, "period = 0 must be at least 1"),
    ],
)
def test_a_bad_law_gets_one_line(given, says):
    arguments = {"nodes": 3, "seed": 1, "speed": "none", "up": "constant:5", **given}
    with pytest.raises(BadInput) as problem:
        make(**arguments)
    assert says in str(problem.value)


# -- converting -------------------------------------------------------------------------------------------------------


def convert_file(tmp_path, content, form, lender=None):
    path = tmp_path / "trace.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return convert(path, form, lender)


def test_fedscales_capacity_is_converted(tmp_path):
    lines = convert_file(tmp_path, {"1": {"computation": 12.5, "communication": 8000}}, "fedscale-capacity")
    assert lines == [Line(id="1", ms_per_sample=12.5, up_kbps=8000, down_kbps=8000)]


def test_fedscales_behaviour_is_converted(tmp_path):
    """Its own example: the empty session vanishes, and one that is not ended lasts to the end of the period."""
    entry = {"duration": 9, "active": [1, 3, 6, 9], "inactive": [1, 4, 7, 10], "finish_time": 10, "model": "x"}
    open_end = {"active": [0, 5], "inactive": [2], "finish_time": 10}
    line, other = convert_file(tmp_path, {"1": entry, "2": open_end}, "fedscale-behave")
    assert line == Line(id="1", on=((3, 4), (6, 7), (9, 10)), period_s=10)
    assert other.on == ((0, 2), (5, 10))


def test_what_a_trace_lacks_is_lent(tmp_path):
    lender = read_devices(file_of(tmp_path, {"ms_per_sample": 1, "up_kbps": 5}, {"ms_per_sample": 2, "up_kbps": 6}))
    entry = {"active": [0], "inactive": [5], "finish_time": 10}
    lines = convert_file(tmp_path, {str(i): entry for i in range(3)}, "fedscale-behave", lender)
    assert [(line.ms_per_sample, line.up_kbps, line.on) for line in lines] == [
        (1, 5, ((0, 5),)), (2, 6, ((0, 5),)), (1, 5, ((0, 5),)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "form", "says"),
    [
        (
            pickle.dumps({"1": 2}),
            "fedscale-capacity",
            'is a pickle, which can run anything .* python -c "import json, pickle',
        ),
        (pickle.dumps({"1": 2}, protocol=0), "fedscale-capacity", "is a pickle"),
        (b"{", "fedscale-behave", "cannot be read as JSON"),
        (b"3", "fedscale-behave", "must hold a table of devices"),
        ({}, "fedscale-behave", "has no devices"),
        ({"1": {"computation": 0, "communication": 1}}, "fedscale-capacity", "device '1' must have computation"),
        ({"1": {"computation": 3}}, "fedscale-capacity", "must have communication, a number .* it is None"),
        ({"1": 5}, "fedscale-behave", "must have finish_time"),
        ({"1": {"active": [1, 2, 3], "inactive": [2], "finish_time": 9}}, "fedscale-behave", "3 active and 1 inactive"),
        ({"1": {"active": 3, "inactive": [2], "finish_time": 9}}, "fedscale-behave", "a list of seconds"),
        ({}, "fedscale", "form = 'fedscale' is not known"),
    ],
)
def test_what_cannot_be_converted_gets_one_line(tmp_path, content, form, says):
    with pytest.raises(BadInput, match=says):
        convert_file(tmp_path, content, form)


# -- the commands -----------------------------------------------------------------------------------------------------


def run(capsys, *arguments):
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


def test_make_show_and_convert(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert (
        run(capsys, "devices", "make", "a.jsonl", "--nodes", "9", "--on", "exponential:600:300", "--period", "7200")[0]
        == 0
    )
    code, out, _ = run(capsys, "devices", "show", "a.jsonl", "-o", "a.svg")
    assert code == 0
    assert "9 devices of a.jsonl" in out
    for row in ("ms per sample", "Mbit/s up", "share of time on", "picture: a.svg"):
        assert row in out
    picture = (tmp_path / "a.svg").read_text()
    assert picture.lstrip().startswith("<?xml")
    (tmp_path / "trace.json").write_text(json.dumps({"1": {"active": [1], "inactive": [3], "finish_time": 10}}))
    code, out, err = run(
        capsys, "devices", "convert", "trace.json", "b.jsonl", "--from", "fedscale-behave", "--with", "a.jsonl"
    )
    assert (code, err) == (0, "")
    (device,) = read_devices(tmp_path / "b.jsonl")
    assert device.ms_per_sample == read_devices(tmp_path / "a.jsonl")[0].ms_per_sample
    code, out, _ = run(capsys, "devices", "show", "b.jsonl", "--json")
    assert json.loads(out)["share of time on"]["mean"] == pytest.approx(0.2)


def test_shipped_files_are_shown_by_name(capsys):
    code, out, _ = run(capsys, "devices", "show", "stragglers-60", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["devices"], found["Mbit/s up"]["min"], found["Mbit/s up"]["max"]) == (60, 10, 60)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["show", "none.jsonl"], "FILE 'none.jsonl': there is no file none.jsonl"),
        (["show", "bare.jsonl", "-o", "a.png"], "nothing to draw"),
        (["show", "bare.jsonl", "-o", "a.gif"], "must end in .png"),
        (["make", "bare.jsonl", "--nodes", "3"], "bare.jsonl exists already"),
        (["make", "no/a.jsonl", "--nodes", "3"], "does not exist; create it first"),
        (["make", "a.jsonl", "--nodes", "3", "--seed", "-1"], "seed = -1 must be at least 0"),
        (
            ["convert", "none.json", "a.jsonl", "--from", "fedscale-behave"],
            "none.json cannot be read as JSON: No such file",
        ),
        (
            ["convert", "bare.jsonl", "a.jsonl", "--from", "fedscale-behav"],
            "--from = 'fedscale-behav' is not known; did you mean 'fedscale-behave'",
        ),
    ],
)
def test_bad_commands_get_one_line(capsys, tmp_path, monkeypatch, arguments, says):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bare.jsonl").write_text("{}\n")
    code, _, err = run(capsys, "devices", *arguments)
    assert code == 2
    assert says in err
    assert err.count("\n") == 1
    assert not (tmp_path / "a.jsonl").exists()


def test_the_world_needs_no_torch():
    code = "import sys, epidemic.clock, epidemic.clock.make_devices; print([m for m in ('torch', 'matplotlib', 'scipy') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )
