"""What several figures draw alike: lines through points, bars of intervals, entries of the legend, panels.

    label_axes(axes, "workers W", "efficiency")
    draw_panels(lambda one, panel: ..., panels, titles)     # what Figure.draw takes
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..analysis.intervals import Estimate
from .drawing import Arrow, Axes, arrows_of

Points = Iterable[tuple[float, float]]


def label_axes(axes: Axes, across: str, up: str) -> None:
    """What is on both axes."""
    axes.set_xlabel(across)
    axes.set_ylabel(up)


def draw_line(axes: Axes, points: Points, color: str, style: str = "-", width: float = 1, **look: Any) -> None:
    """A line through points."""
    points = list(points)
    axes.plot([x for x, _ in points], [y for _, y in points], style, color=color, linewidth=width, **look)


def draw_bar(axes: Axes, x: float, low: float, high: float, color: str, alpha: float | None = None) -> None:
    """The interval of a mark."""
    axes.plot([x, x], [low, high], color=color, linewidth=1.4, alpha=alpha)


def explain(axes: Axes, label: str, **look: Any) -> None:
    """An entry of the legend for marks of that look."""
    axes.plot([], [], **{"linestyle": "", **look}, label=label)


def ends_of(estimates: Iterable[Any]) -> list[float]:
    """The ends of all intervals."""
    return [end for one in estimates for end in (one.low, one.high)]


def arrows(estimates: Iterable[Estimate]) -> list[Arrow]:
    """What starts at the open ends of intervals."""
    return [arrow for one in estimates for arrow in arrows_of(one)]


def draw_panels(draw: Callable[[Axes, Any], None], panels: Sequence[Any], titles: Sequence[str]
                ) -> Callable[..., None]:
    """What draws each of them in axes of its own, under its title where there are several."""
    def draw_all(*axes: Axes) -> None:
        for one, panel, title in zip(axes, panels, titles):
            draw(one, panel)
            if len(panels) > 1:
                one.set_title(title)
    return draw_all
