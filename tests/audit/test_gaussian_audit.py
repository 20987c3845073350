"""Exact audit of discrete Gaussian noise under zCDP: interval arithmetic of 60 digits, no sampling, no tolerance to
hide in.

The sampler's law is read off the sampler itself, its Rényi divergences between neighbours are enclosed, and both are
held against what is charged in nρ and stated as (ε, δ). Planted bugs must show more, or another law.
"""

import math
from decimal import Decimal, localcontext
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
from scipy import optimize

from dpcore import gaussian
from dpcore.accounting import NANO, epsilon_of_rho, gaussian_losses, gaussian_ratio
from dpcore.gaussian import bernoulli_exp_half_square, discrete_gaussian
from dpcore.noise import Noise
from tests.support.nightly import nightly

DIGITS = 60
WIDEN = Decimal(10) ** -50
"""Relative error of one operation at 60 digits on exponents below 10^6, with room to spare."""


class Interval(NamedTuple):
    """Positive numbers between two decimals, bounds included."""

    low: Decimal
    high: Decimal

    def __contains__(self, value: object) -> bool:
        assert isinstance(value, Fraction)
        return Fraction(self.low) <= value <= Fraction(self.high)


def _decimal(value: Fraction) -> Decimal:
    return Decimal(value.numerator) / Decimal(value.denominator)


def exponential(exponent: Fraction) -> Interval:
    """Encloses exp(exponent)."""
    with localcontext(prec=DIGITS):
        middle = _decimal(exponent).exp()
        return Interval(middle * (1 - WIDEN), middle * (1 + WIDEN))


def divergence(variance: Fraction, shift: int, order: Fraction) -> Interval:
    """Encloses D_order(p ‖ p shifted) = ln(Σ p(x)^α·p(x − shift)^(1−α)) / (α − 1), p ∝ exp(−x²/(2·variance)), from the
    masses alone.

    Terms beyond ``reach`` on either side of their largest are below 10⁻⁶⁰ of the sum and fall at least by half each.
    """
    reach = math.ceil(20 * math.sqrt(variance)) + 10 + math.ceil(order) * shift

    def law(x: int) -> Interval:
        return exponential(-Fraction(x * x) / (2 * variance))

    with localcontext(prec=DIGITS):
        alpha = _decimal(order)
        centre = -math.floor((order - 1) * shift)
        low = high = Decimal(0)
        bounds = []
        for x in range(centre - reach, centre + reach + 1):
            p, q = law(x), law(x - shift)
            bounds.append((p.high**alpha) * (q.low ** (1 - alpha)))
            high += bounds[-1]
            low += (p.low**alpha) * (q.high ** (1 - alpha))
        assert max(bounds[0], bounds[-1]) < low * Decimal(10) ** -60, "reach is too short"
        high += 2 * (bounds[0] + bounds[-1])
        total = [law(x) for x in range(-reach, reach + 1)]
        all_low = sum((m.low for m in total), Decimal(0))
        all_high = sum((m.high for m in total), Decimal(0)) + 4 * total[0].high
        ends = sorted([(low / all_high).ln() / (alpha - 1), (high / all_low).ln() / (alpha - 1)])
        return Interval(ends[0] - WIDEN, ends[1] + WIDEN)


