"""allranks web: runs in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from allranks.observe.web.web_server import Address


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN|FOLDER]…")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Port to listen on [default: 8265, or the next free one].",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Loopback address to listen on.",
)
@click.option("--no-open", is_flag=True, help="Do not open a browser.")
@click.option("--runs", "root", metavar="DIR", help="Folder of the runs [default: runs].")
@click.option(
    "--token-file",
    metavar="FILE",
    help="Keep the token in this file between starts, for programs such as Prometheus.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the address as JSON.")
def web(
    runs: tuple[str, ...],
    port: int | None,
    host: str,
    no_open: bool,
    root: str | None,
    token_file: str | None,
    as_json: bool,
) -> None:
    """Watch runs in a browser on this machine: plots, logs, attempts, comparisons.

    Shows the given runs, all runs below the given folders, or all your runs.
    """
    from pathlib import Path

    from allranks.observe.web.web_server import open_browser, open_catalogue, serve

    def started(address: Address) -> None:
        _print_address(address, as_json)
        if not no_open and not as_json:
            open_browser(address.url)

    kept = Path(token_file).expanduser() if token_file else None
    serve(open_catalogue(runs, root), host=host, port=port, token_file=kept, started=started)


def _print_address(address: Address, as_json: bool) -> None:
    from allranks.observe.web.web_server import is_remote_session

    if as_json:
        import json

        found = {"url": address.url, "port": address.port, "token": address.token}
        click.echo(json.dumps(found))
        return
    click.echo(f"{click.style(address.url, bold=True)}")
    if is_remote_session():
        click.echo(f"On your own machine, first run: {address.tunnel}")
    click.echo("Stop it with Ctrl-C.")
