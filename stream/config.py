"""TOML and environment into one validated, immutable :class:`Config`."""

from __future__ import annotations

import os
import re
import tomllib
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict, SettingsError

from dpcore.accounting import MAX_RHO, NANO, epsilon_of_rho, to_nano
from dpcore.budget import MICRO, to_micro
from dpcore.errors import BudgetError
from stream.histogram_config import HistogramConfig
from stream.section import Domain, Section

SPEED_TO_KMH = {"km/h": 1.0, "m/s": 3.6, "mph": 1.609344, "kn": 1.852}
SPEED_QUANTUM_KMH = 0.01
"""Public grid of speeds: values are integers of this many km/h before anything is summed."""

MAX_DELTA = 1e-5
"""Largest delta that a release may state."""
LEDGER_UNITS = {"pure": ("micro_epsilon", MICRO), "zcdp": ("nano_rho", NANO)}
"""Unit of the ledger per accounting, and how many make 1."""

_LONGEST_US = 36_500 * 86_400_000_000
_DURATION_UNITS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}


class ConfigError(ValueError):
    """A configuration that cannot be used; the message names the key and the remedy."""


def parse_duration(text: object) -> timedelta:
    """``"90s"``, ``"5m"``, ``"1h"``, ``"1d"`` as a time span; refuses anything else."""
    if isinstance(text, timedelta):
        return text
    match = re.fullmatch(r"(\d+)\s*(ms|s|m|h|d)", text) if isinstance(text, str) else None
    if match is None:
        raise ValueError(f"{text!r} is not a duration; write a whole number with ms, s, m, h or d, like '1h'")
    microseconds = int(match[1][:30]) * _DURATION_UNITS[match[2]]
    if microseconds > _LONGEST_US:
        raise ValueError(f"{text!r} is longer than 36500d; give less")
    return timedelta(microseconds=microseconds)


def _known_timezone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(f"{name!r} is not an IANA time zone; write one like 'Europe/Paris' or 'UTC'") from None
    return name


def _positive(span: timedelta) -> timedelta:
    if span <= timedelta(0):
        raise ValueError("must be longer than zero")
    return span


Duration = Annotated[timedelta, BeforeValidator(parse_duration)]
PositiveDuration = Annotated[timedelta, BeforeValidator(parse_duration), AfterValidator(_positive)]
TimezoneName = Annotated[str, AfterValidator(_known_timezone)]
FeedName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,31}$")]
SpeedUnit = Literal["km/h", "m/s", "mph", "kn"]
Statistic = Literal["mean", "variance", "p15", "p50", "p85"]


class FeedFields(Section):
    """Where a declared feed keeps its fields: dotted paths, a number indexes a list (``location.coordinates.1``)."""

    user: str
    time: str
    lat: str
    lng: str
    speed: str
    time_format: Literal["rfc3339", "epoch-s", "epoch-ms"] = "rfc3339"


class FeedConfig(Section):
    """The incoming feed and its units."""

    name: FeedName
    topic: str = Field(pattern=r"^[A-Za-z0-9._-]{1,249}$")
    format: Literal["canonical", "capmetro", "capmetro-2015", "itms", "declared"] = "canonical"
    timezone: TimezoneName
    speed_unit: SpeedUnit = "km/h"
    domain: Domain
    fields: FeedFields | None = None

    @model_validator(mode="after")
    def _fields_belong_to_declared(self) -> Self:
        if (self.format == "declared") != (self.fields is not None):
            raise ValueError("[feed.fields] and format = 'declared' go together; give both or neither")
        return self


class WindowConfig(Section):
    """Timeslots and how long to wait for them."""

    slot: PositiveDuration = timedelta(hours=1)
    allowed_delay: Duration = timedelta(minutes=5)
    idle_timeout: PositiveDuration = timedelta(minutes=5)
    max_future: Duration = timedelta(minutes=5)
    max_age: PositiveDuration = timedelta(days=36500)


