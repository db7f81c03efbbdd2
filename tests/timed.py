"""Records under the simulated clock, made of those of other runs: what the pages and tables of time are tried on."""

import msgspec

from epidemic.record import MessageCounts, Moment, encode, read_records


def at(record, seconds, *, nodes=8, steps=None, busy=0.6, uplink=0.3, lag=0.4, online=None, accuracies=None):
    """The same record after so many seconds; every node has what the mean has, unless told otherwise."""
    sent = 3 * nodes * record.round
    mean = record.accuracy.mean if record.accuracy is not None else None
    known = [] if mean is None else [mean] * nodes
    messages = MessageCounts(
        sent=sent, received=sent * 9 // 10, used=sent * 8 // 10, wasted=sent // 20, lost=sent // 20
    )
    time = Moment(
        seconds=seconds, steps=2.0 * record.round if steps is None else steps, messages=messages, staleness=lag if sent else None,
        staleness_95=3 * lag if sent else None, busy=busy, uplink=uplink, online=nodes if online is None else online,
        accuracies=known if accuracies is None else accuracies,
    )  # fmt: skip
    return msgspec.structs.replace(record, time=time)


def clocked(directory, seconds_of, **options):
    """Give every record of every seed below a directory a time: `seconds_of(record, seed)`."""
    for path in sorted(directory.rglob("records.jsonl")):
        records = [at(r, seconds_of(r, r.seed), **options) for r in read_records(path)[0]]
        path.write_bytes(b"".join(map(encode, records)))
        summary = path.parent / "summary.json"
        if summary.is_file():
            found = msgspec.json.decode(summary.read_bytes())
            summary.write_bytes(msgspec.json.encode({**found, "seconds": records[-1].time.seconds}))
