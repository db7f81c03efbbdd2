"""`epidemic keys`: a private authority and the certificates that it gives out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from epidemic.cli.options import Json
from epidemic.core.errors import BadInput, require_int

keys_app = typer.Typer(help="Certificates for nodes: a private authority, one for each node.", no_args_is_help=True)

Days = Annotated[int, typer.Option(metavar="N", help="Days that a certificate is good for.")]
Root = Annotated[Path, typer.Argument(metavar="DIR", help="The directory with the authority.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add the commands of `epidemic keys` to the application."""
    app.add_typer(keys_app, name="keys")


def hosts_in(text: str) -> list[str]:
    """Split HOST,HOST,... as given on the command line into a list of addresses."""
    return [host.strip() for host in text.split(",") if host.strip()]


@keys_app.command("init")
def keys_init_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory to make.", show_default=False)],
    hosts: Annotated[str, typer.Option(metavar="HOST,...", help="The hosts of nodes 0, 1, ...", show_default=False)],
    spare: Annotated[int, typer.Option(metavar="N", help="Number of further nodes, which may join later.")] = 0,
    days: Days = 365,
) -> None:
    """Make a private authority and a certificate for each node, in DIR/node-I.

    Keep DIR/authority to yourself; copy each node's folder to its host. 'epidemic cluster init' does this and adds the experiment.

    [bold]Example[/bold]

      epidemic keys init keys --hosts alpha.example,beta.example,10.0.0.7
    """
    from epidemic.deploy.keys import Authority

    require_int("--spare", spare, 0, 10_000)
    require_int("--days", days, 1, 3649)
    names = hosts_in(hosts)
    if not names:
        raise BadInput("--hosts is empty; give host,host,...")
    authority = Authority.create(directory)
    bare = [_host_of(name) for name in names]
    folders = [authority.issue(f"node-{i}", [host], days) for i, host in enumerate(bare)]
    folders += [authority.issue(f"node-{i}", [], days) for i in range(len(names), len(names) + spare)]
    authority.issue("observer", [], days)
    typer.echo(f"made {directory}/authority and {len(folders)} certificates: {folders[0]} to {folders[-1]}")


def _host_of(name: str) -> str:
    from epidemic.deploy.addresses import split_address

    return split_address(name)[0] if name.count(":") == 1 or name.startswith("[") else name


@keys_app.command("add")
def keys_add_command(
    directory: Root,
    node: Annotated[
        int | None, typer.Option(metavar="I", help="A new certificate for node I.", show_default=False)
    ] = None,
    relay: Annotated[bool, typer.Option("--relay", help="A certificate for a relay.")] = False,
    observer: Annotated[bool, typer.Option("--observer", help="A certificate for asking nodes how they are.")] = False,
    host: Annotated[str, typer.Option(metavar="HOST", help="Its host.", show_default="any")] = "",
    days: Days = 365,
) -> None:
    """Issue one more certificate: for a new node, or to replace one that expires or was revoked.

    [bold]Example[/bold]

      epidemic keys add keys --node 3 --host gamma.example
    """
    from epidemic.deploy.folders import take_over
    from epidemic.deploy.keys import Authority

    if (node is not None) + relay + observer != 1:
        raise BadInput("give one of --node I, --relay and --observer")
    if node is not None:
        require_int("--node", node, 0, 999_999_999)
    authority = Authority.load(directory)
    base = f"node-{node}" if node is not None else "relay" if relay else "observer"
    folder = authority.issue(base, [_host_of(host)] if host else [], days)
    take_over(directory, base, folder)
    typer.echo(f"made {folder}; copy it to its host")


@keys_app.command("revoke")
def keys_revoke_command(
    directory: Root,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The certificate, e.g. node-3.", show_default=False)],
) -> None:
    """Take a certificate back. Copy the new revoked.json into every node's folder: running nodes read it before their next round.

    [bold]Example[/bold]

      epidemic keys revoke keys node-3
    """
    from epidemic.deploy.keys import Authority

    after = Authority.load(directory).revoke(name)
    typer.echo(
        f"revoked {name}; {len(after.names)} in all. Now copy {directory / 'authority' / 'revoked.json'} into every node's folder"
    )


@keys_app.command("show")
def keys_show_command(directory: Root, as_json: Json = False) -> None:
    """List the issued certificates, when they expire, and which are revoked."""
    import datetime as dt

    from epidemic.cli.show import plain_table, print_json, show
    from epidemic.deploy.keys import Authority

    authority = Authority.load(directory)
    revoked = authority.revoked.names
    now = dt.datetime.now(dt.UTC)
    rows: list[dict[str, Any]] = []
    for one in authority.issued:
        left = (dt.datetime.fromisoformat(one.expires) - now).days
        state = "revoked" if one.name in revoked else "expired" if left < 0 else "expires soon" if left < 30 else "good"
        rows.append({"name": one.name, "hosts": one.hosts, "expires": one.expires, "state": state})
    if as_json:
        print_json(rows)
        return
    until = authority.certificate.not_valid_after_utc
    table = plain_table(
        f"Certificates of {directory} (the authority's own is good until {until:%Y-%m-%d})",
        "name",
        "hosts",
        "expires",
        "",
    )
    for column in table.columns:
        column.justify = "left"
    for row in rows:
        table.add_row(row["name"], ", ".join(row["hosts"]) or "any", str(row["expires"])[:10], row["state"])
    show(table)