class PrivacyConfig(Section):
    """Allowance of one user per window and per period: epsilon and budget, or under zCDP rho and rho_budget.

    ``accounting`` "pure": ε-DP, δ = 0, counted in µε. "zcdp": ρ-zCDP, counted in nρ; epsilon and budget are what rho and
    rho_budget convert to at ``delta``.
    """

    accounting: Literal["pure", "zcdp"] = "pure"
    given_epsilon: float | None = Field(default=None, alias="epsilon", gt=0, le=1000)
    given_budget: float | None = Field(default=None, alias="budget", gt=0, le=100_000)
    rho: float | None = Field(default=None, gt=0, le=MAX_RHO)
    rho_budget: float | None = Field(default=None, gt=0, le=MAX_RHO)
    delta: float | None = Field(default=None, gt=0)
    period: PositiveDuration = timedelta(days=1)
    user_key_file: Path = Path("var/user.key")

    @model_validator(mode="after")
    def _one_accounting(self) -> Self:
        pure = {"epsilon": self.given_epsilon, "budget": self.given_budget}
        zcdp = {"rho": self.rho, "rho_budget": self.rho_budget, "delta": self.delta}
        wanted, other = (zcdp, pure) if self.accounting == "zcdp" else (pure, zcdp)
        missing = [name for name, value in wanted.items() if value is None]
        foreign = [name for name, value in other.items() if value is not None]
        if missing:
            raise ValueError(f"accounting '{self.accounting}' needs {', '.join(missing)}; set it")
        if foreign:
            why = "epsilon and budget follow from rho" if self.accounting == "zcdp" else "they belong to 'zcdp'"
            raise ValueError(f"accounting '{self.accounting}' takes no {', '.join(foreign)} ({why}); remove it")
        return self

    @model_validator(mode="after")
    def _budget_covers_a_window(self) -> Self:
        if self.delta is not None and self.delta > MAX_DELTA:
            raise ValueError(
                f"delta {self.delta} is above {MAX_DELTA}: with that chance the promise may fail for a user; "
                "give far less than 1 over the number of users, 1e-6 or below"
            )
        least, most = (self.rho, self.rho_budget) if self.accounting == "zcdp" else (self.epsilon, self.budget)
        names = ("rho", "rho_budget") if self.accounting == "zcdp" else ("epsilon", "budget")
        if least is not None and most is not None and most < least:
            raise ValueError(f"{names[1]} {most} is below {names[0]} {least}: no window could ever be released")
        if self.ledger_grant < 1:
            raise ValueError(f"{names[0]} {least} is below the resolution of the ledger; raise it")
        return self

    @cached_property
    def epsilon(self) -> float:
        """ε of one user in one window; under zCDP what rho converts to at delta, rounded up."""
        return self._stated(self.given_epsilon, self.rho)

    @cached_property
    def budget(self) -> float:
        """ε of one user in one period; under zCDP what rho_budget converts to at delta, rounded up."""
        return self._stated(self.given_budget, self.rho_budget)

    def _stated(self, given: float | None, rho: float | None) -> float:
        if rho is None or self.delta is None:
            return self._pure(given)
        return epsilon_of_rho(to_nano(rho, round_up=True), self.delta)

    @cached_property
    def epsilon_micro(self) -> int:
        """Allowance of one user in one window, in µε; raises :class:`BudgetError` where nρ are counted."""
        return to_micro(self._pure(self.given_epsilon), round_up=False)

    @cached_property
    def budget_micro(self) -> int:
        """Allowance of one user in one period, in µε; raises :class:`BudgetError` where nρ are counted."""
        return to_micro(self._pure(self.given_budget), round_up=False)

    def _pure(self, given: float | None) -> float:
        if given is None:
            raise BudgetError("this configuration counts nρ (accounting 'zcdp'); µε belong to accounting 'pure'")
        return given

    @cached_property
    def ledger_grant(self) -> int:
        """Allowance of one user in one window, in the ledger's unit: µε, or nρ under zCDP."""
        return self.epsilon_micro if self.rho is None else to_nano(self.rho, round_up=False)

    @cached_property
    def ledger_budget(self) -> int:
        """Allowance of one user in one period, in the ledger's unit: µε, or nρ under zCDP."""
        return self.budget_micro if self.rho_budget is None else to_nano(self.rho_budget, round_up=False)

    @property
    def ledger_unit(self) -> tuple[str, int]:
        """Name of the ledger's unit, and how many make 1."""
        return LEDGER_UNITS[self.accounting]


