"""The noise scale out of a log: the unbiased pair, the ratio with its interval, and what the report says of it; and
beside the measured critical batch."""
import itertools
import math
import re
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

from hvdscale.analysis.intervals import Estimate, over, times
from hvdscale.analysis.noise import Noise, NoiseAgainst, NoiseScale, NoiseSteps, fieller, noise_scale, unbiased_pair
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.trials import read_trials
from hvdscale.cli.report import main
from hvdscale.log.schema import UNKNOWN_SEED
from hvdscale.report.document import sentences_of
from hvdscale.report.drawing import render
from hvdscale.report.table import as_csv, as_text
from hvdscale.report.views.batches import find_noise, noise_against_table
from hvdscale.target import Target
from tests.factories.logs import log, save, trial
from tests.factories.shown import figures_of, summary, tables_of


def measured(gradients, shares):
    """local_sqnorm, reduced_sqnorm and local_examples of examples' gradients, shape (B, parameters), share by share."""
    bounds = np.cumsum([0, *shares])
    local = [gradients[a:b].mean(0) for a, b in zip(bounds, bounds[1:])]
    return (np.average([mean @ mean for mean in local], weights=shares), gradients.mean(0) @ gradients.mean(0),
            np.mean(shares))


def drawn(steps, grad_sqnorm=4.0, cov_trace=8.0, shares=(4, 4), seed=0):
    """(local_sqnorm, reduced_sqnorm, local_examples) of steps whose examples are drawn about a true gradient."""
    random = np.random.default_rng(seed)
    true = np.full(8, math.sqrt(grad_sqnorm / 8))
    return [measured(true + random.standard_normal((sum(shares), 8)) * math.sqrt(cov_trace / 8), shares)
            for _ in range(steps)]


def with_noise(sqnorms, **changes):
    """A trial with a step for each of these."""
    return trial(steps=(0, len(sqnorms)), error=(0.9, 0.1), step_seconds=[0.01] * len(sqnorms), sqnorms=sqnorms,
                 **{"batch": 8, "workers": 2, **changes})


def section_of(*trials):
    [group] = analyse(read_trials(log(*trials)))
    [section] = group.sections
    return section


def test_shares_of_one_example_give_the_sample_covariance_itself():
    gradients = np.random.default_rng(0).standard_normal((7, 3)) + 1
    local, reduced, examples = measured(gradients, [1] * 7)
    cov_trace = np.trace(np.cov(gradients.T))
    assert unbiased_pair(local, reduced, examples, 7) == pytest.approx((reduced - cov_trace / 7, cov_trace))


@pytest.mark.parametrize("shares", [(2, 2), (3, 2), (1, 4), (1, 2, 3)])
def test_the_pair_is_unbiased_for_even_and_uneven_shares(shares):
    batch = sum(shares)                         # every outcome of examples whose gradient is 3 + 2 or 3 - 2
    pairs = [unbiased_pair(*measured(3 + 2 * np.array(signs, float)[:, None], shares), batch)
             for signs in itertools.product((-1, 1), repeat=batch)]
    assert np.mean(pairs, axis=0) == pytest.approx((9, 4), abs=1e-12)


def test_the_true_gradient_adds_no_noise_to_the_covariance_of_uneven_shares():
    gradients = np.random.default_rng(0).standard_normal((7, 3))
    traces = [unbiased_pair(*measured(gradients + away, (4, 2, 1)), 7)[1] for away in (0, 1000)]
    assert traces[0] == pytest.approx(traces[1])


def test_numerator_and_denominator_are_averaged_apart():
    steps = NoiseSteps(np.arange(3), np.array([1.0, 3.0, 2.0]), np.array([10.0, 50.0, 30.0]))
    scale = noise_scale([steps])
    assert (scale.value, scale.grad_sqnorm, scale.cov_trace, scale.runs) == (15, 2, 30, 3)
    assert math.isnan(scale.low) and math.isnan(scale.high)        # three steps are too few
    none = noise_scale([])
    assert math.isnan(none.value) and none.runs == 0


