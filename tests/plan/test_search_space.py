"""A study's space: values against closed forms, and points that are spread evenly and the same everywhere."""
import json
import math
import warnings

import numpy as np
import pytest
from scipy import stats
from scipy.stats import qmc

from hvdscale.errors import HvdscaleError
from hvdscale.plan.search_space import BITS, Parameter, discrete, draws, layer_of, scrambled_sobol

ALMOST_1 = 1 - 2.0**-53
LINEAR = Parameter("label_smoothing", "double", "linear", -0.5, 2.0)
LOG = Parameter("lr", "double", "log", 1e-4, 10.0)
REVERSE_LOG = Parameter("momentum", "double", "reverse_log", 0.9, 0.9999)
STEPS = Parameter("decay_steps", "integer", "linear", 3, 9)
LOG_STEPS = Parameter("warmup_steps", "integer", "log", 1, 50)
SMOOTHING = discrete("label_smoothing", [0.0, 0.01, 0.1])
ALL = [LINEAR, LOG, REVERSE_LOG, STEPS, LOG_STEPS, SMOOTHING]
PINNED = [[455204825, 56939903, 873525156], [932614135, 542911307, 57934719], [540180027, 362837102, 770310027]]

# the inverse of each double's distribution, as scipy.stats has it
QUANTILES = [(LINEAR, lambda u: stats.uniform(-0.5, 2.5).ppf(u)), (LOG, lambda u: stats.loguniform(1e-4, 10).ppf(u)),
             (REVERSE_LOG, lambda u: 1 - stats.loguniform(1e-4, 0.1).ppf(1 - u))]


def kinds(parameter):
    return f"{parameter.type}-{parameter.scale}" if isinstance(parameter, Parameter) else ""


# values

@pytest.mark.parametrize("parameter, quantile", QUANTILES, ids=kinds)
def test_a_doubles_values_are_the_quantiles_of_its_distribution(parameter, quantile):
    for u in [0.0, 2.0**-30, *np.linspace(0.01, 0.99, 99), 1 - 2.0**-30]:
        assert parameter.at(u) == pytest.approx(quantile(u), rel=1e-12)


def test_every_integer_has_the_same_share_of_a_linear_scale():
    shares = [STEPS.at((i + 0.5) / 700) for i in range(700)]
    assert shares == sorted(shares) and [shares.count(k) for k in range(3, 10)] == [100] * 7
    assert all(type(value) is int for value in shares)


def test_an_integers_share_of_a_log_scale_is_its_half_open_interval():
    whole, before = math.log(50.5 / 0.5), 0.0
    for k in range(1, 51):
        share = math.log((2 * k + 1) / (2 * k - 1)) / whole
        assert {LOG_STEPS.at(before + share * inside) for inside in (1e-9, 0.5, 1 - 1e-9)} == {k}
        before += share
    assert before == pytest.approx(1)


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_discrete_values_have_equal_shares_in_their_order(count):
    parameter = discrete("decay", [f"value {k}" for k in range(count)])
    for i in range(20 * count):
        assert parameter.at((i + 0.5) / (20 * count)) == f"value {i // 20}"


@pytest.mark.parametrize("parameter", ALL, ids=kinds)
def test_no_value_lies_beyond_the_bounds_and_both_ends_are_reached(parameter):
    ends = parameter.at(0.0), parameter.at(ALMOST_1)
    low, high = (parameter.values[0], parameter.values[-1]) if parameter.values else (parameter.low, parameter.high)
    assert ends[0] == low and ends[1] == pytest.approx(high, rel=1e-12) and ends[1] <= high
    values = [parameter.at(u) for u in np.linspace(0, ALMOST_1, 1001)]
    assert values == sorted(values) and low <= min(values) and max(values) <= high


