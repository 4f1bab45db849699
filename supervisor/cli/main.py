"""The commands. Each imports what it needs when it runs, so that none pays for another.

Exit codes: 0 good; 1 the answer is no; 2 the call or the config is wrong; 130 interrupted.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

import supervisor
from supervisor.cli.cache import cache_clear, cache_list
from supervisor.errors import ConfigError, SupervisorError

if TYPE_CHECKING:
    from supervisor.cli.client import DaemonClient
    from supervisor.cli.offline import BuildChange
    from supervisor.cli.probe import ProbedDevice

EXIT_NO = 1
EXIT_WRONG = 2
EXIT_INTERRUPTED = 130

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="Config file; else $ENGINEHOUSE_CONFIG, the XDG folder, /etc/enginehouse."),
]
HostOption = Annotated[str | None, typer.Option("--host", help="IP address to listen on, instead of the config's.")]
PortOption = Annotated[int | None, typer.Option("--port", min=0, max=65535, help="TCP port; 0 takes a free one.")]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, also on a terminal.")]
RootOption = Annotated[Path, typer.Option("--root", help="Folder that stands for / when the machine is read.")]
BuildArgument = Annotated[str, typer.Argument(help="A build's name or fingerprint, or the beginning of one.")]
ModelArgument = Annotated[str, typer.Argument(help="A model's id or alias.")]
UrlOption = Annotated[str, typer.Option("--url", envvar="ENGINEHOUSE_URL", help="Address of the running daemon.")]
TokenOption = Annotated[
    Path | None,
    typer.Option("--token-file", envvar="ENGINEHOUSE_TOKEN_FILE", help="File that holds a token of that daemon."),
]

_URL = "http://127.0.0.1:8080"
_ROOT = Path("/")
# Threads of the pool end within milliseconds of the loop.
_THREAD_SECONDS = 0.5


def run() -> None:
    """Run the command line of this process."""
    # A start is imports, which make hardly any garbage: without the collector's rounds it takes a tenth less time.
    # Commands that stay (`serve`, `demo`, `events`) turn it on again.
    gc.disable()
    try:
        build_app()()
    except SystemExit as ending:
        _leave_hanging_threads(ending.code)
        raise


def _leave_hanging_threads(code: object) -> None:
    """End now if a thread still hangs, as on a dead network share: Python would wait for it for ever."""
    for thread in threading.enumerate():
        if thread is threading.main_thread() or thread.daemon:
            continue
        thread.join(_THREAD_SECONDS)
        if thread.is_alive():
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code if isinstance(code, int) else int(code is not None))


def build_app() -> typer.Typer:
    """All commands."""
    # Plain help and errors: rich costs more time than most commands take.
    plain: dict[str, Any] = {"rich_markup_mode": None, "no_args_is_help": True, "add_completion": False}
    app = typer.Typer(name="enginehouse", cls=_Commands, pretty_exceptions_enable=False, **plain)
    app.callback()(_main)
    for command in (serve, check, probe, plan, classify, demo, status, events, logs, why):
        app.command()(command)
    models = typer.Typer(name="models", help="Models of the running daemon.", **plain)
    models.callback()(_group)
    models.command("list")(models_list)
    for change in (models_load, models_unload, models_pin, models_unpin):
        models.command(change.__name__.removeprefix("models_"))(change)
    builds = typer.Typer(name="builds", help="Builds of the running daemon.", **plain)
    builds.command("list")(builds_list)
    builds.command("inspect")(builds_inspect)
    builds.command("clear")(builds_clear)
    builds.command("pin")(builds_pin)
    cache = typer.Typer(name="cache", help="Conversations that are kept on disk.", **plain)
    cache.command("list")(cache_list)
    cache.command("clear")(cache_clear)
    app.add_typer(cache)
    app.add_typer(models)
    app.add_typer(builds)
    return app


class _Commands(TyperGroup):
    """Turns our errors into a line on stderr and an exit code, in one place for all commands."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None
        except SupervisorError as error:
            raise SystemExit(report([error])) from None
        except BaseExceptionGroup as group:
            expected, others = group.split((SupervisorError, KeyboardInterrupt))
            if others is not None or expected is None:
                raise
            errors = [error for error in _leaves(expected) if isinstance(error, SupervisorError)]
            raise SystemExit(report(errors) if errors else EXIT_INTERRUPTED) from None


def report(errors: list[SupervisorError]) -> int:
    """Say each error on stderr, once, and give the exit code."""
    for line in dict.fromkeys(f"enginehouse: {error.message}" for error in errors):
        print(line, file=sys.stderr)
    return EXIT_WRONG if any(isinstance(error, ConfigError) for error in errors) else EXIT_NO


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


