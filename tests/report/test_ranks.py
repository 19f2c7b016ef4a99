"""What a report says of steps that every rank timed: tests/golden/ranks.txt has it, case by case."""
from hvdscale.log.merge import merge
from hvdscale.report.runs import read
from tests.factories.kept_reports import ranks_log
from tests.factories.shown import shown

TOLD = {"operators": [["aten::mm", 0.003], ["aten::mul", 0.0015]], "communication": 0.002, "exposed": 0.0005,
        "hidden": 0.0015, "late": 0.0001}
CASES = {           # of one worker, and of each of two ranks: what differs from their usual parts
    "parts that grew": ({}, dict(step=16, waiting=7), dict(step=16, waiting=5, backward=6)),
    "a rank that computes slowly": ({}, {}, dict(forward=6)),
    "a rank that spends time elsewhere": ({}, {}, dict(step=14)), "a rank that waits for data": ({}, {}, dict(data=4)),
    "a busy host": ({}, {}, dict(forward=6, without_core=0.31)),
    "a hot GPU": ({}, {}, dict(clock=0.62, slowed_by=["heat"])),
    "traces": (dict(profile=TOLD), dict(profile=TOLD), dict(profile={**TOLD, "operators": []})),
    "a loader that does not keep up": ({}, dict(data=3, waiting=0), dict(data=3, waiting=0))}


def said(path):
    """Findings, rows and warnings of a report on steps, and its figures by rank."""
    with read(path) as runs:
        found = shown(runs.document().shown[0].section)
    for table in found.tables:
        yield from (" | ".join(cell.shown for cell in row.cells) for row in table.rows)
        yield from table.warnings
    yield from (one.said for one in found.findings)
    yield from (figure.name for figure in found.figures if "step-time" in figure.name)


def test_what_ranks_do_is_said_and_what_a_merged_log_says_is_the_same(golden, tmp_path):
    texts = []
    for at, (name, (alone, *ranks)) in enumerate(CASES.items()):
        folder = tmp_path / str(at)
        folder.mkdir()
        ranks_log(folder / "w1.h5", alone)
        ranks_log(folder / "w2.h5", *ranks)
        texts.append("\n".join([name, *said(folder)]))
    merge([str(tmp_path / "0/w1.h5"), str(tmp_path / "0/w2.h5")], str(tmp_path / "both.h5"))
    assert [*said(tmp_path / "both.h5")] == texts[0].splitlines()[1:]
    golden("ranks", "\n\n".join(texts) + "\n", within=0.01)
