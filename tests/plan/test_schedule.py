"""Learning rates: the rules of batch ratio, and the schedule as a function of the step, against their closed forms."""
import math

import pytest

from hvdscale.errors import UsageError
from hvdscale.plan.scaling import lr_factor
from hvdscale.plan.schedule import DECAYS, FALLING, Schedule


@pytest.mark.parametrize("rule, factor", [
    ("linear", 16.0), ("sqrt", 4.0), ("none", 1.0), ("power:0.5", 4.0), ("power:1", 16.0), ("power:0", 1.0),
    ("power:-0.5", 0.25), ("power:0.75", 8.0), ("power:10", 16.0 ** 10)])
def test_a_rule_raises_the_batch_ratio_to_its_power(rule, factor):
    assert lr_factor(rule, 16.0) == pytest.approx(factor, rel=1e-15)
    assert lr_factor(rule, 1 / 16) == pytest.approx(1 / factor, rel=1e-15)
    assert lr_factor(rule, 1.0) == 1.0


@pytest.mark.parametrize("ratio, largest, factor", [(8.0, 5.0, 5.0), (4.0, 5.0, 4.0), (5.0, 5.0, 5.0), (0.5, 5.0, 0.5)])
def test_a_cap_bounds_the_factor_from_above_alone(ratio, largest, factor):
    assert lr_factor("linear", ratio, largest) == factor


@pytest.mark.parametrize("rule", ["cubic", "power", "power:", "power:x", "power:11", "power:-11",
                                  "power:nan", "power:inf", "power 2", "Linear", "", "linear:2"])
def test_a_rule_that_is_none_is_named(rule, worded):
    with worded.error(UsageError):
        lr_factor(rule, 2.0)


# Goyal et al. 2017: batch 8192, peak 0.1 x 32, five epochs of warmup from 0.1, x 0.1 at epochs 30, 60 and 80
EPOCH = 156
GOYAL = Schedule(3.2, 0.1, "gradual", 5 * EPOCH, "step", decay_at=(30 * EPOCH, 60 * EPOCH, 80 * EPOCH))


def test_a_gradual_warmup_climbs_by_equal_amounts_and_ends_at_the_peak():
    rates = [GOYAL.lr_at(step) for step in range(5 * EPOCH + 2)]
    climbs = [after - before for before, after in zip(rates, rates[1:])]
    assert climbs[:-1] == pytest.approx([3.1 / (5 * EPOCH)] * (5 * EPOCH), rel=1e-9)
    assert rates[-2:] == [3.2, 3.2]


def test_a_constant_warmup_holds_its_start_and_jumps_and_no_warmup_is_the_peak_at_once():
    schedule = Schedule(1.0, 0.25, "constant", 10)
    assert [schedule.lr_at(step) for step in (0, 9, 10, 11)] == [0.25, 0.25, 1.0, 1.0]
    assert Schedule(1.0, 0.25, "none", 10).lr_at(0) == 1.0
    assert Schedule(1.0, 0.25, "gradual", 0).lr_at(0) == 1.0