def _show_version(asked: bool) -> None:
    if asked:
        print(f"enginehouse {supervisor.__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Run native inference engines behind one OpenAI-compatible address."""


def _group() -> None:
    """Keep a group of one command a group."""


def serve(
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    first_token: Annotated[
        bool, typer.Option("--first-token", help="Where no caller is configured, make an admin token, once.")
    ] = False,
) -> None:
    """Run the daemon; without a config it finds builds and models by itself."""
    from supervisor.cli.serve import serve as run_serve  # noqa: PLC0415  as the file says

    raise typer.Exit(run_serve(config, host, port, first_token=first_token))


def check(file: Annotated[Path, typer.Argument(help="Config file.")], as_json: JsonOption = False) -> None:
    """Validate a config as `serve` would: every error with its path and a suggestion."""
    from supervisor.cli.check import check as run_check  # noqa: PLC0415  as the file says

    raise typer.Exit(run_check(file, as_json))


def probe(as_json: JsonOption = False, root: RootOption = _ROOT, config: ConfigOption = None) -> None:
    """Show what this machine has and allows; with a config, its builds are asked for devices."""
    from supervisor.cli.output import print_json, print_rich, wants_json  # noqa: PLC0415  as the file says
    from supervisor.cli.probe import probe_document, render_probe  # noqa: PLC0415  as the file says
    from supervisor.host.snapshot import take_snapshot  # noqa: PLC0415  as the file says

    devices: tuple[ProbedDevice, ...] = ()
    if config is not None:
        from supervisor.cli.offline import ask_devices  # noqa: PLC0415  as the file says
        from supervisor.config.load import load_config  # noqa: PLC0415  as the file says

        devices = ask_devices(load_config(config, os.environ).config, os.environ)
    document = probe_document(take_snapshot(root), devices)
    if wants_json(asked=as_json):
        print_json(document)
    else:
        print_rich(render_probe(document))


def plan(
    model: Annotated[str, typer.Argument(help="A model's id or alias.")],
    config: ConfigOption = None,
    as_json: JsonOption = False,
    root: RootOption = _ROOT,
) -> None:
    """Show how a model would be launched, and why, without starting anything."""
    from supervisor.cli.plan import plan_command  # noqa: PLC0415  as the file says

    raise typer.Exit(plan_command(model, config, as_json, root))


def classify(
    files: Annotated[list[Path], typer.Argument(help="Recorded exits, as JSON.")], as_json: JsonOption = False
) -> None:
    """Say why recorded engine processes ended: what failed, what is to blame, whether the build runs here."""
    from supervisor.cli.classify import classify_files  # noqa: PLC0415  as the file says

    raise typer.Exit(classify_files(files, as_json))


def demo(
    config: ConfigOption = None,
    host: HostOption = None,
    port: PortOption = None,
    fetch_only: Annotated[bool, typer.Option("--fetch-only", help="Fetch the model, print its path, and end.")] = False,
) -> None:
    """Fetch a small model (93 MB, once) into data_dir and serve it."""
    from supervisor.cli.demo import demo as run_demo  # noqa: PLC0415  as the file says

    raise typer.Exit(run_demo(config, host, port, fetch_only=fetch_only))


def models_list(
    as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None, config: ConfigOption = None
) -> None:
    """List models, what they serve, and their state; without a daemon from the config and the model folders."""
    from supervisor.cli.listings import list_models  # noqa: PLC0415  as the file says
    from supervisor.cli.offline import model_rows  # noqa: PLC0415  as the file says

    raise typer.Exit(
        list_models(_client(url, token_file), as_json=as_json, offline=model_rows(config) if url == _URL else None)
    )


def models_load(
    model: ModelArgument, as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None
) -> None:
    """Start a model and wait until it is ready."""
    raise typer.Exit(_change_model(model, "load", as_json, (url, token_file)))


def models_unload(
    model: ModelArgument, as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None
) -> None:
    """Stop a model, cutting what runs on it."""
    raise typer.Exit(_change_model(model, "unload", as_json, (url, token_file)))


def models_pin(
    model: ModelArgument, as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None
) -> None:
    """Never stop a model for others, until the daemon ends or its config changes."""
    raise typer.Exit(_change_model(model, "pin", as_json, (url, token_file)))


def models_unpin(
    model: ModelArgument, as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None
) -> None:
    """Let a model be stopped for others again."""
    raise typer.Exit(_change_model(model, "unpin", as_json, (url, token_file)))


def _change_model(model: str, change: str, as_json: bool, where: tuple[str, Path | None]) -> int:
    from supervisor.cli.why import change_model  # noqa: PLC0415  as the file says

    return change_model(_client(*where), model, change, as_json=as_json)


def why(
    request_id: Annotated[str, typer.Argument(help="As the answer's header x-request-id says.")],
    as_json: JsonOption = False,
    url: UrlOption = _URL,
    token_file: TokenOption = None,
) -> None:
    """Show what a request of the last hour waited for, who was stopped for it, and how it ended."""
    from supervisor.cli.why import explain_request  # noqa: PLC0415  as the file says

    raise typer.Exit(explain_request(_client(url, token_file), request_id, as_json=as_json))


def builds_list(
    as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None, config: ConfigOption = None
) -> None:
    """List builds and their health; without a daemon they are asked now."""
    from supervisor.cli.listings import list_builds  # noqa: PLC0415  as the file says
    from supervisor.cli.offline import build_rows  # noqa: PLC0415  as the file says

    raise typer.Exit(
        list_builds(_client(url, token_file), as_json=as_json, offline=build_rows(config) if url == _URL else None)
    )


def builds_inspect(
    build: BuildArgument,
    as_json: JsonOption = False,
    url: UrlOption = _URL,
    token_file: TokenOption = None,
    config: ConfigOption = None,
) -> None:
    """Show all that is known of one build."""
    from supervisor.cli.listings import inspect_build  # noqa: PLC0415  as the file says
    from supervisor.cli.offline import build_rows  # noqa: PLC0415  as the file says

    raise typer.Exit(
        inspect_build(
            _client(url, token_file), build, as_json=as_json, offline=build_rows(config) if url == _URL else None
        )
    )


def builds_clear(
    build: BuildArgument,
    as_json: JsonOption = False,
    url: UrlOption = _URL,
    token_file: TokenOption = None,
    config: ConfigOption = None,
) -> None:
    """Forget what is held against a build, so that it is used again."""
    raise typer.Exit(_change_build(build, "clear", as_json, (url, token_file, config)))


def builds_pin(
    build: BuildArgument,
    off: Annotated[bool, typer.Option("--off", help="Prefer it no longer.")] = False,
    as_json: JsonOption = False,
    url: UrlOption = _URL,
    token_file: TokenOption = None,
    config: ConfigOption = None,
) -> None:
    """Prefer a build for its engine, also while it is set aside; kept in the state folder until `--off`."""
    raise typer.Exit(_change_build(build, "unpin" if off else "pin", as_json, (url, token_file, config)))


def _change_build(build: str, change: BuildChange, as_json: bool, where: tuple[str, Path | None, Path | None]) -> int:
    from supervisor.cli.listings import change_build  # noqa: PLC0415  as the file says
    from supervisor.cli.offline import change_build as change_offline  # noqa: PLC0415  as the file says

    url, token_file, config = where
    offline = change_offline(config, build, change) if url == _URL else None
    return change_build(_client(url, token_file), build, change, as_json=as_json, offline=offline)


def status(as_json: JsonOption = False, url: UrlOption = _URL, token_file: TokenOption = None) -> None:
    """Show instances, builds, memory and the queue of the running daemon."""
    from supervisor.cli.listings import show_status  # noqa: PLC0415  as the file says

    raise typer.Exit(show_status(_client(url, token_file), as_json=as_json))


def events(
    after: Annotated[int, typer.Option(min=0, help="Only events with a greater number; 0: all that are kept.")] = 0,
    new: Annotated[bool, typer.Option("--new", help="Only what happens from now on.")] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many events.")] = None,
    as_json: JsonOption = False,
    url: UrlOption = _URL,
    token_file: TokenOption = None,
) -> None:
    """Follow what the daemon does, one event a line (with --json or in a pipe: one JSON document a line)."""
    from supervisor.cli.listings import show_events  # noqa: PLC0415  as the file says

    client = _client(url, token_file)
    gc.enable()
    raise typer.Exit(show_events(client, after=None if new else after, limit=limit, as_json=as_json))


def logs(
    model: Annotated[str, typer.Argument(help="A model's id.")],
    lines: Annotated[int | None, typer.Option("--lines", "-n", min=0, help="Last lines; 200 unless said.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    launch: Annotated[str | None, typer.Option(help="A launch's id, `last` or `all`.")] = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
) -> None:
    """Show what a model's engine logged; needs no running daemon."""
    from supervisor.cli.logs import logs_command  # noqa: PLC0415  as the file says
    from supervisor.cli.serve import load  # noqa: PLC0415  as the file says

    state_dir = load(config, os.environ).config.state_dir
    gc.enable()
    raise typer.Exit(
        logs_command(model, state_dir=state_dir, lines=lines, follow=follow, launch=launch, json_output=as_json)
    )


def _client(url: str, token_file: Path | None) -> DaemonClient:
    from supervisor.cli.client import DaemonClient, read_token  # noqa: PLC0415  as the file says

    return DaemonClient(url, read_token(token_file))