class HexagonConfig(Section):
    """Spatial resolution: one for all, or under "values" merged by public counts until the mean's interval is narrow."""

    resolution: int = Field(ge=0, le=15)
    merge_until_km_h: float | None = Field(default=None, gt=0, le=1000)
    coarsest_resolution: int = Field(default=0, ge=0, le=15)

    @model_validator(mode="after")
    def _coarser_than_the_finest(self) -> Self:
        if self.merge_until_km_h is not None and self.coarsest_resolution >= self.resolution:
            raise ValueError(
                f"coarsest_resolution {self.coarsest_resolution} is not below resolution {self.resolution}, so nothing "
                "could be merged; lower it or drop merge_until_km_h"
            )
        return self


class SpeedConfig(Section):
    """Statistics of speed per hexagon and timeslot."""

    upper_bound: float = Field(gt=0, le=1000)
    statistics: tuple[Statistic, ...] = Field(default=("mean", "variance"), min_length=1)
    mean_mechanism: Literal[
        "allocated",
        "baseline",
        "array-averaging",
        "pooled-minimax",
        "levy",
        "fixed-quantile",
        "epsilon-quantile",
        "auto",
    ] = "allocated"
    suppression: Literal["chop-user", "none"] = "chop-user"
    allocation: Literal["exact-loss", "uniform"] = "exact-loss"
    clipping: Literal["joint", "carried", "none"] = "joint"
    sum_cap: float = Field(default=0.0, ge=0, le=1000)
    post_processing: tuple[Literal["empirical-bayes", "kalman"], ...] = ("empirical-bayes",)
    min_users: int = Field(default=1, ge=1)
    cdf_bins: int = Field(default=32, ge=2, le=4096)

    @model_validator(mode="after")
    def _on_the_grid(self) -> Self:
        if len(set(self.statistics)) != len(self.statistics):
            raise ValueError(f"statistics {list(self.statistics)} names one twice; name each once")
        if abs(self.upper_bound / SPEED_QUANTUM_KMH - self.upper_quanta) > 1e-6:
            raise ValueError(f"upper_bound {self.upper_bound} is not a multiple of {SPEED_QUANTUM_KMH} km/h; round it")
        return self

    @property
    def upper_quanta(self) -> int:
        """U in quanta of :data:`SPEED_QUANTUM_KMH`."""
        return round(self.upper_bound / SPEED_QUANTUM_KMH)


class ParticipationShares(Section):
    """How epsilon, or rho, is divided: relative weights of what is released, each share rounded to the ledger's unit."""

    moments: int = Field(default=4, ge=1, le=1_000_000)
    percentiles: int = Field(default=4, ge=1, le=1_000_000)
    users: int = Field(default=1, ge=1, le=1_000_000)


class ParticipationConfig(Section):
    """Public bounds of relation "participation": cell list and caps per user."""

    geojson: Path | None = None
    max_cells: int = Field(default=5_000, ge=1, le=1_000_000)
    weight: Literal["share", "user", "sample"] = "sample"
    cells_per_user: int = Field(ge=1, le=1_000)
    samples_per_cell: int = Field(default=5, ge=1, le=100_000)
    shares: ParticipationShares = ParticipationShares()


