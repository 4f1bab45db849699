"""The daemon's own sections of a config: address, callers, machine, broker, supervision, shutdown."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationInfo, model_validator

from supervisor.config.fields import (
    LIVE,
    NEXT_LAUNCH,
    RESTART,
    Address,
    Auto,
    AutoSize,
    ConfigPath,
    Duration,
    HostName,
    Interval,
    LeftOut,
    Name,
    Network,
    Number,
    Origin,
    Section,
    Size,
    SomeSize,
    Switch,
    Whole,
    file_context,
)

Lane = Literal["interactive", "background"]
Role = Literal["use", "admin"]


class TlsConfig(Section):
    """The certificate with which the address speaks HTTPS; its files are read again when they change."""

    certificate: Annotated[ConfigPath | None, LeftOut] = Field(
        None,
        description="PEM file of the certificate and those between it and its root; not set: plain HTTP",
        json_schema_extra=RESTART,
    )
    key: Annotated[ConfigPath | None, LeftOut] = Field(
        None,
        description="PEM file of its private key, without a passphrase; not set: it is in the certificate's file",
        json_schema_extra=RESTART,
    )

    @model_validator(mode="after")
    def _both(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("has a key and no certificate: name the certificate's file too")
        return self


class ListenConfig(Section):
    """The one address that clients use."""

    host: Address = Field("127.0.0.1", description="IP address to listen on", json_schema_extra=RESTART)
    port: Whole = Field(8080, ge=0, le=65535, description="TCP port; 0 takes a free one", json_schema_extra=RESTART)
    hosts: tuple[HostName, ...] = Field(
        (), description="more names that a request's Host header may carry", json_schema_extra=LIVE
    )
    trusted_proxies: tuple[Network, ...] = Field(
        (), description="addresses or networks whose X-Forwarded-For is believed", json_schema_extra=LIVE
    )
    cors_origins: tuple[Origin, ...] = Field(
        (), description="pages of other origins that may use the address from a browser", json_schema_extra=LIVE
    )
    tls: TlsConfig = Field(TlsConfig(), description="HTTPS by certificate files", json_schema_extra=RESTART)
    max_body: SomeSize = Field(
        32 * 2**20, description="longest request body, after decompression", json_schema_extra=RESTART
    )


class CallerConfig(Section):
    """Someone who may ask, known by a token."""

    name: Name = Field(description="name in logs, metrics and the queue", json_schema_extra=LIVE)
    token_file: ConfigPath = Field(
        description="file that holds the token and nothing else; readable by the daemon only", json_schema_extra=LIVE
    )
    roles: tuple[Role, ...] = Field(
        ("use",),
        min_length=1,
        description="use: ask models; admin: /admin, such as load and reload; neither holds the other",
        json_schema_extra=LIVE,
    )
    weight: Number = Field(1, gt=0, description="share of the service against other callers", json_schema_extra=LIVE)
    max_lane: Lane = Field(
        "interactive", description="highest lane that the caller may ask for", json_schema_extra=LIVE
    )
    trusted: Switch = Field(
        default=False,
        description="its user headers divide it into users of their own",
        json_schema_extra=LIVE,
    )
    max_concurrent: Annotated[Whole | None, LeftOut] = Field(
        None,
        ge=1,
        description="requests to models at once, waiting ones too; not set: no limit",
        json_schema_extra=LIVE,
    )
    models: Annotated[tuple[Name, ...] | None, LeftOut] = Field(
        None,
        min_length=1,
        description="ids or aliases of the models that it may use; it sees no others; not set: all",
        json_schema_extra=LIVE,
    )


class AuthConfig(Section):
    """Who may use the address."""

    open: Switch = Field(
        default=False,
        description="true: serve a non-loopback address without tokens, on purpose",
        json_schema_extra=LIVE,
    )
    callers: tuple[CallerConfig, ...] = Field(
        (), description="callers with tokens; with any, every request needs one", json_schema_extra=LIVE
    )


class ReserveConfig(Section):
    """What is kept free of the machine for others."""

    cpus: Number = Field(0, ge=0, description="processors kept free", json_schema_extra=NEXT_LAUNCH)
    memory: Size = Field(2**30, description="host memory kept free, in bytes once read", json_schema_extra=LIVE)


class DeviceConfig(Section):
    """One device, by the name that a build gives it."""

    reserve: AutoSize = Field(
        None, description="memory kept free on it; auto: a sixteenth, 512 MiB to 1 GiB", json_schema_extra=LIVE
    )
    use: Switch = Field(default=True, description="false: nothing is put on it", json_schema_extra=NEXT_LAUNCH)


class HostConfig(Section):
    """What of the machine may be used."""

    cpus: Annotated[Number | None, Auto] = Field(
        None, gt=0, description="processors to use; auto: what the probe finds", json_schema_extra=NEXT_LAUNCH
    )
    memory: AutoSize = Field(
        None,
        description="the host pool's budget as it is, less reserve only; auto: what the limits leave",
        json_schema_extra=LIVE,
    )
    reserve: ReserveConfig = Field(ReserveConfig(), description="what is kept free", json_schema_extra=LIVE)
    cpu_share: Literal["split", "exclusive"] = Field(
        "split",
        description="split: each launch gets the threads that are its share if all instances that run are busy at "
        "once; exclusive: each gets all of them",
        json_schema_extra=NEXT_LAUNCH,
    )
    look_every: Interval = Field(
        30,
        description="while an engine runs, its CPU quota and throttling are looked at this often",
        json_schema_extra=LIVE,
    )
    device_lost: Literal["fail", "degrade"] = Field(
        "fail",
        description="fail, or plan again without the device that is gone",
        json_schema_extra=NEXT_LAUNCH,
    )
    devices: dict[str, DeviceConfig] = Field(
        {}, description="devices by name, as a build calls them", json_schema_extra=LIVE
    )


class QueueConfig(Section):
    """How many may wait, and how long."""

    per_caller: Whole = Field(16, ge=1, description="waiting requests of one caller", json_schema_extra=LIVE)
    total: Whole = Field(64, ge=1, description="waiting requests of all callers", json_schema_extra=LIVE)
    max_wait: Interval = Field(120, description="then the request is denied", json_schema_extra=LIVE)
    early_header: Duration = Field(
        10, description="then a stream's header goes out before its lease", json_schema_extra=LIVE
    )


class EvictionConfig(Section):
    """When an idle instance makes room."""

    min_idle: Duration = Field(
        5, description="an engine used less long ago is not stopped for another", json_schema_extra=LIVE
    )
    pressure_grace: Duration = Field(
        30,
        description="the machine is short of memory this long before idle engines are let go",
        json_schema_extra=LIVE,
    )
    swap_after: Duration = Field(
        10,
        description="a request that needs the memory of engines in use waits this long; then they are drained for it",
        json_schema_extra=LIVE,
    )
    concede: bool = Field(
        default=False,
        description="take a smaller plan that fits now rather than wait for engines in use",
        json_schema_extra=LIVE,
    )


class BrokerConfig(Section):
    """Queue and eviction."""

    queue: QueueConfig = Field(QueueConfig(), description="waiting requests", json_schema_extra=LIVE)
    eviction: EvictionConfig = Field(EvictionConfig(), description="making room", json_schema_extra=LIVE)


class PicturesConfig(Section):
    """What requests for pictures may ask for, and how long pictures are kept."""

    max_edge: Whole = Field(2048, ge=64, le=8192, description="longest edge, in pixels", json_schema_extra=LIVE)
    max_steps: Whole = Field(100, ge=1, le=100, description="steps of one picture", json_schema_extra=LIVE)
    max_count: Whole = Field(4, ge=1, le=8, description="pictures of one request", json_schema_extra=LIVE)
    max_prompt: Whole = Field(8000, ge=1, description="characters of a prompt", json_schema_extra=LIVE)
    max_source_pixels: Whole = Field(
        2**25, ge=4096, description="pixels of a source picture, by its header", json_schema_extra=LIVE
    )
    silence: Interval = Field(
        900, description="an engine that tells of no progress for this long is given up", json_schema_extra=LIVE
    )
    keep: Interval = Field(
        600,
        description="jobs that have ended, and pictures behind links, are kept for this long",
        json_schema_extra=LIVE,
    )


class CacheConfig(Section):
    """Conversations that are kept on disk, so that one that comes back need not be computed anew."""

    enabled: Switch = Field(
        default=True,
        description="what engines' slots hold is written before it is lost, and read when its conversation comes back",
        json_schema_extra=RESTART,
    )
    dir: Annotated[ConfigPath | None, Auto] = Field(
        None, description="folder of the files, for nobody else; auto: kv in state_dir", json_schema_extra=RESTART
    )
    budget: Size = Field(
        8 * 2**30,
        description="disk space; then the least valuable files go; 0: none is written",
        json_schema_extra=LIVE,
    )
    max_age: Interval = Field(
        7 * 86400, description="a file that nobody came back to for so long goes", json_schema_extra=LIVE
    )


class ReadinessConfig(Section):
    """When a start counts as stuck."""

    stall_timeout: Interval = Field(
        60, description="a start without any progress for this long is ended", json_schema_extra=LIVE
    )


class LivenessConfig(Section):
    """When a ready instance counts as unresponsive."""

    interval: Interval = Field(10, description="between two probes", json_schema_extra=LIVE)
    timeout: Interval = Field(3, description="for one answer", json_schema_extra=LIVE)
    failures: Whole = Field(3, ge=1, description="missed in a row", json_schema_extra=LIVE)


class RequestConfig(Section):
    """How long an engine may be silent within a request; each of its progress reports lets the time begin anew."""

    first_base: Interval = Field(
        300, description="of silence before the first content, for any prompt", json_schema_extra=LIVE
    )
    first_per_1k_tokens: Duration = Field(
        12, description="more for each 1,000 tokens of the prompt beyond first_free_tokens", json_schema_extra=LIVE
    )
    first_free_tokens: Whole = Field(
        8000, ge=0, description="tokens of a prompt that need no more than first_base", json_schema_extra=LIVE
    )
    first_cap: Interval = Field(900, description="never more before the first content", json_schema_extra=LIVE)
    image_tokens: Whole = Field(
        2048, ge=1, description="what each picture, sound or file of a prompt counts for", json_schema_extra=LIVE
    )
    idle: Interval = Field(300, description="of silence after the first content", json_schema_extra=LIVE)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.first_cap < self.first_base:
            raise ValueError("first_cap is shorter than first_base: raise first_cap or lower first_base")
        return self


class StopConfig(Section):
    """How an engine is stopped."""

    grace: Duration = Field(5, description="between SIGTERM and SIGKILL", json_schema_extra=LIVE)


class RestartConfig(Section):
    """What happens after a crash."""

    initial: Duration = Field(1, description="first wait", json_schema_extra=LIVE)
    factor: Number = Field(2, ge=1, description="each wait is this many times the last", json_schema_extra=LIVE)
    max: Duration = Field(60, description="longest wait", json_schema_extra=LIVE)
    budget: Whole = Field(
        3, ge=0, description="restarts within the window; then the model fails", json_schema_extra=LIVE
    )
    window: Interval = Field(120, description="in which restarts are counted", json_schema_extra=LIVE)
    stable_after: Duration = Field(60, description="a launch that lives this long was good", json_schema_extra=LIVE)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.max < self.initial:
            raise ValueError("max is shorter than initial: raise max or lower initial")
        return self


class QuarantineConfig(Section):
    """When a build is set aside."""

    strikes: Whole = Field(
        3, ge=1, description="crashes within the window; then it is set aside", json_schema_extra=LIVE
    )
    window: Interval = Field(3600, description="in which strikes are counted", json_schema_extra=LIVE)
    cooldown: Duration = Field(6 * 3600, description="then the build is tried once", json_schema_extra=LIVE)
    idle_check: Duration = Field(
        60,
        description="a build that was never tried is, with a tiny model, after so long without work; 0: not at all",
        json_schema_extra=LIVE,
    )


class SupervisionConfig(Section):
    """How instances are kept healthy."""

    readiness: ReadinessConfig = Field(ReadinessConfig(), description="starts", json_schema_extra=LIVE)
    liveness: LivenessConfig = Field(LivenessConfig(), description="probes of ready instances", json_schema_extra=LIVE)
    request: RequestConfig = Field(RequestConfig(), description="silence of engines", json_schema_extra=LIVE)
    stop: StopConfig = Field(StopConfig(), description="stops", json_schema_extra=LIVE)
    restart: RestartConfig = Field(RestartConfig(), description="after a crash", json_schema_extra=LIVE)
    quarantine: QuarantineConfig = Field(QuarantineConfig(), description="bad builds", json_schema_extra=LIVE)


class ShutdownConfig(Section):
    """How the daemon ends."""

    drain: Duration = Field(3, description="running requests may finish for this long", json_schema_extra=LIVE)
    total: Interval = Field(9, description="all of it; Docker kills after 10 s", json_schema_extra=LIVE)

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.total < self.drain:
            raise ValueError("total is shorter than drain: raise total or lower drain")
        return self


def _forever(value: Any, info: ValidationInfo) -> Any:
    if value is None and file_context(info) is not None:
        raise ValueError("has no value: write a duration, never (it is never stopped), or leave the key out")
    return None if value in ("never", "forever") else value


KeepAlive = Annotated[Duration | None, BeforeValidator(_forever)]
"""Seconds that an idle instance stays; None: it is never stopped for being idle."""
