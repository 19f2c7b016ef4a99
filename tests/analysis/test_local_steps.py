"""Steps, time and plans of replicas that are synchronized every H steps: the law, its regimes, and what is faster."""
import math

import numpy as np
import pytest

from hvdscale.analysis.curves import Regimes
from hvdscale.analysis.report_data import analyse
from hvdscale.analysis.step_time import LAWS, Links
from hvdscale.analysis.studies import studies_of
from hvdscale.analysis.trials import EVERY_STEP, read_trials
from hvdscale.analysis.worker_plan import APART, Request, plans_of
from hvdscale.report.document import Finding
from hvdscale.report.plan.make import document_of_plans
from hvdscale.report.pages import document_of_logs
from hvdscale.report.runs import Report
from hvdscale.report.subject import Subject
from hvdscale.report.views.local_steps import best_within, by_replicas, exchanges, local_steps
from hvdscale.target import Target
from tests.factories.local_steps import CRITICAL, EVERY, TRUE, run, seconds_at, steps_at, study
from tests.factories.logs import log


def section_of(*trials):
    [group] = analyse(read_trials(log(*trials)))
    [section] = group.sections
    return section


def plan(*trials, workers=(4,), links=None, **request):
    [group] = analyse(read_trials(log(*trials)))
    [found] = plans_of(group, Request(workers, **{"global_batch": 64, "per_node": 1, **request}), links=links)
    return found


def report(*trials):
    return Report(document_of_logs([log(*trials)]))


def kinds(*trials):
    return [part.kind for part in local_steps(Subject(**vars(section_of(*trials)))) if isinstance(part, Finding)]


def test_regimes_and_the_law_are_recovered():
    [cells] = by_replicas(section_of(*study()).synced)
    found = Regimes([cell.sync[1] for cell in cells], list(map(exchanges, cells)))
    assert found.perfect_until.value == max(one for one in EVERY if steps_at(one) <= 1.25 * steps_at(1)) == 4
    fewest = min(steps_at(one) / one for one in EVERY)
    assert found.maximum_useful.value == min(one for one in EVERY if steps_at(one) / one <= 1.2 * fewest) == 64
    assert found.fit.b_crit.low < CRITICAL < found.fit.b_crit.high < 2 * CRITICAL
    assert [exchanges(cell).value * every for cell, every in zip(cells, EVERY)] == pytest.approx(
        [steps_at(every) for every in EVERY], rel=0.06)
    assert section_of(run(), run(seed=1)).synced == ()


def test_synchronous_runs_are_beside_each_number_of_replicas_of_their_batch():
    section = section_of(*study(), *(run((2, 16), seed) for seed in range(3)), run((4, 16), batch=128))
    assert [(len(own), own[0].sync[0], own[0].global_batch) for own in by_replicas(section.synced)] == [
        (5, 4, 64), (1, 2, 64), (1, 4, 128)]
    rows = [row for row in report(*study()).tables["local-steps"].records()]
    assert [row["over_synchronous"] for row in rows] == pytest.approx(
        [1, *(steps_at(every) / steps_at(0) for every in EVERY)], rel=0.06)
    assert rows[0]["sync_every"] == 0 and rows[4]["fewest_steps"] == "no"


@pytest.mark.parametrize("trials, held", [(study(), 3), (study()[3:], 15)])
def test_of_replicas_beside_synchronous_runs_a_study_holds_the_synchronous_ones(trials, held):
    [found] = studies_of([log(*trials)])
    assert len(found.evaluations.counts) == held


def test_each_H_has_its_best_rate_and_rates_that_differ_are_said(worded):
    tried = [run((4, every), seed, more=more, peak_lr=rate) for every, best in ((4, 0.1), (64, 0.4))
             for rate in (0.1, 0.4) for more in [1.0 if rate == best else 1.6] for seed in range(2)]
    cells = section_of(*tried).synced
    assert [cell.steps.value for cell in cells] == pytest.approx([steps_at(4), steps_at(64)], rel=0.08)
    notes = " ".join(report(*tried).tables["local-steps"].notes)
    worded(notes, about="not the")
    worded(" ".join(report(*study()).tables["local-steps"].notes), about="All rows")


def searched(every, count, seed=7):
    """Draws of a search that has H as a dimension."""
    space = [{"name": "lr", "type": "double", "scale": "log", "low": 0.01, "high": 1},
             {"name": "sync_every", "type": "discrete", "values": [4, 64]}]
    return [run((4, every), at, more=1 + 0.1 * ((at + 2) % count), peak_lr=0.01 * (at + 1), sweep={
        "study": "s", "space": space, "objective": "steps", "targets": ["val/error<0.2"], "seed": seed,
        "draw": at + 100 * every, "repeat": 0,
        "point": {"lr": 0.01 * (at + 1), "sync_every": every}, "trials": 20, "max_draws": 90000, "prune_keep": None})
        for at in range(count)]