class KafkaConfig(Section):
    """Brokers, consumer group, and how to prove who we are to them."""

    bootstrap: str = "127.0.0.1:9092"
    group: str = "hexveil-worker"
    replication_factor: int = Field(default=1, ge=1, le=100)
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    username: str | None = None
    password_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None

    @property
    def encrypted(self) -> bool:
        """Whether connections use TLS."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def authenticated(self) -> bool:
        """Whether connections log in by SASL."""
        return self.security_protocol.startswith("SASL_")

    @model_validator(mode="after")
    def _credentials_fit_the_protocol(self) -> Self:
        if self.authenticated != (self.username is not None and self.password_file is not None):
            raise ValueError(
                f"security_protocol {self.security_protocol} {'needs' if self.authenticated else 'takes no'} username and "
                "password_file; give both with SASL_SSL or SASL_PLAINTEXT, neither otherwise"
            )
        if not self.encrypted and (self.ca_file or self.certificate_file or self.key_file):
            raise ValueError(f"security_protocol {self.security_protocol} uses no TLS files; set it to SSL or SASL_SSL")
        if (self.certificate_file is None) != (self.key_file is None):
            raise ValueError("certificate_file and key_file go together; give both or neither")
        return self


class RedisConfig(Section):
    """State and ledger store."""

    url: str = Field(default="redis://127.0.0.1:6379/0", pattern=r"^(redis|rediss|unix)://")


class SurfaceConfig(Section):
    """Address of an HTTP surface."""

    host: str = "127.0.0.1"
    port: int = Field(ge=0, le=65535)


class PublicConfig(SurfaceConfig):
    """The public surface: address, what other sites may read it from a browser, and how much it holds."""

    cors_origins: tuple[str, ...] = ()
    max_streams: int = Field(default=2_000, ge=1, le=100_000)
    max_windows: int = Field(default=840, ge=1, le=1_000_000)

    @model_validator(mode="after")
    def _origins_are_origins(self) -> Self:
        for origin in self.cors_origins:
            if origin != "*" and not re.fullmatch(r"https?://[a-z0-9.-]+(:\d{1,5})?", origin):
                raise ValueError(
                    f"cors_origins names {origin!r}, which is no origin; write scheme, host and port only, "
                    "like 'https://maps.example.org', or '*' for every site"
                )
        return self


class Config(BaseSettings):
    """One deployment: everything the worker needs to know, checked before anything starts."""

    model_config = SettingsConfigDict(
        env_prefix="HEXVEIL_", env_nested_delimiter="__", extra="forbid", frozen=True, validate_default=True
    )

    relation: Literal["values", "participation"]
    feed: FeedConfig
    window: WindowConfig = WindowConfig()
    privacy: PrivacyConfig
    hexagons: HexagonConfig
    speed: SpeedConfig
    participation: ParticipationConfig | None = None
    histogram: HistogramConfig | None = None
    kafka: KafkaConfig = KafkaConfig()
    redis: RedisConfig = RedisConfig()
    operator: SurfaceConfig = SurfaceConfig(port=6066)
    public: PublicConfig = PublicConfig(port=8080)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Environment above file; nothing else."""
        return env_settings, init_settings

    @model_validator(mode="after")
    def _participation_reads_no_counts(self) -> Self:
        if (self.relation == "participation") != (self.participation is not None):
            raise ValueError("[participation] and relation = 'participation' go together; give both or neither")
        if self.relation == "values":
            if self.speed.clipping == "carried":
                raise ValueError(
                    "speed.clipping 'carried' is for relation 'participation' only; under 'values' set it to 'joint' or 'none'"
                )
            return self
        refused = {
            "speed.mean_mechanism": (self.speed.mean_mechanism != "allocated", "it reads counts", "'allocated'"),
            "speed.suppression": (self.speed.suppression != "none", "chop-user drops users by raw counts", "'none'"),
            "speed.allocation": (
                self.speed.allocation != "uniform",
                "exact-loss sets noise by raw counts",
                "'uniform'",
            ),
            "speed.clipping": (self.speed.clipping == "joint", "joint clipping reads counts", "'none' or 'carried'"),
            "speed.sum_cap": (self.speed.sum_cap != 0, "the cap follows the counts of all users", "0"),
            "speed.post_processing": (
                "empirical-bayes" in self.speed.post_processing,
                "empirical-bayes reads exact counts",
                "['kalman'] or []",
            ),
            "hexagons.merge_until_km_h": (
                self.hexagons.merge_until_km_h is not None,
                "which hexagons are merged reads raw counts; merge by the public list: a coarser hexagons.resolution",
                "nothing",
            ),
            "speed.min_users": (self.speed.min_users != 1, "a threshold on true counts shows who was there", "1"),
        }
        problems = [f"{key}: {why}; set it to {fix}" for key, (bad, why, fix) in refused.items() if bad]
        if problems:
            raise ValueError("not under relation 'participation': " + "; ".join(problems))
        return self

    @model_validator(mode="after")
    def _something_is_carried_over(self) -> Self:
        if self.speed.clipping != "carried":
            return self
        needs = {
            "speed.statistics": (
                "variance" in self.speed.statistics,
                "users' clipped means hold no variance of speeds; leave out 'variance'",
            ),
            "speed.post_processing": (
                "kalman" not in self.speed.post_processing,
                "it alone carries releases over; set it to ['kalman']",
            ),
        }
        problems = [f"{key}: {why}" for key, (bad, why) in needs.items() if bad]
        if problems:
            raise ValueError("not with speed.clipping 'carried': " + "; ".join(problems))
        return self

    @model_validator(mode="after")
    def _zcdp_has_noise_for_it(self) -> Self:
        if self.privacy.accounting == "zcdp" and self.relation == "values":
            raise ValueError(
                "privacy.accounting 'zcdp' is for relation 'participation' only: under 'values' noise scales, clipping and "
                "suppression are chosen for Laplace noise and pure ε; set privacy.accounting to 'pure'"
            )
        return self

    @model_validator(mode="after")
    def _budget_covers_histograms(self) -> Self:
        if self.privacy.ledger_budget < self.window_grant:
            _, per_one = self.privacy.ledger_unit
            whole, most = ("rho", "rho_budget") if self.privacy.accounting == "zcdp" else ("epsilon", "budget")
            raise ValueError(
                f"privacy.{most} {self.privacy.ledger_budget / per_one} is below the {self.window_grant / per_one} of one window, "
                f"privacy.{whole} {self.privacy.ledger_grant / per_one} and {self.histogram_grant / per_one} for the histograms: "
                f"no window could ever be released; raise {most} or lower histogram.epsilon"
            )
        if self.histogram is not None and self.histogram.domain and not self.feed.domain.holds(self.histogram.domain):
            raise ValueError(
                "histogram.domain reaches outside feed.domain, where every fix is rejected; keep it inside, or leave it out"
            )
        return self

    @property
    def histogram_grant(self) -> int:
        """What a user with a fix in their box pays in one window for all spatial histograms, in the ledger's unit."""
        return 0 if self.histogram is None else self.histogram.cost(self.privacy.accounting)

    @property
    def window_grant(self) -> int:
        """Allowance of one user in one window, for statistics of speed and spatial histograms, in the ledger's unit."""
        return self.privacy.ledger_grant + self.histogram_grant

    @model_validator(mode="after")
    def _merging_predicts_the_mean(self) -> Self:
        wanted = self.hexagons.merge_until_km_h is not None
        if wanted and ("mean" not in self.speed.statistics or self.speed.mean_mechanism != "allocated"):
            raise ValueError(
                "hexagons.merge_until_km_h predicts the interval of an allocated mean; put 'mean' into speed.statistics "
                "and set speed.mean_mechanism to 'allocated'"
            )
        return self

    @model_validator(mode="after")
    def _slots_fit_periods(self) -> Self:
        if self.privacy.period % self.window.slot:
            raise ValueError(
                f"window.slot {self.window.slot} does not divide privacy.period {self.privacy.period}; "
                "a timeslot must never straddle two ledger periods"
            )
        return self


def load_config(path: str | os.PathLike[str], **overrides: Any) -> Config:
    """Read ``path`` with environment overrides; ``overrides`` are dotted keys (``feed.format="capmetro"``) above both.

    Raises :class:`ConfigError` naming every bad key, what was found and what would be right.
    """
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; start from config/bus-fleet.toml or run 'hexveil init'") from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; name a readable TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not TOML: {error}") from None
    for key, value in overrides.items():
        section = data
        *parents, leaf = key.split(".")
        for parent in parents:
            section = section.setdefault(parent, {})
        section[leaf] = value
    try:
        return Config(**data)
    except SettingsError as error:
        raise ConfigError(f"environment: {error}; set single keys, like HEXVEIL_PRIVACY__EPSILON=1.5") from None
    except ValidationError as error:
        lines = [
            f"  {'.'.join(map(str, item['loc'])) or '(whole file)'}: {item['msg'].removeprefix('Value error, ')}"
            for item in error.errors()
        ]
        raise ConfigError(f"{path}: {len(lines)} problem(s)\n" + "\n".join(lines)) from None