def test_bounds_may_be_as_far_apart_as_numbers_go_or_equal():
    far = Parameter("lr", "double", "log", 1e-300, 1e300)
    assert [far.at(u) for u in (0, 0.25, 0.5)] == pytest.approx([1e-300, 1e-150, 1.0])
    assert far.position(1.0) == pytest.approx(0.5)
    for kind in ("double", "integer"):
        one = Parameter("warmup_steps", kind, "log", 3, 3)
        assert [one.at(u) for u in (0.0, 0.5, ALMOST_1)] == [3] * 3 and one.position(3) == 0.5
    assert discrete("decay", ["linear"]).position("linear") == 0.5


@pytest.mark.parametrize("parameter", [LINEAR, LOG, REVERSE_LOG], ids=kinds)
def test_a_values_position_is_its_share_of_the_scale(parameter):
    for u in np.linspace(0, 1, 41):
        assert parameter.position(parameter.at(u)) == pytest.approx(u, abs=1e-10)
    assert (parameter.position(parameter.low), parameter.position(parameter.high)) == (0, 1)


def test_an_integers_or_a_discrete_values_position_goes_from_bound_to_bound():
    assert [STEPS.position(k) for k in (3, 6, 9)] == [0, 0.5, 1]
    assert [LOG_STEPS.position(k) for k in (1, 50)] == [0, 1]
    assert LOG_STEPS.position(7) == pytest.approx(math.log(7) / math.log(50))
    assert [SMOOTHING.position(value) for value in (0, 0.01, 0.1)] == [0, 0.5, 1]
    with pytest.raises(ValueError):
        SMOOTHING.position(0.2)


@pytest.mark.parametrize("parameter", [LINEAR, LOG, REVERSE_LOG, STEPS, LOG_STEPS], ids=kinds)
def test_a_value_beyond_a_bound_has_the_bounds_position(parameter):
    for beyond in (-math.inf, -1.0, parameter.low):
        assert parameter.position(beyond) == 0
    for beyond in (parameter.high, 60, 1e9, math.inf):
        assert parameter.position(beyond) == 1


@pytest.mark.parametrize("parameter", ALL, ids=kinds)
def test_a_parameter_comes_back_from_its_record_as_json(parameter):
    record = parameter.record()
    back = Parameter.of(json.loads(json.dumps(record, allow_nan=False)))
    assert back.record() == record
    assert [back.at(u / 9) for u in range(9)] == [parameter.at(u / 9) for u in range(9)]
    assert [type(value) for value in back.values] == [type(value) for value in parameter.values]


# points

@pytest.mark.parametrize("seed", [0, 1, 2**63 - 1])
@pytest.mark.parametrize("dimensions", [1, 2, 5])
def test_each_of_2_to_the_k_shares_of_a_dimension_has_one_point(dimensions, seed):
    for k in range(9):
        points = scrambled_sobol(dimensions, 2**k, seed)
        assert points.shape == (2**k, dimensions) and (0 <= points).all() and (points < 1).all()
        for column in (points * 2**k).astype(int).T:
            assert sorted(column) == list(range(2**k))


@pytest.mark.parametrize("seed", [3, 4])
def test_each_box_of_the_same_size_in_two_dimensions_has_one_point(seed):
    points = scrambled_sobol(2, 64, seed)
    for k in range(7):
        boxes = (points * [2**k, 2**(6 - k)]).astype(int)
        assert len({tuple(box) for box in boxes}) == 64


@pytest.mark.parametrize("parameter, quantile", QUANTILES, ids=kinds)
def test_draws_have_a_small_kolmogorov_distance_to_the_closed_form(parameter, quantile):
    shares = np.linspace(0, 1, 2001)
    for seed in range(5):
        for count in (16, 256, 1024):
            values = [point[parameter.name] for point in draws([LOG_STEPS, parameter], count, seed)]
            below = np.searchsorted(np.sort(values), quantile(shares)) / count
            assert np.abs(below - shares).max() <= 1 / count + 1e-9       # one in each share: 1/sqrt(count) at random