def test_what_is_not_told_from_zero_leaves_that_end_of_the_interval_open():
    random = np.random.default_rng(1)
    around_zero = noise_scale([NoiseSteps(np.arange(50), random.standard_normal(50) + 0.05,
                                          100 + random.standard_normal(50))])
    assert around_zero.high == math.inf and 0 < around_zero.low < 1000
    negative = noise_scale([NoiseSteps(np.arange(50), -1 - random.random(50), 100 + random.random(50))])
    assert (negative.value, negative.low, negative.high) == (math.inf, 0, math.inf)
    silent = noise_scale([NoiseSteps(np.arange(50), 5 + random.standard_normal(50), random.standard_normal(50) - 0.1)])
    assert silent.value == 0 == silent.low and 0 < silent.high < 0.2


def test_fiellers_interval_holds_the_ratios_that_a_t_test_does_not_reject():
    means, covariance, t = np.array([2.0, 6.0]), np.array([[0.2, 0.1], [0.1, 0.5]]), 2.0
    low, high = fieller(means, covariance, t)
    ratios = np.linspace(0, 20, 200_001)
    variance = covariance[1, 1] - 2 * ratios * covariance[0, 1] + ratios ** 2 * covariance[0, 0]
    kept = ratios[(means[1] - ratios * means[0]) ** 2 <= t ** 2 * variance]
    assert (low, high) == pytest.approx((kept.min(), kept.max()), abs=2e-4)
    unbounded = fieller(means, 9 * covariance, t)
    assert unbounded[1] == math.inf


def test_steps_that_were_not_measured_or_overflowed_take_no_part():
    sqnorms = [row for one in drawn(10) for row in (one, None, (math.inf, math.inf, 4.0))]
    scale = section_of(with_noise(sqnorms)).cells[0].noise.whole
    alone = section_of(with_noise(drawn(10))).cells[0].noise.whole
    assert scale.runs == 10 and (scale.first_step, scale.last_step) == (1, 28)
    assert (scale.value, scale.low, scale.high) == (alone.value, alone.low, alone.high)


def test_steps_under_several_worker_counts_are_one_estimate():
    sqnorms = [*drawn(300), *drawn(300, shares=(2, 2, 2, 2), seed=1), *drawn(300, shares=(3, 3, 2), seed=2)]
    scale = section_of(with_noise(sqnorms)).cells[0].noise.whole
    assert scale.low < 2 < scale.high < 1.3 * scale.low
    assert scale.cov_trace == pytest.approx(8, rel=0.1) and scale.grad_sqnorm == pytest.approx(4, rel=0.1)


@pytest.mark.parametrize("known", [True, False])
def test_seeds_of_one_setting_are_pooled_and_narrow_the_interval(known):
    seeds = [with_noise(drawn(40, seed=seed), id=seed, seed=seed if known else UNKNOWN_SEED) for seed in range(4)]
    one, four = (section_of(*trials).cells[0].noise.whole for trials in (seeds[:1], seeds))
    assert (one.runs, four.runs) == (40, 160)
    assert math.log(four.high / four.low) < 0.7 * math.log(one.high / one.low)
    assert four.low < 2 < four.high


def test_quarters_show_how_the_noise_scale_grows():
    sqnorms = [one for fall in (1, 4, 16, 64) for one in drawn(50, grad_sqnorm=64 / fall, seed=fall)]
    quarters = section_of(with_noise(sqnorms)).cells[0].noise.quarters
    assert [(q.first_step, q.last_step) for q in quarters] == [(1, 50), (51, 100), (101, 150), (151, 200)]
    for quarter, truth in zip(quarters, (1 / 8, 1 / 2, 2, 8)):
        assert quarter.low < truth < quarter.high