SCALES = [(1, NANO // 2), (1, 20_000_000), (3, 400_000_000), (5, 125_000_000), (1, 4 * NANO)]
"""(sensitivity, nρ), small enough to sum every mass."""
ORDERS = [Fraction(2), Fraction(3), Fraction(8), Fraction(3, 2), Fraction(101, 100), Fraction(17, 4)]


@pytest.mark.parametrize(("sensitivity", "rho"), [*SCALES[::2], *(nightly(*scale) for scale in SCALES[1::2])])
def test_renyi_divergences_of_planned_noise_are_at_most_the_charge_and_exactly_it_at_integer_orders(sensitivity, rho):
    t, s = gaussian_ratio(sensitivity, rho)
    variance = Fraction(t * t, s * s)
    charge = int(gaussian_losses(np.array([sensitivity]), t, s)[0])
    exact = Fraction(sensitivity**2) / (2 * variance)
    for order in ORDERS:
        interval = divergence(variance, sensitivity, order)
        assert Fraction(interval.high) <= order * Fraction(charge, NANO) + Fraction(1, 10**35), order
        assert exact * NANO <= charge <= rho
        if order.denominator == 1:
            assert order * exact in interval
            assert interval.high - interval.low < Decimal(10) ** -35


class Told(Noise):
    """The proposals are given and every event happens, so that the exponents of the events can be recorded."""

    def __init__(self, proposal: int) -> None:
        super().__init__()
        self.proposal = proposal
        self.exponent = Fraction(0)

    def discrete_laplace(self, numerator: Any, denominator: Any = 1, size: int | None = None) -> Any:
        return np.array([self.proposal])

    def bernoulli_exp(self, numerator: Any, denominator: Any) -> Any:
        pairs = np.broadcast_arrays(np.asarray(numerator), np.asarray(denominator))
        for top, bottom in zip(*(column.tolist() for column in pairs), strict=True):
            self.exponent += Fraction(top, bottom)
        return np.ones(len(pairs[0]), dtype=bool)


def exponent_of(y: int, t: int, s: int, patch: pytest.MonkeyPatch) -> Fraction:
    """−ln of the sampler's unnormalised mass at ``y``: the proposal's |y|·s/t and all of its acceptance."""
    source = Told(y)

    def fraction(noise: Noise, r: Any, t: Any) -> Any:
        for rest, whole in zip(r.tolist(), t.tolist(), strict=True):
            source.exponent += Fraction(rest**2, 2 * whole**2)
        return np.ones(len(r), dtype=bool)

    patch.setattr(gaussian, "half_square_fraction", fraction)
    drawn = discrete_gaussian(source, t, s, 1)
    assert (drawn.tolist(), drawn.dtype.kind) == ([y], "i"), "the last digits of a float would show the exact sum"
    return Fraction(abs(y) * s, t) + source.exponent


@pytest.mark.parametrize(("t", "s"), [(1, 1), (3, 7), (1, 5), (50, 3), (2**32 + 1, 2**20), (2**40, 1)])
def test_the_sampler_gives_every_integer_exactly_the_mass_of_the_discrete_gaussian(t, s, monkeypatch):
    """ln of mass ratios as fractions: proposal and acceptance together are −y²/(2σ²), whatever the common factor."""
    sigma = t / s
    grid = sorted({round(sigma * k / 8) for k in range(-48, 49)} | set(range(-6, 7)))
    at_zero = exponent_of(0, t, s, monkeypatch)
    for y in grid:
        assert exponent_of(y, t, s, monkeypatch) - at_zero == Fraction(y * y * s * s, 2 * t * t)


class Scripted(Noise):
    """``below`` answers under or at the asked fraction as the script says; the chance of that script is kept."""

    def __init__(self, script: list[bool], r: int) -> None:
        super().__init__()
        self.script, self.r, self.chance, self.exhausted = list(script), r, Fraction(1), False

    def below(self, bound: Any) -> Any:
        if not len(bound):
            return bound
        (limit,) = bound.tolist()
        if not self.script:
            self.exhausted = True
            return np.array([limit - 1])
        under = self.script.pop(0)
        share = Fraction(min(self.r, limit), limit)
        self.chance *= share if under else 1 - share
        return np.array([0 if under else limit - 1])


@pytest.mark.parametrize(("r", "t"), [(1, 2), (1, 3), (2, 3), (6, 7), (99, 100), (2**39 + 1, 2**40)])
def test_acceptance_below_one_scale_has_its_exact_probability_as_a_rational_interval(r, t):
    """Every run of at most 24 draws, weighed: what is left undecided bounds the error, 10⁻¹⁰ at most."""
    accepted = undecided = Fraction(0)
    for longest in range(13):
        for last in ([False], [True, False]):
            noise = Scripted([True, True] * longest + last, r)
            outcome = bernoulli_exp_half_square(noise, np.array([r]), np.array([t]))
            assert not noise.exhausted
            assert not noise.script
            accepted += noise.chance if outcome[0] else 0
            undecided += noise.chance
    undecided = 1 - undecided
    assert undecided < Fraction(1, 10**9)
    wanted = exponential(-Fraction(r * r, 2 * t * t))
    assert accepted <= Fraction(wanted.high)
    assert Fraction(wanted.low) <= accepted + undecided


def delta_of_windows(sigma: float, windows: int, epsilon: float) -> float:
    """δ of ``windows`` releases of sensitivity 1, from the convolved masses: nothing of the accounting is used.

    The log ratio of a transcript is (windows − 2·Σx)/(2σ²), and Σx is a sum of independent discrete Gaussians.
    """
    x = np.arange(-math.ceil(14 * sigma) - 2, math.ceil(14 * sigma) + 3)
    mass = np.exp(-0.5 * (x / sigma) ** 2)
    mass /= mass.sum()
    total = np.array([1.0])
    for _ in range(windows):
        total = np.convolve(total, mass)
    support = np.arange(len(total)) - len(total) // 2
    ratio = (windows - 2 * support) / (2 * sigma**2)
    return float(np.maximum(total - np.exp(epsilon + np.minimum(-ratio, 600)) * total, 0).sum())


@pytest.mark.parametrize(
    ("rho", "windows"), [(10_000, 1), (50_000_000, 8), (5_000_000, 24), (500_000_000, 2), (4 * NANO, 1), (30 * NANO, 1)]
)
@pytest.mark.parametrize("delta", [1e-5, 1e-6, 1e-8, 1e-12])
def test_the_epsilon_stated_for_a_period_holds_for_the_whole_transcript_and_rho_taken_for_epsilon_does_not(
    rho, windows, delta
):
    t, s = gaussian_ratio(1, rho)
    stated, composed = epsilon_of_rho(windows * rho, delta), windows * rho / NANO
    assert delta_of_windows(t / s, windows, stated) <= delta
    assert stated <= composed + 2 * math.sqrt(composed * math.log(1 / delta)), "the simple bound"
    assert rho > 4 * NANO or delta_of_windows(t / s, windows, composed) > 100 * delta, "ρ stated as ε is no promise"
    forgotten = epsilon_of_rho(rho, delta)
    assert windows == 1 or delta_of_windows(t / s, windows, forgotten) > 10 * delta, "composition forgotten"
    true = optimize.brentq(lambda e: delta_of_windows(t / s, windows, e) - delta, 0, stated + 1)
    assert true <= stated, (true, stated)
    assert stated <= 1.25 * true + 0.02 or t < s / 2, "of so little noise few numbers occur"


@pytest.mark.false_alarm(0)
def test_opendp_gives_the_same_rho_for_the_same_noise_and_converts_it_alike():
    """Its map from zCDP to (ε, δ) states 0.6880024554878086 at scale 4, δ = 10⁻³."""
    assert epsilon_of_rho(NANO // 32, 1e-3) == pytest.approx(0.6880024554878, abs=1.1e-6)
    import opendp.prelude as opendp  # these imports take a second and only this test needs them

    opendp.enable_features("contrib")
    space = opendp.atom_domain(T=int), opendp.absolute_distance(T=float)
    for sensitivity, rho in SCALES:
        t, s = gaussian_ratio(sensitivity, rho)
        theirs = opendp.m.make_gaussian(*space, scale=t / s).map(float(sensitivity))
        ours = int(gaussian_losses(np.array([sensitivity]), t, s)[0]) / NANO
        assert theirs * (1 - 1e-12) <= ours <= theirs + 1.000001e-9
    for sigma, delta in [(2.0, 1e-6), (10.0, 1e-6), (0.5, 1e-9)]:
        theirs = opendp.c.make_zCDP_to_approxDP(opendp.m.make_gaussian(*space, scale=sigma)).map(1.0).epsilon(delta)
        assert theirs - 1e-9 <= epsilon_of_rho(math.ceil(NANO / (2 * sigma * sigma)), delta) <= theirs + 2e-6
