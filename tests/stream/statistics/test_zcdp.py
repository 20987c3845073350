"""Accounting "zcdp": nρ are charged before Gaussian noise is drawn, every release states (ε, δ), and nρ never mix with
µε.

Relation "values" under zCDP: the promise, what is published, grants that roll, and ranges that follow earlier
releases."""

import io
import json
from contextlib import closing
from pathlib import Path

import jsonschema_rs
import msgspec
import numpy as np
import pytest
from click.testing import Result
from redis import Redis as SyncRedis

from dpcore import participation
from dpcore.accounting import NANO, epsilon_of_rho, rho_of
from dpcore.errors import BudgetError
from dpcore.noise import Noise
from stream.config import Config, ConfigError, load_config
from stream.config.public_cells import public_cells
from stream.evaluation.evaluate import COMPARED_DELTA, evaluate, with_accounting, with_epsilon
from stream.messages.message import HEXAGON_SPEED, WINDOW, Message
from stream.offline import LinePublisher, MemoryRows, split_by_slot
from stream.serve.received import received
from stream.statistics.columns import Derived
from stream.statistics.merging import by_planned_cells
from stream.statistics.participation.draw import participation_of, participation_with
from stream.statistics.plan import Allowance, Due, Plan, decode_plan, encode_plan, spendable
from stream.statistics.residual_clipping import response_of, with_what_clipping_leaves_open
from stream.statistics.smoothing_state import Memory, decode_memory, encode_memory
from stream.statistics.window_release import plan_window
from stream.statistics.window_rows import WindowRows
from stream.storage.keys import FeedKeys
from stream.storage.ledger import Ledger, LedgerError
from stream.storage.row_store import ROW
from stream.terms import Terms
from tests.support import hourly
from tests.support.builders import (
    LIVE,
    SLOT,
    SMALL,
    bus_config,
    counting_rho,
    live_config,
    random_rows,
    riders,
    zcdp_config,
)
from tests.support.closing import protocol_of
from tests.support.command import run
from tests.support.feeding import event
from tests.support.releasing import bodies_of, build_messages, due_of, planned
from tests.support.schemas import validate


@pytest.mark.parametrize("weight", ["share", "user", "sample"])
def test_a_full_contribution_pays_its_whole_grant_of_rho_and_is_never_charged_above_it(tmp_path, weight):
    """One user with five samples in each of one to four cells; k = 4, m = 5."""
    caps = {"participation.cells_per_user": 4, "participation.samples_per_cell": 5}
    config = zcdp_config(tmp_path, **SMALL, **caps, **{"participation.weight": weight})
    with pytest.raises(BudgetError, match="nρ"):
        _ = config.privacy.epsilon_micro
    unit = participation_of(Terms.of(config)).unit_grant
    cells = public_cells(config)[:4].tolist()
    for n in range(1, 5):
        rows = np.array([(cells[i % n], 1, i, 0, 0, 100) for i in range(5 * n)], dtype=ROW)
        (charge,) = planned(config, rows)[0].charges.tolist()
        full = unit / n if weight == "share" else unit * n
        assert 0.999 * full < charge <= min(full + 10, config.privacy.ledger_grant)
    one = np.array([(cells[0], 1, 0, 0, 0, 100)], dtype=ROW)
    (charge,) = planned(config, one)[0].charges.tolist()
    assert (charge < 0.3 * unit) == (weight == "sample"), "one of five samples moves its numbers by a fifth"


@pytest.mark.parametrize("relation", ["participation", "values"])
def test_every_release_states_rho_delta_and_the_epsilon_they_convert_to(tmp_path, relation):
    rows = random_rows(2, 100)
    if relation == "participation":
        config, budget, grant = zcdp_config(tmp_path, **SMALL), 400_000_000, 50_000_000
        messages = build_messages(*planned(config, rows), Noise(), None)[0]
    else:
        config = live_config(tmp_path)
        plan, messages, memory = release(config, rows, None, SLOT)
        budget, grant = plan.budget, plan.budget // plan.due.windows_left
        assert decode_memory(encode_memory(memory)) == memory
    for message in messages:
        body = json.loads(message.value)
        validate(message.topic, body)
        assert (body["accounting"], body["delta"]) == ("zcdp", 1e-6)
        assert body["rho"] * NANO == pytest.approx(grant)
        assert body["epsilon"] == epsilon_of_rho(grant, 1e-6)
        if message.topic == WINDOW:
            assert (body["rho_budget"], body["budget"]) == (budget / NANO, config.privacy.budget)
        assert received(message.topic, message.ce_id, message.value) is not None
        for name in ("accounting", "delta"):
            broken = {key: value for key, value in body.items() if key != name}
            with pytest.raises(jsonschema_rs.ValidationError):
                validate(message.topic, broken)