def test_a_log_without_the_columns_has_no_noise_scale():
    made = log(trial(step_seconds=[0.01] * 20))
    assert all(found.noise is None for found in read_trials(made))
    assert section_of(trial()).noise == ()


def test_the_report_shows_the_noise_scale_of_each_batch_with_its_interval(worded):
    section = section_of(*[with_noise(drawn(40, shares=(4,) * workers), workers=workers, batch=4 * workers, id=workers)
                           for workers in (2, 4)])
    table = next(table for table in tables_of(section) if table.name == "noise-scale")
    for row, (cell, noise) in zip(table.rows, section.noise):
        shown = dict(zip((column.key for column in table.columns), row.cells))
        assert shown["noise_scale"].value == noise.whole.cov_trace / noise.whole.grad_sqnorm
        assert shown["noise_scale"].low < 2 < shown["noise_scale"].high
        assert shown["measured_steps"].value == 40 and shown["global_batch"].value == cell.global_batch
    assert all("McCandlish" in column.source for column in table.columns if "noise" in column.key)
    assert max(map(len, as_text(table).splitlines())) <= 100
    worded(summary(section), about="Gradient noise")
    figure = next(figure for figure in figures_of(section) if figure.name == "noise-scale")
    assert b"noise scale (examples)" in render(figure, "svg")


def of_gradient(grad_sqnorms):
    """Steps of 2 shares of 4 examples whose estimates are these |G|^2, and a tr(Sigma) of 80."""
    return [(one + 20, one + 10, 4.0) for one in grad_sqnorms]


def test_a_quarter_whose_gradient_came_out_below_zero_has_a_mark_of_its_own():
    section = section_of(with_noise([*drawn(30), *of_gradient([-1, -2] * 5)]))
    quarters = section.noise[0][1].quarters
    assert [math.isinf(quarter.value) for quarter in quarters] == [False] * 3 + [True]
    table = next(table for table in tables_of(section) if table.name == "noise-scale")
    assert [cell.shown for cell in table.rows[0].cells].count("?") == 1
    assert "? the estimate of |G|^2 came out below 0." in table.notes
    assert not any(note.startswith("n/a") for note in table.notes)


@pytest.mark.parametrize("last, arrows", [([4, 5], 0), ([5, -4], 1)])
def test_a_quarter_whose_interval_has_no_upper_end_is_drawn_with_an_arrow(last, arrows, worded):
    from matplotlib.figure import Figure
    section = section_of(with_noise(of_gradient([4, 5] * 15 + last * 5)))
    quarters = section.noise[0][1].quarters
    assert [math.isinf(quarter.high) for quarter in quarters].count(True) == arrows
    assert all(math.isfinite(quarter.value) for quarter in quarters)
    figure = next(figure for figure in figures_of(section) if figure.name == "noise-scale")
    axes = Figure().add_subplot()
    figure.draw(axes)
    worded(figure.caption, about="one with")
    assert len(axes.texts) == arrows


def test_the_summary_is_of_the_batch_at_which_the_noise_scale_is_known_best_and_names_only_certain_changes(worded):
    section = section_of(with_noise(drawn(200), batch=8, id=1), with_noise(drawn(10), batch=16, id=2))
    [said] = [said for said in summary(section) if said.startswith("Gradient noise scale at global batch 8: ")]
    worded(said)
    without_end = "\n".join(map(as_text, tables_of(section_of(with_noise(drawn(40, grad_sqnorm=1e-6))))))
    worded(without_end, about="An interval")
    assert "> " in without_end


def test_a_section_of_the_same_runs_does_not_show_them_twice():
    trials = read_trials(log(with_noise(drawn(40))))
    [group] = analyse(trials, [Target.parse("val/error<0.2"), Target.parse("val/error<0.3")])
    assert [len(section.noise) for section in group.sections] == [1, 0]


