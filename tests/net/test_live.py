"""The live page of a real cluster."""

import re
import time

from starlette.testclient import TestClient

import epidemic as ep
from conftest import experiment
from epidemic.web.app import application


def test_the_page_of_a_cluster_shows_who_takes_part_and_who_is_gone(deploy):
    deployment = deploy(
        experiment(
            nodes=4, rounds=100_000, topology=ep.ELLocal(2), data=ep.Digits(), model=ep.Logistic(), partition=ep.IID()
        )
    ).start(processes=2)
    with TestClient(application([deployment.root], every=0.2), base_url="http://localhost") as visitor:
        address = re.search(r'"(/cluster/\w+)"', visitor.get("/").text)[1]

        def until(condition, patience=60):
            end = time.monotonic() + patience
            while True:
                text = visitor.get(address).text
                rows = dict(re.findall(r'<tr id="n-(\d)">.*?badge s-(\w+)', text))
                if condition(rows):
                    return text
                assert time.monotonic() < end, rows
                time.sleep(0.1)

        up = {"alive", "late"}
        text = until(lambda rows: len(rows) == 4 and set(rows.values()) <= up)
        assert re.search(r"Links in round \d+", text)
        assert text.count("marker-end=") == 8
        deployment.cluster.kill(2)
        text = until(lambda rows: rows["2"] == rows["3"] == "gone" and {rows["0"], rows["1"]} <= up)
        assert "its process ended without notice" in text
        assert 'class="cut"' in text