@pytest.mark.parametrize("warmup_steps", [0, 20])
@pytest.mark.parametrize("end", [0.0, 0.01, 1.0])
def test_linear_decay_reaches_its_factor_of_the_peak_and_stays(warmup_steps, end):
    schedule = Schedule(2.0, 0.5, "gradual", warmup_steps, "linear", decay_steps=120, end_lr_factor=end)
    assert schedule.lr_at(warmup_steps) == 2.0
    assert schedule.lr_at((warmup_steps + 120) // 2) == pytest.approx((1 + end))
    assert [schedule.lr_at(step) for step in (120, 121, 10**6)] == pytest.approx([2 * end] * 3, abs=1e-15)
    for step in range(warmup_steps, 121):
        done = (step - warmup_steps) / (120 - warmup_steps)
        assert schedule.lr_at(step) == pytest.approx(2.0 * ((1 - done) + done * end), abs=1e-12)


def test_cosine_decay_is_half_a_cosine_and_stays_at_its_end():
    schedule = Schedule(2.0, 2.0, "none", 0, "cosine", decay_steps=100, end_lr_factor=0.1)
    for step in range(0, 101):
        assert schedule.lr_at(step) == pytest.approx(0.2 + 1.8 * math.cos(math.pi * step / 200) ** 2, rel=1e-12)
    assert schedule.lr_at(10**6) == pytest.approx(0.2)


def test_step_decay_multiplies_at_each_of_its_steps():
    schedule = Schedule(1.0, decay="step", decay_at=(3, 5, 5), decay_factor=0.5)
    assert [schedule.lr_at(step) for step in range(7)] == [1, 1, 1, 0.5, 0.5, 0.125, 0.125]


@pytest.mark.parametrize("schedule, said", [
    (Schedule(0.3), "0.3"),
    (Schedule(3.2, 0.1, "gradual", 780), "0.1, climbing to 3.2 at step 780"),
    (Schedule(1.0, 0.5, "constant", 5, "cosine", 50, end_lr_factor=0.1),
     "0.5, held, then raised to 1 at step 5, cosine decay to 0.1 at step 50"),
    (Schedule(1.0, decay="step", decay_at=(3, 5), decay_factor=0.5), "1, x 0.5 at steps 3, 5")])
def test_a_schedule_in_words_has_the_numbers_that_it_depends_on(schedule, said):
    assert schedule.describe() == said
    assert Schedule.of({**vars(schedule), "seed": 0}) == schedule
    assert Schedule.of({"peak_lr": 1.0}) is None


def test_these_are_all_decays():
    """The only list of them among the tests."""
    assert DECAYS == ("constant", "step", *FALLING, "inverse_sqrt", "plateau")
    assert list(FALLING) == ["linear", "cosine", "1-sqrt"]


@pytest.mark.parametrize("decay, halfway", [("linear", 0.55), ("cosine", 0.55), ("1-sqrt", 1 - 0.9 * math.sqrt(0.5))])
def test_warmup_stable_decay_holds_the_peak_until_its_start(decay, halfway):
    schedule = Schedule(2.0, 0.0, "gradual", 10, decay, 200, end_lr_factor=0.1, decay_start=100)
    assert [schedule.lr_at(step) for step in (5, 10, 60, 100)] == [1.0, 2.0, 2.0, 2.0]
    assert [schedule.lr_at(step) / 2 for step in (150, 200, 300)] == pytest.approx([halfway, 0.1, 0.1], rel=1e-12)
    assert "held to step 100" in schedule.describe()


@pytest.mark.parametrize("decay", FALLING)
def test_a_decay_starts_by_default_where_the_warmup_ends(decay):
    of_warmup, none = (Schedule(1.0, 0.0, warmup, 10, decay, 50) for warmup in ("gradual", "none"))
    assert of_warmup.lr_at(30) == pytest.approx(1 - FALLING[decay](0.5))
    assert none.lr_at(25) == pytest.approx(1 - FALLING[decay](0.5))
    assert "held" not in of_warmup.describe()


def test_an_inverse_square_root_is_that_of_vaswani_et_al():
    """Equation 3 with d_model 512 and 4,000 steps of warmup, its step counted from 1."""
    def published(number):
        return 512 ** -0.5 * min(number ** -0.5, number * 4000 ** -1.5)

    schedule = Schedule(published(4000), 0.0, "gradual", 4000, "inverse_sqrt")
    assert [schedule.lr_at(step) for step in (1, 2000, 4000, 4001, 16_000, 100_000)] == pytest.approx(
        [published(step) for step in (1, 2000, 4000, 4001, 16_000, 100_000)], rel=1e-12)


def test_a_schedule_of_an_older_log_falls_from_the_end_of_the_warmup():
    schedule = Schedule(1.0, 0.0, "gradual", 10, "linear", 50)
    older = {name: value for name, value in vars(schedule).items() if name != "decay_start"}
    assert Schedule.of(older) == schedule and Schedule.of({"peak_lr": 1.0}) is None