def test_quarters_of_too_few_measured_steps_are_left_out(worded):
    section = section_of(with_noise(drawn(12)))
    [(_, noise)] = section.noise
    assert noise.whole.runs == 12 and all(math.isnan(quarter.value) for quarter in noise.quarters)
    shown = as_text(tables_of(section)[-1])
    assert shown.count(" n/a ") == 4 and "?" not in shown
    worded(shown, about="a quarter")
    assert not [figure for figure in figures_of(section) if figure.name == "noise-scale"]


# beside the measured critical batch

TARGET = Target.parse("val/error<0.01")
UNKNOWN = NoiseScale.unknown()


def scale(value, low, high):
    return NoiseScale(value, low, high, 40, grad_sqnorm=1.0, cov_trace=value, last_step=400)


def noise(value, low, high, quarters=((300, 250, 360), (700, 600, 800), (1200, 1000, 1400), (1500, 1300, 1700))):
    return Noise(scale(value, low, high), tuple(scale(*one) for one in quarters) or (UNKNOWN,) * 4)


def against(*measured, b_crit=Estimate(307, 200, 450, 10)):
    cells = [(SimpleNamespace(global_batch=batch, keys=((f"b{batch}.h5", 1),)), one) for batch, one in measured]
    return NoiseAgainst(TARGET, cells, b_crit)


def test_the_ratio_has_the_intervals_of_both():
    found = against((256, noise(900, 800, 1000)))
    assert found.ratio.value == pytest.approx(900 / 307)
    down = math.hypot(math.log(800 / 900), math.log(307 / 450))
    assert found.ratio.low == pytest.approx(900 / 307 * math.exp(-down))
    assert found.ratio.low < 900 / 450 and found.ratio.high > 900 / 200


def test_the_sentence_has_both_figures_their_ratio_and_how_far_to_trust_them(worded):
    [said] = sentences_of([find_noise(against((256, noise(900, 800, 1000))))])
    worded(said)
    notes = " ".join(noise_against_table(against((256, noise(900, 800, 1000)))).notes)
    assert "McCandlish et al. 2018" in notes and "Merrill et al. 2025" in notes


@pytest.mark.parametrize("measured, b_crit, said", [
    ((900, 800, 1000), (4020, 251, math.inf), "only show to be at least 250: the intervals leave open"),
    ((900, 800, 1000), (math.inf, 251, math.inf), "only show to be at least 250. As published"),
    ((900, 800, 1000), (60, 0.0, 90), "only show to be at most 90: surely too large a guess"),
    ((320, 200, 500), (307, 200, 450), "leave open whether they differ"),
    ((30, 25, 36), (307, 200, 450), "surely too small a guess")])
def test_the_verdict_follows_the_intervals_and_of_one_end_no_value_is_told(measured, b_crit, said):
    [text] = sentences_of([find_noise(against((256, noise(*measured)), b_crit=Estimate(*b_crit, 10)))])
    assert said in text and ("times the critical batch" in text) == (0 < b_crit[1] and math.isfinite(b_crit[2]))


def test_the_batch_whose_noise_scale_is_known_best_is_chosen():
    found = against((64, noise(900, 100, math.inf)), (256, noise(800, 700, 900)), (1024, noise(850, 300, 2000)))
    assert found.chosen[0].global_batch == 256 and [cell.global_batch for cell, _ in found.measured] == [64, 256, 1024]
    assert over(found.measured[0][1].whole, found.b_crit).high == math.inf


def test_without_a_fit_the_noise_scale_has_no_b_crit_beside_it(worded):
    for b_crit in (None, Estimate(146, 0, math.inf, 4)):        # an open interval is no measurement
        [said] = sentences_of([find_noise(against((256, noise(900, 800, 1000)), b_crit=b_crit))])
        worded(said, about="a guess")
        assert " 146" not in said
    said = sentences_of([find_noise(against((256, noise(math.inf, 100, math.inf, ()))))])
    worded(said[0], about="cannot be")


