"""``tdcd serve``: predictions of a trained model over HTTP."""

import logging
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tdcd.cli.models import Allow, ImportFrom, allowed
from tdcd.cli.site import Log, log_style
from tdcd.errors import DeploymentError
from tdcd.runs.layout import check_run

if TYPE_CHECKING:
    from tdcd.serving.model import Model

EXAMPLES = """Examples:

tdcd serve models/loans  [dim]# at http://127.0.0.1:8000, for this machine[/dim]

tdcd serve models/loans --host 0.0.0.0 --token-file token --tls-certificate cert.pem --tls-key key.pem

tdcd serve models/loans --watch  [dim]# takes a new model when tdcd assemble --force has put it there[/dim]
"""
NEEDED = ("starlette", "uvicorn", "prometheus_client")


def command(
    model: Annotated[Path, typer.Argument(help="A model that tdcd assemble made, or a run that has ended.")],
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port; 0 takes a free one.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option("--token-file", help="A file with the token that requests must bring; or set TDCD_TOKEN."),
    ] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do without a token although other machines reach the address.")
    ] = False,
    tls_certificate: Annotated[
        Path | None, typer.Option("--tls-certificate", help="The certificate for HTTPS, with its chain, PEM.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option("--tls-key", help="Its key, PEM, without a password.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Load the model anew when its files change. SIGHUP always does so.")
    ] = False,
    max_body: Annotated[int, typer.Option("--max-body", help="Bytes of a request, at most.", min=1)] = 10_000_000,
    max_rows: Annotated[int, typer.Option("--max-rows", help="Rows of a request, at most.", min=1)] = 10_000,
    max_waiting: Annotated[int, typer.Option("--max-waiting", help="Requests under way at once.", min=1)] = 256,
    max_connections: Annotated[int, typer.Option("--max-connections", help="Open connections.", min=1)] = 1_000,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds for a request to arrive, and again to be answered.", min=0.1)
    ] = 30.0,
    import_from: ImportFrom = None,
    allow: Allow = None,
    log: Log = "human",
) -> None:
    """Answer requests with the raw columns of all silos, over HTTP: POST /predict.

    Columns are prepared as those of tables are. /docs describes the interface, /openapi.json for programs, /metrics has
    figures for Prometheus. SIGTERM and Ctrl-C end it once what is under way is answered; SIGHUP loads the model anew,
    and a damaged one is refused. Code that the model names runs only if --import-from or --allow says so.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise DeploymentError(f"tdcd serve needs {', '.join(missing)}; install them: pip install 'tdcd[serve]'")
    style = log_style(log)
    os.environ.setdefault("POLARS_MAX_THREADS", "1")  # batches are small: threads would wait for each other
    from tdcd.serving.http.server import check_tls, listen, run
    from tdcd.serving.http.service import Service, describe
    from tdcd.serving.http.settings import Address, Limits, read_token
    from tdcd.serving.model import load_model
    from tdcd.serving.record import holds_model
    from tdcd.sites.logs import logs

    address = Address(host, port, tls_certificate, tls_key)
    limits = Limits(max_body, max_rows, max_waiting, max_connections, timeout)
    token = read_token(token_file)
    check_tls(address)
    if token is None and not address.local and not insecure:
        raise DeploymentError(
            f"--host {host}: whoever reaches this address could ask, and learn of the model; require a token with "
            "--token-file or TDCD_TOKEN, or say --insecure"
        )
    if not holds_model(model):
        check_run(model)

    imports = allowed(import_from, allow)

    def load() -> "Model":
        return load_model(model, imports=imports)

    listening = listen(address)
    service = Service(load, limits.rows, model)
    url = address.url(listening.getsockname()[1])

    def start() -> None:
        from tdcd.serving.http.openapi import curl

        typer.echo(f"{model}: {describe(service.predictor)}; {service.predictor.model.origin}")
        typer.echo(f"serving at {url}, described at {url}/docs")
        if token and not address.certificate and not address.local:
            typer.echo("warning: without TLS the token travels readably; give --tls-certificate", err=True)
        typer.echo(f"try: {curl(service.predictor, url, token=token is not None)}")
        sys.stdout.flush()

    with logs("tdcd.serve", style) as logger:
        logging.getLogger("uvicorn.error").handlers = logger.handlers
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
        run(service, listening, address, limits, token, watch=watch, on_start=start)
        logger.info("stopped")
