"""Habits of the code that a reader stumbles over: none in most rooms, and no more than there were in the others."""
import ast
import re
from collections import Counter
from pathlib import Path

import pytest

import hvdscale
from tests.conftest import GOLDEN, ROOT

PACKAGE = Path(hvdscale.__file__).parent
# by habit and room, those that are left; only to be lowered
LEFT = {("nested conditional", "report"): 15}


def is_truth(node):
    return isinstance(node, (ast.Compare, ast.BoolOp)) or isinstance(node, ast.UnaryOp) and isinstance(
        node.op, ast.Not) or isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "bool", "isinstance", "any", "all")


def is_sequence(node):
    return isinstance(node, (ast.List, ast.Tuple, ast.ListComp, ast.JoinedStr)) or isinstance(
        node, ast.Constant) and isinstance(node.value, str)


def habits(tree):
    """(habit, line) of each text or list that is multiplied by a truth value, NaN that is asked for by x != x,
    conditional expression inside another, and loop over a single value."""
    for node in ast.walk(tree):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and (
                is_sequence(node.left) and is_truth(node.right) or is_sequence(node.right) and is_truth(node.left)):
            yield "times a truth value", node.lineno
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq)) and ast.dump(
                node.left) == ast.dump(node.comparators[0]):
            yield "NaN by comparison", node.lineno
        elif isinstance(node, ast.IfExp) and any(isinstance(inner, ast.IfExp) for part in (
                node.test, node.body, node.orelse) for inner in ast.walk(part)):
            yield "nested conditional", node.lineno
        elif isinstance(node, ast.comprehension) and isinstance(node.iter, (ast.List, ast.Tuple)) and len(
                node.iter.elts) == 1 and not isinstance(node.iter.elts[0], ast.Starred):
            yield "loop over one value", node.iter.lineno


def count_habits(root):
    """The number of each habit by room, and where each is."""
    counts, places = Counter(), []
    for path in sorted(root.rglob("*.py")):
        room = path.relative_to(root).parts[0].removesuffix(".py")
        for habit, line in habits(ast.parse(path.read_text(encoding="utf-8"))):
            counts[habit, room] += 1
            places.append(f"{path.relative_to(root)}:{line}: {habit}")
    return counts, places


def test_no_room_has_more_of_these_habits_than_are_left():
    counts, places = count_habits(PACKAGE)
    more = {key for key, count in counts.items() if count > LEFT.get(key, 0)}
    assert not more, "\n".join(place for place in places for habit, room in more
                               if place.endswith(habit) and place.startswith(room))


@pytest.mark.parametrize("code, habit", [
    ("[a] * bool(b)", "times a truth value"), ("'a' * (b > 1)", "times a truth value"), ("a * (b > 1)", None),
    ("a != a", "NaN by comparison"), ("a.b == a.b", "NaN by comparison"), ("a == b", None),
    ("a if b else c if d else e", "nested conditional"), ("a if b else (c, d)", None),
    ("[x for x in [f(y)]]", "loop over one value"), ("[x for x in [*y]]", None)])
def test_a_habit_is_found(code, habit):
    assert [found for found, _ in habits(ast.parse(code))] == ([habit] if habit else [])


def test_kept_words_are_those_of_tests_that_are_there():
    for path in (GOLDEN / "words").rglob("*.txt"):
        tests = ROOT / "tests" / path.relative_to(GOLDEN / "words").with_suffix(".py")
        kept = set(re.findall(r"^== (test_\w+)", path.read_text(encoding="utf-8"), re.M))
        assert kept <= set(re.findall(r"^def (test_\w+)", tests.read_text(encoding="utf-8"), re.M)), path