def test_pure_accounting_is_untouched_by_the_option(tmp_path, monkeypatch):
    """Same plan bytes and message fields as without it, and no Gaussian is drawn."""

    def never(*_: object) -> None:
        raise AssertionError("a Gaussian was used under pure accounting")

    participation_with.cache_clear()  # so that scales are computed here
    for name in ("gaussian_ratio", "square_losses", "discrete_gaussian"):
        monkeypatch.setattr(participation, name, never)
    for config in (riders(tmp_path), bus_config(tmp_path)):
        plan, contributions = planned(config, random_rows(2, 100))
        assert b"zcdp" not in encode_plan(plan)
        assert decode_plan(encode_plan(plan)) == plan
        assert plan.budget == config.privacy.ledger_budget
        for message in build_messages(plan, contributions, Noise(), None)[0]:
            assert not {"accounting", "rho", "rho_budget", "delta"} & set(json.loads(message.value))
        assert "accounting" not in config.ledger_policy


ROLLING = {"privacy.epsilon": None, "privacy.admission": "rolling", "speed.suppression": "none"}
FIRST_COME = {"privacy.admission": "first-come"}


@pytest.mark.parametrize(
    ("build", "changes", "says"),
    [
        (riders, {"privacy.delta": 1e-6}, "takes no delta"),
        (zcdp_config, {"privacy.accounting": "pure"}, "needs epsilon; set it"),
        (zcdp_config, {"privacy.epsilon": 1.0}, "takes no epsilon"),
        (zcdp_config, {"privacy.windows": None}, "needs windows"),
        (zcdp_config, {"privacy.delta": 1e-3}, "above 1e-05"),
        (zcdp_config, {"privacy.delta": 0}, "privacy.delta"),
        (zcdp_config, {"privacy.windows": 0}, "privacy.windows"),
        (zcdp_config, {"privacy.budget": 1e-8}, "less than 1 nρ"),
        (zcdp_config, {"privacy.budget": 1e-4, "privacy.windows": 100_000}, "smallest unit of the ledger"),
        (zcdp_config, {"privacy.budget": 5000.0}, "5000.0 is outside"),
        (zcdp_config, {"privacy.accounting": "renyi"}, "privacy.accounting"),
        (live_config, {"privacy.windows": 3}, "leave windows out"),
        (live_config, FIRST_COME, "needs windows"),
        (live_config, FIRST_COME | {"privacy.windows": 0}, "of at least 1"),
        (live_config, {"speed.suppression": "chop-user"}, "CHOP-USER is for pure ε"),
        (live_config, {"speed.mean_mechanism": "levy"}, "papers' mechanisms"),
        (live_config, {"speed.sum_cap": 0.5}, "clipping takes its place"),
        (live_config, {"speed.clipping": "none", "speed.statistics": ["p50"]}, "Laplace noise"),
        (live_config, {"speed.post_processing": []}, "only 'kalman' foretells"),
        (live_config, {"ledger.name": "city"}, "another feed draws"),
        (live_config, {"privacy.service": "5-24"}, "write them like '05:00-24:00'"),
        (live_config, {"privacy.service": "05:00-05:00"}, "end at another time"),
        (live_config, FIRST_COME | {"privacy.service": "05:00-24:00", "privacy.windows": 3}, "remove it"),
        (bus_config, ROLLING | {"privacy.epsilon": 1.0}, "leave epsilon out"),
        (bus_config, ROLLING | {"speed.suppression": "chop-user"}, "one grant among all users"),
    ],
)
def test_a_configuration_that_mixes_accountings_or_asks_one_for_what_it_cannot_do_is_refused(
    tmp_path, build, changes, says
):
    with pytest.raises(ConfigError, match=says):
        build(tmp_path, **changes)


