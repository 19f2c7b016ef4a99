"""The gradient noise scale beside the measured critical batch: the ratio, its interval, and what is said."""
import math
import re
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from hvdscale.analysis.intervals import Estimate, over, times
from hvdscale.analysis.noise import Noise, NoiseScale, noise_against
from hvdscale.cli.report import main
from hvdscale.report.document import sentences_of
from hvdscale.report.views.batches import noise_against_table, find_noise
from hvdscale.report.table import as_csv, as_text
from hvdscale.target import Target
from tests.factories.logs import log, save, trial

TARGET = Target.parse("val/error<0.01")
UNKNOWN = NoiseScale(*[math.nan] * 5, 0, 0, 0)


def scale(value, low, high):
    return NoiseScale(value, low, high, 1.0, value, 40, 0, 400)


def noise(value, low, high, quarters=((300, 250, 360), (700, 600, 800), (1200, 1000, 1400), (1500, 1300, 1700))):
    return Noise(scale(value, low, high), tuple(scale(*one) for one in quarters) or (UNKNOWN,) * 4)


def against(*measured, b_crit=Estimate(307, 200, 450, 10)):
    cells = [(SimpleNamespace(global_batch=batch, keys=((f"b{batch}.h5", 1),)), one) for batch, one in measured]
    return noise_against(TARGET, cells, b_crit)


def test_the_ratio_has_the_intervals_of_both():
    found = against((256, noise(900, 800, 1000)))
    assert found.ratio.value == pytest.approx(900 / 307)
    down = math.hypot(math.log(800 / 900), math.log(307 / 450))
    assert found.ratio.low == pytest.approx(900 / 307 * math.exp(-down))
    assert found.ratio.low < 900 / 450 and found.ratio.high > 900 / 200


def test_the_sentence_has_both_figures_their_ratio_and_how_far_to_trust_them():
    [said] = sentences_of([find_noise(against((256, noise(900, 800, 1000))))])
    assert said == ("The noise scale, 900 (800-1,000) examples at batch 256, is 2.93 (1.96-4.56) times the critical "
                    "batch that the steps to val/error<0.01 give, 310 (200-450): surely too large a guess. As "
                    "published, it may be 8 times too large or far too small; the steps are the measurement.")
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
    assert over(found.measured[0][1].whole.estimate, found.b_crit).high == math.inf


def test_without_a_fit_the_noise_scale_has_no_b_crit_beside_it():
    for b_crit in (None, Estimate(146, 0, math.inf, 4)):        # an open interval is no measurement
        [said] = sentences_of([find_noise(against((256, noise(900, 800, 1000)), b_crit=b_crit))])
        assert "a guess at the critical batch, which the steps to val/error<0.01 do not bound" in said
        assert " 146" not in said
    said = sentences_of([find_noise(against((256, noise(math.inf, 100, math.inf, ()))))])
    assert "cannot be distinguished from 0" in said[0]


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


def test_the_report_of_runs_at_several_batches_says_it_too(tmp_path):
    said = reported(tmp_path)
    assert re.search(r"The noise scale, \d+ \([^)]*\) examples at batch 1,024, is \d.\d+ \([^)]*\) times the critical "
                     r"batch that the steps to val/error<0.2 give", said)
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
