"""Zenoh's configuration and access rules: who may send what to whom.

Every link uses TLS with certificates of the private authority on both sides; the only exception is `insecure`, for loopback addresses. Access rules by
certificate name lock out revoked nodes and deliver messages for a node to that node only (or to a relay). Shared memory is off, because it would bypass
the encryption.
"""

from __future__ import annotations

import json
from typing import Any, Literal

import zenoh

from epidemic.core.errors import BadInput
from epidemic.deploy.addresses import Addresses, is_loopback
from epidemic.deploy.keys import Identity, names_of, node_id_of

LEASE = 5.0
"""Seconds of silence after which a link counts as dead. The end of a process is noticed at once, because its connections close."""

REVOKED = "revoked"
"""Topic of the list of revoked certificates. Revoked nodes may ask for it, and for nothing else."""

STUCK = 2.0
"""Seconds after which a link that accepts no more data (not even 64 kB) is closed."""

MOST_BATCHES = 256
"""Batches of 64 kB that may wait to be sent, over all links; a link holds 4 to 16 of them."""

Mode = Literal["peer", "client", "router"]
"""A node that is reached directly, one behind a relay, or a relay."""


def configuration(
    identity: Identity,
    addresses: Addresses,
    *,
    mode: Mode,
    nodes: int,
    largest: int,
    insecure: bool,
    gossip: bool = True,
) -> zenoh.Config:
    """Zenoh's configuration for the holder of a certificate.

    Args:
        identity: The certificate and its key.
        addresses: Where to listen and connect.
        mode: The role in the network.
        nodes: Number of nodes in the deployment.
        largest: Size of the largest message in bytes.
        insecure: Whether links are not encrypted.
        gossip: Whether all nodes learn of each other and connect.
    """
    config = zenoh.Config()

    def put(key: str, value: Any) -> None:
        config.insert_json5(key, json.dumps(value))

    protocol = "tcp" if insecure else "tls"
    if insecure:
        for address in addresses.all:
            if not is_loopback(address):
                raise BadInput(f"--insecure sends models in the clear and takes loopback addresses only, not {address}")
    put("mode", mode)
    put("listen/endpoints", [f"{protocol}/{addresses.listen}"] if addresses.listen else [])
    put("connect/endpoints", [f"{protocol}/{address}" for address in addresses.connect])
    put("connect/exit_on_failure", False)
    put("connect/timeout_ms", -1 if mode != "client" else 3_000)
    put("connect/retry", {"period_init_ms": 500, "period_max_ms": 4000, "period_increase_factor": 1.5})
    put("scouting/multicast/enabled", False)
    put("scouting/gossip/enabled", gossip)
    put("transport/link/protocols", [protocol])
    put("transport/shared_memory/enabled", False)
    put("transport/link/tx/lease", int(LEASE * 1000))
    put("transport/link/tx/queue/congestion_control/block/wait_before_close", int(STUCK * 1e6))
    put("transport/link/tx/queue/size/data", max(4, min(16, MOST_BATCHES // nodes)))
    put("transport/link/tx/queue/allocation/mode", "init")
    put("transport/link/rx/max_message_size", 2 * largest + 2**20)
    put("transport/unicast/max_sessions", max(1000, 4 * nodes))
    put("timestamping/enabled", False)
    if not insecure:
        own, key = (str((identity.folder / name).resolve()) for name in ("node.pem", "node.key"))
        put(
            "transport/link/tls",
            {
                "root_ca_certificate": str((identity.folder / "authority.pem").resolve()),
                "listen_certificate": own,
                "listen_private_key": key,
                "connect_certificate": own,
                "connect_private_key": key,
                "enable_mtls": True,
                "verify_name_on_connect": False,  # the certificate identifies a node, not a host
                "close_link_on_expiration": True,
                "so_sndbuf": 2**22,
                "so_rcvbuf": 2**22,
            },
        )
        put("access_control", access_rules(identity, nodes))
    return config


def access_rules(identity: Identity, nodes: int) -> dict[str, Any]:
    """The access rules for the holder of a certificate: certified and not revoked.

    Messages are sent towards their receiver and accepted from their sender only; questions are accepted from the node that they name. Only a node itself may
    announce its id and answer questions to it. Revoked nodes may ask for the list of revocations. A relay forwards everything. An observer may only ask
    nodes for their status.
    """
    prefix = f"epidemic/{identity.cluster}"
    names = [n for n in names_of(nodes) if n not in identity.revoked.names]
    everything = [
        "put", "delete", "declare_subscriber", "query", "declare_queryable", "reply", "liveliness_token",
        "liveliness_query", "declare_liveliness_subscriber",
    ]  # fmt: skip
    both = ["ingress", "egress"]

    def rule(name: str, flows: list[str], messages: list[str], *keys: str) -> dict[str, Any]:
        allowed = {"permission": "allow", "flows": flows, "messages": messages}
        return {"id": name, **allowed, "key_exprs": [f"{prefix}/{key}" for key in keys]}

    rules = [
        rule("say", ["egress"], [m for m in everything if m != "put"], "ask/**", "alive/**", "done/**", "to/**"),
        rule("watch", ["ingress"], ["liveliness_query", "declare_liveliness_subscriber"], "alive/**", "done/**"),
        rule("ask-status", ["ingress"], ["query"], "ask/status/*/observer"),
        rule("pass-on", both, everything, "ask/**", "alive/**", "done/**", "to/**"),
    ]
    subjects, policies = [], []
    for base in [*(f"node-{i}" for i in range(nodes)), "observer", "relay"]:
        known = [n for n in names if n == base or n.startswith(base + ".")]
        if not known:
            continue
        subjects.append({"id": base, "cert_common_names": known})
        if base == "relay":
            own = ["pass-on"]
        elif base == "observer":
            own = ["say", "ask-status"]
        else:
            node_id = base.removeprefix("node-")
            rules += [
                rule(f"to-{node_id}", ["egress"], ["put"], f"to/{node_id}/**"),
                rule(f"from-{node_id}", ["ingress"], ["put"], f"to/*/{node_id}"),
                rule(f"hear-{node_id}", ["ingress"], ["declare_subscriber"], f"to/{node_id}/*"),
                rule(f"asks-{node_id}", ["ingress"], ["query"], f"ask/*/*/{node_id}"),
                rule(f"answer-{node_id}", ["ingress"], ["declare_queryable", "reply"], f"ask/*/{node_id}/*"),
                rule(f"alive-{node_id}", ["ingress"], ["liveliness_token"], f"alive/{node_id}/*", f"done/{node_id}/*"),
            ]
            own = ["to", "from", "hear", "asks", "answer", "alive"]
            own = ["say", "watch", *(f"{what}-{node_id}" for what in own)]
        policies.append({"rules": own, "subjects": [base]})
    for name in sorted(set(identity.revoked.names) & set(names_of(nodes))):
        number = node_id_of(name)
        if number is not None:  # revoked nodes may only ask for the list of revocations
            asks, answer = f"revoked-asks-{name}", f"revoked-answer-{name}"
            rules += [
                rule(asks, ["ingress"], ["query"], f"ask/{REVOKED}/*/{number}"),
                rule(answer, ["egress"], ["declare_queryable", "reply"], f"ask/{REVOKED}/**"),
            ]
            subjects.append({"id": f"revoked {name}", "cert_common_names": [name]})
            policies.append({"rules": [asks, answer], "subjects": [f"revoked {name}"]})
    return {"enabled": True, "default_permission": "deny", "rules": rules, "subjects": subjects, "policies": policies}