def reported(tmp_path, *arguments):
    """What the report says, in one line, of runs at five batches that measured a noise scale of about 400."""
    made = []
    for at, batch in enumerate((32, 64, 128, 256, 1024)):
        steps = 50 + 12800 // batch
        rows = [(1 + (1 + 0.1 * (step % 3 - 1)) * 800 / batch, 1 + 400 / batch, batch / 2) for step in range(steps)]
        made.append(trial(at, (0, steps - 5, steps), (0.9, 0.5, 0.1), batch=batch, workers=2, sqnorms=rows,
                          step_seconds=[0.01] * steps, keep_going=True))
    done = CliRunner().invoke(main, [save(log(*made), tmp_path / f"{len(arguments)}.h5"), *arguments])
    assert done.exit_code == 0
    return " ".join(done.output.split())


def test_the_report_of_runs_at_several_batches_says_it_too(tmp_path, worded):
    said = reported(tmp_path)
    worded(said, about="The noise")
    critical = re.search(r"Critical batch \(E_min / S_min\): (\d+ \([^)]*\));", said)[1]
    assert critical in said.partition("The noise scale")[2]
    assert "--budget" not in said and "--budget plays no part here" in reported(tmp_path, "--budget", "5 seconds")


def test_the_table_names_the_trials_and_is_of_what_was_measured():
    table = noise_against_table(against((64, noise(900, 100, math.inf)), (256, noise(900, 800, 1000, ()))))
    assert table.rows[1].trials == (("b256.h5", 1),) and "n/a" in as_text(table) and as_csv(table)


def test_products_have_the_intervals_of_their_factors():
    known, single = Estimate(10, 8, 12, 5), Estimate(4, math.nan, math.nan, 1)
    unmet = Estimate(math.inf, 50, math.inf, 3, 50)
    assert times(known, single).value == 40 and math.isnan(times(known, single).low)
    assert over(unmet, known).value == math.inf and over(unmet, known).beyond == 5
    assert over(unmet, known).low == 50 / 12
    assert math.isnan(over(known, unmet).value) and over(known, Estimate(5, 0, math.inf, 2)).high == math.inf
    both = times(known, known)
    assert both.low == pytest.approx(100 * math.exp(-math.sqrt(2) * math.log(10 / 8)))


# The interval covers the truth as often as it says, on a quadratic whose noise is known. The loss of example i is
# (theta - c_i)' H (theta - c_i) / 2, c_i of covariance C about 0: its gradient is H (theta - c_i), so that G = H theta
# and Sigma = H C H. Every example's gradient is drawn, averaged over its share, and the square norms are taken as a run
# takes them.

RUNS, PARAMETERS = 200, 16
CURVATURE = np.linspace(0.2, 1, PARAMETERS)


@dataclass(frozen=True)
class Case:
    """A regime: shares of a step (one worker's parts, or the workers'), and the ratio of B to the noise scale."""

    name: str
    shares: tuple[int, ...]
    batch_ratio: float          # B / noise scale, at the start
    steps: int = 40             # measured
    spectrum: float = 0.0       # eigenvalue i of Sigma is i ** -spectrum: 2 leaves one or two directions
    tails: bool = False         # per-example noise of Student's t with 5 degrees of freedom
    lr: float = 0.0             # of SGD with the measured gradients; 0: theta stays


