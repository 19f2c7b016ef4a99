"""How busy others keep a host: waits for cores that others have, and not those of workers for each other."""
import pytest

from hvdscale.system import cores


@pytest.mark.parametrize("usable, workers, used, busy, others", [
    (2, 2, (3.0, 3.0), 9.0, 0.3),                   # of 2 x 5 s
    (2, 2, (5.0, 2.0), 7.0, 0.0),                   # one rank waits, asleep, for the other
    (2, 1, (5.0,), 9.0, 0.4), (4, 2, (9.0, 9.0), 18.0, 0.0),
    (1, 2, (4.0, 4.0), 5.0, 0.2)])                  # a launcher has bound each to a core
def test_what_others_have_of_the_cores_is_what_no_worker_used(monkeypatch, usable, workers, used, busy, others):
    monkeypatch.setattr(cores, "usable_cores", lambda: frozenset(range(usable)))
    looks = []
    for own in used:
        reads = iter([(10.0, 1.0, 7.0, 20.0), (15.0, 1.0 + own, 9.0, 20.0 + busy)])
        monkeypatch.setattr(cores.CoreClock, "_read", lambda self: next(reads))
        looks.append(cores.CoreClock(workers).look())
    assert [waited for waited, _ in looks] == [0.4] * len(used)
    assert cores.without_core(looks, workers) == pytest.approx(min(0.4, others))


def test_the_host_that_fares_worst_counts_and_waits_without_others_do_not():
    assert cores.without_core([(0.9, 0.0), (0.8, 0.02), (0.3, 0.5), (0.0, 0.3)], 2) == 0.3
    assert cores.without_core([(0.9, -0.1)], 2) == 0.0


@pytest.mark.parametrize("line, root, unit", [("3:cpu,cpuacct:/job/step", "cpu", "throttled_time {}000000000"),
                                              ("0::/job/step", "", "throttled_usec {}000000")])
def test_what_quotas_withhold_from_a_group_and_those_above_it_adds_up(monkeypatch, tmp_path, line, root, unit):
    monkeypatch.setattr(cores, "CONTROL_GROUPS", str(tmp_path))
    monkeypatch.setattr(cores, "GROUPS_OF_THIS", str(tmp_path / "cgroup"))
    (tmp_path / "cgroup").write_text(f"9:memory:/elsewhere\n{line}\n")
    (tmp_path / root / "job/step").mkdir(parents=True)
    for folder, seconds in {"": 1, "job": 2, "job/step": 4}.items():
        (tmp_path / root / folder / "cpu.stat").write_text(f"nr_throttled 9\n{unit.format(seconds)}\n")
    assert cores.withheld_seconds() == pytest.approx(7)