def test_an_epsilon_sweep_sets_the_rho_that_converts_to_it(tmp_path):
    config = with_epsilon(zcdp_config(tmp_path, **SMALL), 2.0)
    assert config.privacy.accounting == "zcdp"
    assert config.privacy.epsilon == pytest.approx(2.0, abs=2e-6)
    assert config.privacy.ledger_budget == pytest.approx(8 * config.privacy.ledger_grant)
    scores = evaluate(
        with_epsilon(zcdp_config(tmp_path, **SMALL, **{"speed.statistics": ["mean"]}), 2.0),
        {SLOT: random_rows(1, 100)},
        2,
    )
    assert {score.estimator for score in scores} == {"released", "kalman"}
    for score in scores:
        assert score.charges.unit == "nano_rho"
        assert score.charges.most <= config.privacy.ledger_grant


def test_compared_accountings_promise_the_same_for_a_period_and_pay_as_many_windows(tmp_path):
    pure = riders(tmp_path)
    zcdp = with_accounting(pure, "zcdp")
    assert zcdp.privacy.delta == COMPARED_DELTA
    assert zcdp.privacy.budget == pytest.approx(pure.privacy.budget, abs=2e-6)
    assert zcdp.privacy.budget <= pure.privacy.budget
    assert zcdp.privacy.ledger_budget // zcdp.privacy.ledger_grant == 8
    back = with_accounting(zcdp, "pure")
    assert back.privacy.budget == zcdp.privacy.budget
    assert back.privacy.ledger_budget // back.privacy.ledger_grant == 8
    assert with_accounting(pure, "pure") is pure


@pytest.mark.parametrize(("cells", "better"), [(1, "pure"), (2, "pure"), (5, "zcdp"), (20, "zcdp")])
def test_rho_means_less_noise_for_users_in_many_cells_and_more_for_those_in_one(tmp_path, cells, better):
    """Standard deviation of the noise at an equal promise; it grows with k under ε and with √k under ρ."""
    caps = {"participation.weight": "user", "participation.cells_per_user": cells}
    pure = riders(tmp_path, **caps)
    (t, s), (p, q) = (participation_of(Terms.of(each)).scales for each in (pure, with_accounting(pure, "zcdp")))
    laplace, gauss = np.sqrt(2) * t[0] / s[0], p[0] / q[0]
    assert (laplace < gauss) == (better == "pure")


def test_only_accountings_are_compared_under_participation(tmp_path):
    (tmp_path / "none.ndjson").write_text("")
    refused = run("evaluate", tmp_path / "none.ndjson", "--config", hourly.RIDERS, "--mechanisms", "levy", code=2)
    assert "pure, zcdp" in refused.output


async def test_a_ledger_and_a_stored_plan_of_one_unit_are_refused_under_the_other(redis, tmp_path):
    """The plan is neither charged nor drawn."""
    rows = random_rows(1, 80)
    pure, zcdp = riders(tmp_path), zcdp_config(tmp_path, **SMALL)
    for stored, running in ((pure, zcdp), (zcdp, pure)):
        await redis.flushall()
        plan, _ = planned(stored, rows)
        ledger = Ledger(redis, running.feed.name)
        for _ in range(2):
            await ledger.claim_policy(stored.ledger_policy)
        with pytest.raises(LedgerError, match="units"):
            await ledger.claim_policy(running.ledger_policy)
        generation = await ledger.start_generation(birth=0)
        await redis.set(
            FeedKeys("riders").plan(SLOT),
            encode_plan(msgspec.structs.replace(plan, due=Due(plan.terms, plan.window, generation))),
        )
        out = io.StringIO()
        closing = protocol_of(redis, running, LinePublisher(out), MemoryRows({SLOT: rows}))
        with pytest.raises(LedgerError, match="another unit"):
            await closing.close(SLOT)
        assert out.getvalue() == ""
        assert await ledger.periods() == []


