"""`surefoot dashboard`: serve the page and the API over the runs of a folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from surefoot.errors import NotBuiltError
from surefoot.report.strict import strict_json
from surefoot.report.token import default_file, make_token


def dashboard(
    folder: Annotated[
        Path, typer.Argument(help="A folder that holds runs' `out` folders, or one of those.")
    ] = Path(),
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port; 0 takes any.")] = 8787,
    token_file: Annotated[
        Path | None, typer.Option(help="The API's token; made (mode 0600) where there is none.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate (PEM) for TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key (PEM).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print where it is as JSON.")] = False,
) -> None:
    """Show runs in a browser, and answer the HTTP API; also after their controllers ended.

    Prints an address that opens the page once; the token itself is never printed."""
    try:
        from surefoot.controller.clock import RealClock
        from surefoot.web.app import build
        from surefoot.web.doors import Doors
        from surefoot.web.serve import Place, listen, server_of
        from surefoot.web.watch import open_runs
    except ModuleNotFoundError as error:
        raise NotBuiltError(
            f"the page needs {error.name}, which is not installed",
            hint="pip install 'surefoot[web]'",
        ) from error
    place = Place(host, port, tls_cert, tls_key)
    place.check()
    file = token_file or default_file()
    doors = Doors.of(make_token(file), RealClock())
    runs = open_runs(folder)
    server = server_of(build(runs, doors), place)
    sock = listen(place)
    url = place.url(int(sock.getsockname()[1]))
    once = f"{url}/#once={doors.link()}"
    if as_json:
        print(strict_json({"url": url, "open": once, "token_file": str(file)}, indent=None))
    else:
        print(f"open once, within 10 minutes: {once}")
        print(f"API: {url}/api/v1   its token: {file}   end with Ctrl-C")
    sys.stdout.flush()
    try:
        runs.all()  # read the journals before the first question
        server.run(sockets=[sock])
    finally:
        runs.close()