def test_a_search_over_H_has_the_best_of_as_many_trials_at_each():
    cells = section_of(*searched(4, 8), *searched(64, 5)).synced
    assert [(cell.searched, len(cell.draws), cell.best_of_n) for cell in cells] == [(True, 8, 5), (True, 5, 5)]
    assert all(cell.steps.low < cell.steps.value < cell.steps.high for cell in cells)


def test_what_cannot_be_known_is_said():
    one_seed = kinds(*study(seeds=1))
    assert {"over", "perfect", "useful"} < {*one_seed} and "taken to" in str(report(*study(seeds=1)))
    assert {"one_every", "over"} <= {*kinds(*study(every=(16,)))} and "perfect" not in kinds(*study(every=(16,)))
    assert "unmet" in kinds(*study(unmet=(256,))) and "unmet" not in kinds(*study())
    alone = [run((4, every), seed) for every in (4, 64) for seed in range(2)]
    assert "no_synchronous" in kinds(*alone) and "over" not in kinds(*alone)
    assert "no_synchronous" in kinds(*alone, run(met=False))
    none = [run((4, every), seed, met=False) for every in (4, 64) for seed in range(2)]
    assert {"unmet", "over", "perfect"} & {*kinds(run(), *none)} == {"unmet"}


def test_the_best_within_the_steps_of_all_is_a_mean_over_seeds_with_its_interval():
    cells = section_of(*study(every=(4, 64))).synced
    steps, found = best_within(cells, Target.parse("val/error<0.2"), 0.95)
    assert 200 <= steps < min(run.last_step for cell in cells[:2] for run in cell.runs) + 1
    assert [one.value for one in found[1:]] == pytest.approx([0.45 if steps > 400 else 0.504, 0.564], rel=0.3)
    assert all(one.low <= one.value <= one.high and one.runs == 3 for one in found)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
def test_a_step_apart_takes_its_pass_and_the_exchange_over_H(law):
    def exchange(count):
        return law.hops(count) * TRUE.node_hop + law.volumes(count) * TRUE.node_volume
    one_pass = TRUE.fixed + 16 * TRUE.example
    latency = law.hops(8) * TRUE.node_hop
    assert law.seconds(TRUE, 8, 1, 16, 1, 8, 16) == pytest.approx(one_pass + exchange(8) / 16 + latency)
    assert law.seconds(TRUE, 8, 1, 16, 1, 2, 16) == pytest.approx(one_pass + exchange(4) + exchange(8) / 16 + latency)
    assert law.seconds(TRUE, 2, 1, 16, 4, 8, 16) == pytest.approx(4 * one_pass + exchange(2) / 16
                                                                  + law.hops(2) * TRUE.node_hop)


def test_the_fastest_H_and_how_much_sooner_it_is_than_synchronous_training_are_found(worded):
    found = plan(*study(unmet=(256,)))
    seconds = {sync: steps_at(sync[1]) * seconds_at(sync) for sync in (EVERY_STEP, *((4, one) for one in EVERY[:-1]))}
    assert found.fastest.sync == min(seconds, key=seconds.get) == (4, 16)
    assert [option.sync for option in found.synced] == [*seconds]
    for option in found.synced[1:]:
        true = seconds[EVERY_STEP] / seconds[option.sync]
        assert option.speedup.low < true < option.speedup.high < 1.3 * option.speedup.low
        assert option.seconds.value == pytest.approx(seconds[option.sync], rel=0.06)
    text = " ".join(str(Report(document_of_plans([found], (), (), (), (), 0.95))).split())
    assert "4 replicas synchronized every 16 steps are" in text and "times" in text
    worded(text, about="Never seen")
    assert APART not in found.assumed


def test_what_was_not_timed_follows_from_computing_and_exchange():
    """Steps of all, times of synchronous runs and H = 4 alone, at one worker and four."""
    timed = [run(sync, seed, workers=workers) for sync in (EVERY_STEP, (4, 4)) for workers in (1, 2, 4)
             for seed in range(2) if workers == 4 or sync == EVERY_STEP]
    untimed = [run((4, every), seed) for every in (16, 64) for seed in range(2)]
    for one in untimed:
        one.seconds = np.full(len(one.step), math.nan)
    found = {option.sync: option for option in plan(*timed, *untimed).synced}
    for sync in ((4, 16), (4, 64)):
        assert found[sync].seconds.low < steps_at(sync[1]) * seconds_at(sync) < found[sync].seconds.high


def test_slower_links_between_two_sites_ask_for_a_larger_H():
    """A site is a node of two workers, timed within; the link between sites is given."""
    trials = [run(sync, seed, workers=2, local_workers=2) for sync in (EVERY_STEP, *((2, every) for every in EVERY))
              for seed in range(2)]
    chosen = [plan(*trials, per_node=2, links=Links(rate, 1e-3, 25e6)).fastest.sync[1] for rate in (1e11, 1e9, 1e7)]
    assert chosen[0] < chosen[1] < chosen[2]