async def test_windows_close_through_redis_until_the_budget_in_nano_rho_is_spent(redis, tmp_path):
    """Five hours of a city: nobody is ever charged above rho_budget, and users who have spent it contribute nothing."""
    terms = SMALL | {"participation.weight": "sample", "participation.cells_per_user": 4}
    config = zcdp_config(tmp_path, rho=0.05, rho_budget=0.12, **terms)
    rows = random_rows(7, 900, users=6, hours=5)
    windows = split_by_slot(rows, config)
    ledger, out = Ledger(redis, config.feed.name), io.StringIO()
    await ledger.start_generation(birth=0)
    await ledger.claim_policy(config.ledger_policy)
    closing = protocol_of(redis, config, LinePublisher(out), MemoryRows(dict(windows)))
    totals = []
    for slot in sorted(windows):
        await closing.close(slot)
        totals.append((await ledger.total("2017-03-21"))[1])
    spent = await ledger.spent("2017-03-21", np.arange(1, 7, dtype=np.uint64), besides=0)
    assert spent.max() <= 120_000_000 < 5 * 50_000_000
    assert spent.max() > 60_000_000
    assert totals[0] < totals[1] == totals[-1], "two windows are paid; what is left pays no third"
    bodies = [json.loads(line)["value"] for line in out.getvalue().splitlines()]
    assert all(body["accounting"] == "zcdp" and body["delta"] == 1e-6 for body in bodies)


def written(tmp_path: Path, redis_url: str, accounting: str) -> str:
    """The hourly riders as a file, counting ``accounting``."""
    file = tmp_path / f"{accounting}.toml"
    text = hourly.RIDERS.read_text(encoding="utf-8").replace("redis://127.0.0.1:6379/0", redis_url)
    file.write_text(text, encoding="utf-8")
    if accounting == "zcdp":
        counting_rho(file, file, budget=5.0, windows=8, delta=1e-6)
    return str(file)


@pytest.mark.parametrize(("accounting", "unit", "shown"), [("pure", "micro_epsilon", "ε"), ("zcdp", "nano_rho", "ρ")])
def test_ledger_show_names_its_unit_and_refuses_to_read_one_unit_as_another(
    redis_server, tmp_path, accounting, unit, shown
):
    files = {name: written(tmp_path, redis_server.url, name) for name in ("pure", "zcdp")}
    with closing(SyncRedis.from_url(redis_server.url)) as client:
        client.flushall()
        client.hset(FeedKeys("riders").ledger("2017-03-21"), mapping={"1": 20_000_000, "2": 2_500_000})
        client.set(FeedKeys("riders").policy, load_config(files[accounting]).ledger_policy)
        command = "ledger", "show", "--config"
        report = json.loads(run(*command, files[accounting], "--json").stdout)
        assert report == {"2017-03-21": {"users": 2, unit: 22_500_000}}
        total = {"ε": "22.500000", "ρ": "0.022500"}[shown]
        assert f"sum of charges {total} {shown}" in run(*command, files[accounting]).output
        other = files["zcdp" if accounting == "pure" else "pure"]
        refused = run(*command, other, "--json", code=1)
        assert "units" in refused.output
        assert "22" not in refused.stdout


