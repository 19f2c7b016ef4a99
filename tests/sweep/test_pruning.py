"""A study's outcome is that of one draw after the other, whatever ran at once, was killed, or was pruned late."""
import math
import random
from dataclasses import dataclass, replace

import numpy as np
import pytest

from hvdscale.errors import LogError
from hvdscale.log.schema import Status
from hvdscale.sweep.ledger import FIRST_REPEAT, DrawResult
from hvdscale.sweep.pruning import ALIKE, StudyState, failed_alike, threshold, winner

TARGET, EVERY, BUDGET, MAX_DRAWS = "val/error<0.02", 5, 60, 40
STATUS = {"met": Status.COMPLETE, "budget": Status.COMPLETE, "diverged": Status.INFEASIBLE}
STUDIES = range(500)
inf = math.inf


@dataclass(frozen=True)
class Fate:
    """What a draw does when it is let: when it meets the target, and the step at which it diverges or fails."""

    met: float
    breaks: float
    how: str

    @property
    def ended(self):
        """Kind, last step and steps to the target, without pruning."""
        if min(self.met, self.breaks) > BUDGET:
            return "budget", BUDGET, inf
        return (self.how, self.breaks, inf) if self.breaks <= self.met else ("met", self.met, self.met)


def fates(seed, ties=True):
    """A study's draws: easy or hard, stable or not, with few evaluations so that many meet the target at once."""
    rng = random.Random(seed)
    hard, unstable = rng.uniform(0, 0.8), rng.choice((0, 0.1, 0.3, 0.6))
    grid = rng.choices(range(1, BUDGET // EVERY + 1), k=MAX_DRAWS) if ties else rng.sample(range(1, 81), MAX_DRAWS)
    return [Fate(inf if rng.random() < hard else EVERY * grid[number],
                 rng.randint(1, BUDGET) if rng.random() < unstable else inf, rng.choice(("diverged", "failed")))
            for number in range(MAX_DRAWS)]


def finished(number, kind, last_step, steps=inf):
    return DrawResult(number, kind, kind, int(last_step), {TARGET: steps})


def met(number, steps):
    return finished(number, "met", steps, steps)


def results(*given):
    return {result.number: result for result in given}


def facts(state):
    return [(o.number, o.status, o.kind, o.last_step, o.steps_to(TARGET)) for o in state.results]


def settle(results, trials, max_draws, target, keep=None):
    """The state of a study whose results are all there at once."""
    return StudyState(trials, max_draws, target, keep).extend(results)


def in_sequence(study, trials, max_draws, keep):
    """The definition, one draw after the other, each with all that is known before it."""
    outcomes, feasible = [], 0
    while feasible < trials and len(outcomes) < max_draws:
        known = sorted(steps for *_, steps in outcomes)
        stop = known[keep - 1] if keep and len(known) >= keep else inf
        kind, last, steps = study[len(outcomes)].ended
        if last > stop:
            kind, last, steps = "pruned", stop, inf
        outcomes.append((len(outcomes), STATUS.get(kind, Status.INCOMPLETE), kind, last, steps))
        feasible += kind not in ("diverged", "failed")
    return outcomes


class Groups:
    """Groups of workers that carry out one study at once, each on what it had seen when it last looked."""

    def __init__(self, study, groups, rng, kills=0.0):
        self.study, self.groups, self.rng, self.kills = study, groups, rng, kills
        self.results, self.started, self.steps = {}, [], 0

    def carry_out(self, trials, max_draws, keep):
        def look():
            return dict(self.results), settle(self.results, trials, max_draws, TARGET, keep)

        now = look()
        seen = [now] * self.groups
        running = {}                                                   # group: (number, steps done)
        while running or not now[1].done:
            group = self.rng.randrange(self.groups)
            if self.rng.random() < 0.3:
                seen[group] = now
            known, state = seen[group]
            if group not in running:
                taken = self.results.keys() | {number for number, _ in running.values()}
                free = [number for number in range(state.limit) if number not in taken]
                if free:
                    running[group] = (free[0] if self.rng.random() < 0.7 else self.rng.choice(free), 0)
                    self.started.append(running[group][0])
                else:
                    seen[group] = now
            elif self.rng.random() < self.kills:
                del running[group]                                     # and its trial starts over, some day
            elif self.goes_on(group, running, known, keep):
                del running[group]
                now = look()
        return now[1]

    def goes_on(self, group, running, known, keep):
        """A few steps, never across an evaluation or the trial's end; then the vote, which a step more carries out."""
        number, done = running[group]
        kind, last, steps = self.study[number].ended
        done = min(done + self.rng.randint(1, 2 * EVERY), done // EVERY * EVERY + EVERY, last)
        if done < last and done >= threshold(known, number, TARGET, keep):
            done += 1
            if (kind, last) not in (("diverged", done), ("failed", done)):
                kind, last, steps = "pruned", done, inf
        running[group] = (number, done)
        if done == last:
            self.results[number] = finished(number, kind, last, steps)
            self.steps += last
        return done == last


def sizes(seed):
    """What a study asks for: trials, max_draws, keep, groups."""
    rng = random.Random(f"sizes{seed}")
    trials = rng.randint(1, 14)
    return trials, min(MAX_DRAWS, trials * rng.randint(1, 3)), rng.choice((None, 1, 1, 2, 3, 5)), rng.randint(1, 8)


@pytest.mark.parametrize("kills", [0.0, 0.1])
def test_groups_in_any_order_come_to_the_outcome_of_one_draw_after_the_other(kills):
    stopped = late = lucky = 0
    for seed in STUDIES:
        trials, max_draws, keep, groups = sizes(seed)
        farm = Groups(fates(seed), groups, random.Random(f"{kills}{seed}"), kills)
        state = farm.carry_out(trials, max_draws, keep)
        expected = in_sequence(farm.study, trials, max_draws, keep)
        assert facts(state) == expected, seed
        assert state.done and state.limit == len(expected)
        assert set(farm.started) == set(range(state.limit)), seed     # no draw beyond those that the study consists of
        stopped += sum(o.kind == "pruned" for o in state.results)
        late += sum(farm.results[o.number].last_step > o.last_step + 1 for o in state.results)
        lucky += sum(o.kind == "pruned" and farm.results[o.number].kind in ("met", "diverged", "failed")
                     for o in state.results)
    assert min(stopped, late, lucky) > 50                             # else nothing was put to the test


def test_more_trials_and_more_draws_go_on_with_what_there_is():
    for seed in STUDIES:
        trials, max_draws, keep, groups = sizes(seed)
        farm = Groups(fates(seed), groups, random.Random(seed))
        farm.carry_out(trials, max_draws, keep)
        before = dict(farm.results)
        state = farm.carry_out(trials + 5, MAX_DRAWS, keep)
        assert facts(state) == in_sequence(farm.study, trials + 5, MAX_DRAWS, keep)
        assert before.items() <= farm.results.items() and set(farm.started) == set(range(state.limit))
        again = settle(farm.results, trials, max_draws, TARGET, keep)  # fewer again: the results beyond do not count
        assert facts(again) == in_sequence(farm.study, trials, max_draws, keep)


def test_pruning_leaves_the_fewest_steps_of_the_same_draws_as_they_were():
    saved = 0
    for seed in STUDIES:
        trials, max_draws, keep, groups = sizes(seed)
        keep = keep or 4
        farm = Groups(fates(seed, ties=seed % 2 == 0), groups, random.Random(seed))
        state = farm.carry_out(trials, max_draws, keep)
        draws = farm.study[:state.limit]
        unpruned = sorted((fate.ended[2], number) for number, fate in enumerate(draws) if fate.ended[2] < inf)
        pruned = sorted((o.steps_to(TARGET), o.number) for o in state.results if o.steps_to(TARGET) < inf)
        assert pruned[:keep] == unpruned[:keep], seed
        best = winner(state.results, TARGET)
        assert best is None if not unpruned else best.number == unpruned[0][1]
        saved += sum(fate.ended[1] for fate in draws) - farm.steps
    assert saved > 10_000


def test_the_limit_grows_only_with_what_will_stand_whatever_is_finished_next():
    for seed in range(60):
        trials, max_draws, keep, _ = sizes(seed)
        farm = Groups(fates(seed), 4, random.Random(seed))
        final = farm.carry_out(trials, max_draws, keep)
        order, known, limits = random.Random(seed).sample(range(final.limit), final.limit), {}, []
        grown = StudyState(trials, max_draws, TARGET, keep)
        for number in order:
            known[number] = farm.results[number]
            state = settle(known, trials, max_draws, TARGET, keep)
            assert (grown.extend(known).limit, facts(grown)) == (state.limit, facts(state))
            limits.append(state.limit)
            assert facts(state) == facts(final)[:len(state.results)] and state.done == (facts(state) == facts(final))
        assert limits == sorted(limits) and limits[-1] == final.limit


def test_the_threshold_is_the_keep_th_fewest_steps_of_lower_numbers_alone():
    known = results(met(0, 40), met(1, 20), finished(2, "budget", 60), met(3, 20), met(9, 5), met(FIRST_REPEAT, 5))
    at = [threshold(known, number, TARGET, 2) for number in (0, 1, 2, 3, 4, 10)]
    assert at == [inf, inf, 40, 40, 20, 20]
    assert threshold(known, 10, TARGET, 5) == inf                     # the fifth fewest is a draw that never met it
    assert threshold(known, 10, TARGET, None) == threshold(known, 10, None, 1) == inf
    assert threshold({}, 3, TARGET, 1) == inf


def test_the_threshold_never_falls_short_while_results_are_missing():
    rng = random.Random(1)
    for seed in range(50):
        study = {number: finished(number, *fate.ended) for number, fate in enumerate(fates(seed))}
        part = {number: result for number, result in study.items() if rng.random() < 0.5}
        for number in range(MAX_DRAWS):
            assert threshold(part, number, TARGET, 3) >= threshold(study, number, TARGET, 3)


def test_lost_draws_are_replaced_like_diverged_and_failed_ones():
    broken = [finished(0, "lost", 0), finished(1, "diverged", 3), finished(2, "failed", 0)]
    state = settle(results(*broken), 2, 9, TARGET, 1)
    assert (state.limit, len(state.results), state.done) == (5, 3, False)
    late = settle(results(met(0, 10), finished(1, "lost", 50)), 2, 9, TARGET, 1)
    assert late.results[1].kind == "lost" and late.limit == 3        # wherever its process died
    state = settle(results(*broken), 2, 3, TARGET, 1)
    assert (state.limit, state.done) == (3, True)
    assert [o.feasible for o in state.results] == [False] * 3 and winner(state.results, TARGET) is None


def test_what_lies_beyond_a_gap_waits_for_it():
    broken = finished(1, "diverged", 30)
    state = settle(results(broken, met(2, 20)), 3, 9, TARGET, 1)
    assert (state.limit, state.results, state.done) == (3, [], False)
    assert settle(results(met(0, 40), broken, met(2, 20)), 3, 9, TARGET, 1).limit == 4
    assert settle(results(met(0, 10), broken, met(2, 20)), 3, 9, TARGET, 1).limit == 3      # by then it was pruned


def test_an_empty_study_has_its_first_trials_to_start():
    state = settle({}, 12, 36, TARGET, 5)
    assert (state.limit, state.results, state.done) == (12, [], False)
    assert settle({}, 12, 4, TARGET, 5).limit == 4


def test_a_draw_pruned_before_its_threshold_is_an_error_that_names_it(worded):
    known = results(met(0, 20), met(1, 30), finished(2, "pruned", 31))
    assert settle(known, 3, 3, TARGET, 2).done
    assert settle({**known, 1: met(1, 31)}, 3, 3, TARGET, 2).results[2].last_step == 31
    with worded.error(LogError):
        settle({**known, 1: met(1, 45)}, 3, 3, TARGET, 2)
    with pytest.raises(LogError, match="to its end"):
        settle(known, 3, 3, TARGET, 3)


def test_another_objective_is_won_by_the_best_value_of_a_feasible_draw():
    values = (math.nan, 0.3, 0.1, 0.1, 0.05, 0.4)
    kinds = ("budget", "budget", "budget", "budget", "diverged", "budget")
    state = settle(results(*(replace(finished(n, kind, BUDGET), steps={}, best=value)
                             for n, (value, kind) in enumerate(zip(values, kinds)))), 5, 9, None)
    assert state.done and all(o.steps_to(TARGET) == inf for o in state.results)
    np.testing.assert_array_equal([o.best for o in state.results], values)
    assert [winner(state.results, None, minimizes).number for minimizes in (True, False)] == [2, 5]
    assert winner([], None, True) is winner([], TARGET) is None
    given = [met(n, steps) for n, steps in enumerate((30, 20, 20))]
    assert winner(given, TARGET).number == winner(reversed(given), TARGET).number == 1      # of equal ones the first


@pytest.mark.parametrize("kinds, reasons, alike", [
    (("failed",) * ALIKE, "no layer {}", True), (("failed",) * (ALIKE - 1), "no layer", False),
    (("failed",) * ALIKE + ("diverged",), "no layer", False),
    (("failed",) * (ALIKE - 1) + ("lost",), "no layer", False),
    ((), "", False)])
def test_trials_fail_alike_if_their_reasons_differ_only_in_numbers(kinds, reasons, alike):
    given = [DrawResult(at, kind, reasons.format(at)) for at, kind in enumerate(kinds)]
    assert failed_alike(given) == ("no layer 0" if alike else None)
    assert failed_alike([replace(draw, reason="ab"[draw.number % 2]) for draw in given]) is None