def test_of_discrete_and_integer_draws_each_value_has_its_share():
    for seed in range(5):
        points = draws([SMOOTHING, STEPS, LOG_STEPS], 512, seed)
        for value in SMOOTHING.values:
            assert sum(point["label_smoothing"] == value for point in points) == pytest.approx(512 / 3, abs=1.01)
        for k in range(3, 10):
            assert sum(point["decay_steps"] == k for point in points) == pytest.approx(512 / 7, abs=2.01)
        ones = sum(point["warmup_steps"] == 1 for point in points)
        assert ones == pytest.approx(512 * math.log(3) / math.log(101), abs=1.01)


def test_more_points_and_dimensions_continue_fewer_without_a_warning():
    longest = draws(ALL, 200, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for count in (0, 1, 2, 3, 12, 36, 64, 65, 129):
            assert draws(ALL, count, 7) == longest[:count]
    assert len({json.dumps(point) for point in longest}) == 200
    np.testing.assert_array_equal(scrambled_sobol(3, 20, 1), scrambled_sobol(4, 20, 1)[:, :3])


def test_the_same_seed_gives_the_same_points_in_every_release_of_numpy_and_scipy_and_others_others():
    assert draws(ALL, 20, 5) == draws(ALL, 20, 5)
    firsts = {draws([LOG], 1, seed)[0]["lr"] for seed in range(200)}
    assert len(firsts) == 200
    assert [[round(u * 2**BITS) for u in point] for point in scrambled_sobol(3, 3, 12345)] == PINNED


def test_the_same_point_of_many_seeds_is_spread_evenly():
    for k in (0, 5):
        points = np.array([scrambled_sobol(2, k + 1, seed)[k] for seed in range(400)])
        for column in points.T:
            assert stats.kstest(column, "uniform").statistic < 1.63 / math.sqrt(400)        # the 1 % point
        assert abs(np.corrcoef(points.T)[0, 1]) < 0.15


def test_the_scramble_is_unit_lower_triangular_with_a_shift():
    seed, dimensions, count = 9, 3, 8
    raw = iter(np.random.Philox(key=seed).random_raw(dimensions * BITS * (BITS + 1)).tolist())
    whole = qmc.Sobol(dimensions, scramble=False, bits=BITS).random_base2(3)
    for d in range(dimensions):
        rows = [[next(raw) >> 63 for _ in range(BITS)] for _ in range(BITS)]
        shift = [next(raw) >> 63 for _ in range(BITS)]
        for n in range(count):
            digits = [int(digit) for digit in f"{int(whole[n, d] * 2**BITS):0{BITS}b}"]
            expected = ""
            for i in range(BITS):
                expected += str((sum(rows[i][j] * digits[j] for j in range(i)) + digits[i] + shift[i]) % 2)
            assert scrambled_sobol(dimensions, count, seed)[n, d] == int(expected, 2) / 2**BITS


# a point as settings

def test_a_points_entries_are_set_in_their_tables_and_what_does_not_act_left_out():
    point = {"lr": 0.1, "model_args.dropout": 0.2, "model_args.width": 3, "optimizer_args.alpha": 0.9}
    assert layer_of(point) == {"lr": 0.1, "model_args": {"dropout": 0.2, "width": 3}, "optimizer_args": {"alpha": 0.9}}
    point = {"decay": "constant", "decay_steps": 30, "end_lr_factor": 0.1, "warmup": "none", "warmup_steps": 3}
    assert layer_of(point) == {"decay": "constant", "warmup": "none"}
    assert layer_of({**point, "decay": "linear"}) == {
        "decay": "linear", "decay_steps": 30, "end_lr_factor": 0.1, "warmup": "none"}
    assert layer_of({"decay_steps": 30, "momentum": 0.9}) == {"decay_steps": 30, "momentum": 0.9}


def test_points_that_a_process_computed_wrongly_are_an_error(monkeypatch, worded):
    monkeypatch.setattr(qmc.Sobol, "random_base2", lambda self, m: np.zeros((2 ** m, self.d)))
    with worded.error(HvdscaleError):
        draws([LOG], 9, 1)