def test_check_states_the_promise_in_rho_and_in_epsilon_and_delta(tmp_path):
    file = written(tmp_path, "redis://127.0.0.1:1/0", "zcdp")
    report = json.loads(run("check", "--config", file, "--json").stdout)
    units = rho_of(5.0, 1e-6)
    assert report["budget"] == epsilon_of_rho(units, 1e-6)
    assert report["epsilon_per_window"] == epsilon_of_rho(units // 8, 1e-6)
    assert (report["rho"], report["rho_budget"], report["delta"]) == (units // 8 / NANO, units / NANO, 1e-6)
    assert report["windows_with_full_epsilon"] == 8
    said = run("check", "--config", file).output
    assert f"{units / NANO}-zCDP, hence ({report['budget']}, 1e-06)-differentially private" in said
    assert f"budget 5.0 pays for 8 of 24 windows at rho {units // 8 / NANO}" in said
    pure = run("check", "--config", written(tmp_path, "redis://127.0.0.1:1/0", "pure")).output
    assert "zCDP" not in pure
    assert "budget 16.0 pays for 8 of 24 windows at epsilon 2.0" in pure


def test_a_recording_is_released_offline_under_rho_with_a_ledger_that_outlives_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("HEXVEIL_PRIVACY__USER_KEY_FILE", str(tmp_path / "user.key"))
    recording = tmp_path / "day.ndjson"
    events = (event(f"u{i % 5}", (SLOT + 60 * i) * 1000, 30.25 + 0.05 * (i % 3), speed=i % 60) for i in range(170))
    recording.write_bytes(b"\n".join(events))
    span = ["--from", "2017-03-21T07:00", "--until", "2017-03-21T10:00", "--state", tmp_path / "state", "--json"]

    def replayed(accounting: str, code: int = 0) -> Result:
        config = written(tmp_path, "redis://127.0.0.1:1/0", accounting)
        return run("replay", recording, "--config", config, "--offline", *span, code=code)

    first = replayed("zcdp")
    bodies = [json.loads(line)["value"] for line in first.stdout.splitlines()]
    rho = rho_of(5.0, 1e-6) // 8 / NANO
    assert {(body["accounting"], body["rho"], body["delta"]) for body in bodies} == {("zcdp", rho, 1e-6)}
    summary = json.loads(first.stderr.splitlines()[-1])
    assert summary["ledger_unit"] == "nano_rho"
    users, charged = summary["charged"]["2017-03-21"]
    assert users == 5
    assert 0 < charged <= 5 * 3 * 50_000_000
    again = replayed("zcdp")
    assert again.stdout == ""
    assert json.loads(again.stderr.splitlines()[-1])["charged"] == summary["charged"]
    refused = replayed("pure", code=1)  # a ledger of nρ under a configuration of µε
    assert "units" in refused.stderr
    assert refused.stdout == ""


def release(
    config: Config, rows: np.ndarray, memory: Memory | None, slot: int
) -> tuple[Plan, list[Message], Memory | None]:
    """A window with untouched budgets."""
    due, budget = due_of(config, slot), config.privacy.ledger_budget
    read = WindowRows.of(rows, due.terms.reading)
    left = spendable(np.full(read.counts.n_users, budget), read.counts.users, due, budget)
    plan = plan_window(read, due, Allowance(left, budget), memory=memory)
    return plan, *build_messages(plan, by_planned_cells(plan, read.as_planned(plan).contributions), Noise(), memory)


def test_a_budget_is_the_most_rho_that_converts_to_it(tmp_path):
    privacy = live_config(tmp_path, budget=12.0, delta=1e-6).privacy
    assert privacy.ledger_budget == rho_of(12.0, 1e-6)
    assert privacy.budget <= 12.0 < epsilon_of_rho(privacy.ledger_budget + 10**6, 1e-6)
    first_come = live_config(tmp_path, **{"privacy.admission": "first-come", "privacy.windows": 24}).privacy
    assert first_come.ledger_grant == rho_of(12.0, 1e-6) // 24


def test_check_says_that_grants_roll_and_warns_of_no_dark_windows(tmp_path):
    live_config(tmp_path)
    overrides = {
        f"HEXVEIL_{key.replace('.', '__').upper()}": value if isinstance(value, str) else json.dumps(value)
        for key, value in LIVE.items()
        if value is not None
    }
    asked = "check", "--config", tmp_path / "live.toml"
    said, stated = run(*asked, env=overrides).stdout, json.loads(run(*asked, "--json", env=overrides).stdout)
    of_one = [epsilon_of_rho(rho_of(12.0, 1e-6) // windows, 1e-6) for windows in (23, 24, 25)]
    assert stated["epsilon_per_window"] in of_one, "of today's period, which may have 23 or 25 windows"
    assert stated["most_epsilon_of_a_window"] == stated["budget"] == pytest.approx(12.0)
    assert "12.0, 1e-06" in said
    assert "Grants roll" in said
    assert "go dark" not in said


@pytest.mark.parametrize(
    ("service", "left"),
    [(None, 17), ("05:00-24:00", 17), ("06:00-10:00", 3), ("05:30-07:30", 1), ("05:00-01:00", 17), ("22:00-06:00", 3)],
)
def test_hours_of_service_say_which_windows_are_left(tmp_path, service, left):
    """The window is 07:00 to 08:00 in Austin; it always counts, whether or not it is in the hours."""
    config = live_config(tmp_path, **{"privacy.service": service} if service else {})
    due = due_of(config, SLOT)
    assert due.windows_left == left
    users = np.array([1, 2], dtype=np.uint64)
    granted = spendable(np.array([1000, 500]), users, due, 1000)
    assert granted.tolist() == [1000 // left, 500 // left], "whoever has spent half of it gets half"


def test_under_pure_epsilon_grants_roll_too_and_messages_state_that_of_who_has_spent_nothing(tmp_path):
    config = bus_config(tmp_path, **ROLLING)
    plan, messages, _ = release(config, random_rows(1, 200), None, SLOT)
    assert plan.charges.max() <= config.privacy.ledger_budget // plan.due.windows_left
    assert plan.charges.max() > 0.9 * config.privacy.ledger_budget / plan.due.windows_left
    body = json.loads(messages[0].value)
    assert body["epsilon"] == pytest.approx(48.0 / plan.due.windows_left, abs=1e-6)


def test_the_last_window_of_a_period_may_spend_all_that_is_left_and_the_first_an_even_share(tmp_path):
    config = live_config(tmp_path)
    period, budget, users = due_of(config).period, config.privacy.ledger_budget, np.arange(3, dtype=np.uint64)
    left = np.array([budget, budget // 2, 0])
    first, last = due_of(config, period.start), due_of(config, period.end - 3600)
    assert spendable(left, users, first, budget).tolist() == [budget // 24, budget // 2 // 24, 0]
    assert spendable(left, users, last, budget).tolist() == left.tolist()


def test_ranges_come_from_earlier_releases_and_the_released_mean_is_near_the_truth_of_a_large_fleet(tmp_path):
    """4 000 vehicles drive 30 ± 13 km/h in six cells: after six windows most ranges are narrower than [0, U], and
    released means are within 5 of their deviations of the truth (α = 6·10⁻⁷ a cell).
    """
    config, memory, rng = live_config(tmp_path), None, np.random.default_rng(4)
    for number in range(6):
        slot = SLOT + 3600 * number
        rows = random_rows(number, 8000, users=4000, slot=slot)
        rows["value"] = np.clip(rng.normal(3000, 1300, len(rows)), 0, 6500)
        plan, messages, memory = release(config, rows, memory, slot)
        assert plan.ranges is not None
    for body in bodies_of(messages, HEXAGON_SPEED):
        cell = rows["cell"] == int(body["cell"], 16)
        assert abs(body["mean"]["raw"] - rows["value"][cell].mean() / 100) < 5 * body["mean"]["scale"] + 0.01
        assert body["clipping"]["lower"] < 30 < body["clipping"]["upper"]
    few = live_config(tmp_path, budget=0.5)
    narrow, messages, _ = release(few, random_rows(1, 60, slot=SLOT), None, SLOT)
    worst = [body["mean"]["worst_error"] for body in bodies_of(messages, HEXAGON_SPEED)]
    assert min(worst) >= 65, "all vehicles may be outside the range"
    assert np.median(narrow.ranges[1] - narrow.ranges[0]) < 3000, "where noise is large, ranges are narrow"


def test_a_smoothed_interval_reaches_at_least_as_far_as_what_clipping_leaves_open(tmp_path):
    """However sure the model is of itself."""
    config = live_config(tmp_path)
    _, _, memory = release(config, random_rows(0, 60), None, SLOT)
    plan, _, _ = release(config, random_rows(1, 60, slot=SLOT + 3600), memory, SLOT + 3600)
    response, middle = response_of(plan), np.full(len(plan.cells), 30.0)
    assert response.open.max() > 1
    wider = with_what_clipping_leaves_open(plan, Derived("kalman", middle, (middle - 0.1, middle + 0.1)))
    assert (np.minimum(middle - wider.interval[0], wider.interval[1] - middle) >= 2.5 * response.open).all()


def test_a_jam_widens_the_ranges_of_its_cells_so_that_it_is_seen(tmp_path):
    config, memory = live_config(tmp_path, budget=60.0), None
    rng, shown = np.random.default_rng(2), []
    for number in range(8):
        slot, speed = SLOT + 3600 * number, 4500 if number < 4 else 500
        rows = random_rows(number, 6000, users=3000, places=2, slot=slot)
        rows["value"] = np.clip(rng.normal(speed, 600, len(rows)), 0, 6500)
        _, messages, memory = release(config, rows, memory, slot)
        shown.append(np.mean([body["post_processed"]["mean"]["value"] for body in bodies_of(messages, HEXAGON_SPEED)]))
    assert shown[3] == pytest.approx(45, abs=3)
    assert shown[7] == pytest.approx(5, abs=5)