CASES = (
    Case("2 workers, B far above the noise scale", (32, 32), 10), Case("2 workers, B at it", (32, 32), 1),
    Case("2 workers, B a tenth", (32, 32), 0.1),
    Case("2 workers, B a hundredth: |G|^2 is not told from 0", (32, 32), 0.01),
    Case("3 workers, uneven shares", (32, 32, 16), 0.5), Case("3 workers, a last group of one", (3, 3, 1), 0.5),
    Case("1 worker, one of two ghost groups and the rest", (16, 16), 0.5),
    Case("1 worker, an eighth and the rest", (32, 224), 0.5),
    Case("1 worker, an eighth and the rest, B far above", (32, 224), 20),
    Case("1 worker, a small eighth and the rest, heavy tails", (2, 14), 0.5, tails=True),
    Case("8 workers", (32,) * 8, 0.5),
    Case("10 measured steps", (32, 32), 0.5, steps=10), Case("5 measured steps", (32, 32), 1, steps=5),
    Case("noise in few directions", (32, 32), 0.5, spectrum=2),
    Case("noise in few directions, 10 measured steps", (32, 32), 1, steps=10, spectrum=2),
    Case("heavy tails", (32, 32), 0.5, tails=True, spectrum=1),
    Case("SGD descends, |G|^2 falls 100-fold", (32, 32), 20, steps=60, lr=0.05),
    Case("SGD with a large rate wanders about the minimum", (8, 8), 2, steps=100, lr=0.5),
    Case("SGD descends, uneven shares", (32, 32, 16), 10, steps=60, lr=0.05, spectrum=1),
)


def simulated(case: Case, runs: int, seed: int = 0):
    """What ``runs`` runs measured, and the noise scale of each in truth: mean tr(Sigma) over mean |G|^2 on its path."""
    random = np.random.default_rng(seed)
    batch, bounds = sum(case.shares), np.cumsum([0, *case.shares[:-1]])
    deviations = np.arange(1, PARAMETERS + 1.0) ** (-case.spectrum / 2)
    cov_trace = (deviations ** 2).sum()
    theta = random.standard_normal((runs, PARAMETERS)) / CURVATURE
    theta *= np.sqrt(cov_trace * case.batch_ratio / batch) / np.linalg.norm(CURVATURE * theta, axis=1, keepdims=True)
    measured, sqnorms = np.empty((case.steps, 2, runs)), np.empty((case.steps, runs))
    for step in range(case.steps):
        drawn = (random.standard_t(5, (runs, batch, PARAMETERS)) * np.sqrt(3 / 5) if case.tails
                 else random.standard_normal((runs, batch, PARAMETERS)))
        gradients = (CURVATURE * theta)[:, None] + deviations * drawn
        sums = np.add.reduceat(gradients, bounds, axis=1)
        reduced = sums.sum(1) / batch
        sqnorms_by_share = ((sums / np.array(case.shares)[:, None]) ** 2).sum(2)
        local_sqnorm = sqnorms_by_share @ np.array(case.shares) / batch
        measured[step] = unbiased_pair(local_sqnorm, (reduced ** 2).sum(1), batch / len(case.shares), batch)
        sqnorms[step] = ((CURVATURE * theta) ** 2).sum(1)
        theta = theta - case.lr * reduced
    steps = np.arange(case.steps)
    return [NoiseSteps(steps, *measured[:, :, run].T) for run in range(runs)], cov_trace / sqnorms.mean(0)


def outcome(case: Case, runs: int = RUNS):
    """Share of runs whose interval covers, share without an upper end, and the median ratio of ends of the others."""
    measured, truths = simulated(case, runs)
    scales = [noise_scale([one]) for one in measured]
    covered = np.mean([scale.low <= truth <= scale.high for scale, truth in zip(scales, truths)])
    widths = [scale.high / scale.low for scale in scales if np.isfinite(scale.high) and scale.low > 0]
    return covered, np.mean([np.isinf(scale.high) for scale in scales]), np.median(widths) if widths else np.nan


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_interval_covers_the_truth_in_nine_of_ten_runs(case):
    covered, _, _ = outcome(case)
    assert covered >= 0.9


def test_the_interval_is_bounded_only_near_the_noise_scale_and_no_wider_for_a_drift():
    for case in (Case("at it", (32, 32), 1), Case("|G|^2 falls 100-fold", (32, 32), 20, steps=60, lr=0.05)):
        _, unbounded, width = outcome(case, 100)
        assert unbounded == 0 and width < 2
    _, unbounded, _ = outcome(Case("far below it", (32, 32), 0.01), 100)
    assert unbounded > 0.8
