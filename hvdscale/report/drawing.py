"""How figures are drawn, by matplotlib, when they are asked for: importing this module does not import it.

Marks: a disc is two runs or more, a diamond one; an open triangle was not met and points to where the value lies; any
other hollow mark, and #, is of runs on a host with too few free cores. Colours are Okabe and Ito's (2008), viridis
where there is an order, so that none relies on red against green. Text is drawn verbatim, without formulas.
"""
from __future__ import annotations

import io
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from ..analysis.intervals import Estimate
from ..formatting.numbers import exact, in_brackets, number
from .table import TrialKeys

if TYPE_CHECKING:
    import matplotlib.axes
    import matplotlib.axis
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure as Canvas

INK, MUTED, GRID = "#222222", "#767676", "#dddddd"
BLUE, ORANGE, GREEN = "#0072b2", "#d55e00", "#009e73"
PURPLE, SKY, AMBER, BROWN = "#cc79a7", "#56b4e9", "#e69f00", "#8c6d4f"
ON_DARK = {INK: "#e6e6e6", MUTED: "#9a9a9a", GRID: "#363b42", BLUE: "#5fb4ea", ORANGE: "#ff9a57", GREEN: "#3ecb9f",
           PURPLE: "#e6a3c8", SKY: "#a5dcfa", AMBER: "#f5bd4a", BROWN: "#c2a07e"}
HUES = (BLUE, ORANGE, GREEN, PURPLE, SKY, INK, AMBER, BROWN)
MARKERS = ("o", "s", "P", "X", "<", ">", "p", "*")      # a diamond means one run, upright triangles no value
SHADES = 60             # of viridis, for curves
SIZE = (4.8, 3.7)       # inches: a column of a paper, half a page on a screen
PANEL = (3.2, 2.6)      # of several panels
DPI = 200               # of a PNG
MOST_MARKS = 2000       # that an SVG holds each by itself; more of them are a picture in it
MOST_KEPT = 1000        # drawings, so that a page and a file of one figure are drawn once
MOST_NAMED = 8          # entries of a legend
TICKS, PANEL_TICKS = 9, 5       # at most, along an axis; room for that many times LETTERS
LETTERS = 6.5
CROWDED_LABEL = "too few free cores"            # on a host
CROWDED_COUNT = f"# {CROWDED_LABEL}"            # behind a worker count
TITLE_WIDTH = 54        # letters of a title's line that SIZE has room for
LONGEST, LONGEST_TITLE = 44, 60         # letters of a label, of a line of a title
ASIDE = 0.4             # of the space between batches, over which the marks of several curves are spread
LONG = 34               # letters from which on entries of a legend take twice the room
ARROW, ARROW_SHARE = 20, 0.16   # points that an arrow is long, and the share of the height of axes that it is given
HOVER = "hover: "       # begins the gid of what an SVG shows a title of
MARKED = re.compile(rb'<g id="(?:(series|entry):(\d+))?(?:' + HOVER.encode() + rb'([^"]*))?">')
ROOM, ENTRY = 3, 0.17   # rows of a legend that SIZE has room for, and the height of one more, or one fewer, in inches

Axes: TypeAlias = "matplotlib.axes.Axes"
Axis: TypeAlias = "matplotlib.axis.Axis"
Arrow = tuple[float, int]           # where it starts, and 1: upwards, -1: downwards
Look = dict[str, Any]               # keyword arguments of Axes.plot
Points = Iterable[tuple[float, float]]
Part = TypeVar("Part")
STYLE: dict[Any, Any] = {
    "font.size": 9, "axes.titlesize": 9.5, "axes.titleweight": "bold", "axes.titlelocation": "left",
    "axes.labelsize": 9, "legend.fontsize": 8, "legend.frameon": False, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "font.family": "DejaVu Sans", "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": MUTED,
    "text.color": INK, "axes.labelcolor": INK, "axes.titlecolor": INK, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.labelcolor": INK, "ytick.labelcolor": INK, "axes.grid": True, "grid.color": GRID, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "lines.linewidth": 1.6, "svg.fonttype": "none", "text.parse_math": False}


@dataclass(frozen=True, eq=False)
class Figure:
    """A figure: what it shows in words, its formula and source, the trials behind it, and how it is drawn."""

    name: str                   # for file names and anchors
    title: str                  # a line or two
    caption: str
    formula: str
    source: str
    trials: TrialKeys
    draw: Callable[..., None]   # takes the matplotlib Axes of each panel
    panels: int = 1

    @property
    def alt(self) -> str:
        return f"{', '.join(self.title.splitlines())}. {self.caption}"


@lru_cache(maxsize=MOST_KEPT)
def render(figure: Figure, format: str) -> bytes:
    """The figure as ``svg`` or ``png``, the same bytes each time; of one figure, one after the other costs least."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    canvas, out = _laid_out(figure), io.BytesIO()
    with rc_context({**STYLE, "svg.hashsalt": figure.name}):        # savefig would lay it out anew
        canvas.set_dpi(DPI)
        if format == "png":
            FigureCanvasAgg(canvas).print_png(out)
            return out.getvalue()
        FigureCanvasSVG(canvas).print_svg(out, metadata={"Date": None})
    titled = MARKED.sub(lambda tag: (b'<g data-%b="%b">' % tag.groups()[:2] if tag[1] else b"<g>") + (
        b"<title>%b</title>" % tag[3] if tag[3] else b""), out.getvalue())
    # text stays text, in a font that every machine has
    return titled.replace(b"'DejaVu Sans'", b"'DejaVu Sans', Verdana, Helvetica, Arial, sans-serif")


def as_matplotlib(figure: Figure) -> Canvas:
    """The figure on a new canvas of matplotlib, with everything in its place."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas
    from matplotlib.layout_engine import ConstrainedLayoutEngine
    columns = across(figure.panels)
    rows = -(-figure.panels // columns)
    with rc_context(STYLE):
        layout = ConstrainedLayoutEngine()
        canvas = Canvas(figsize=(PANEL[0] * columns, PANEL[1] * rows + 1.0) if figure.panels > 1 else SIZE,
                        layout=layout)
        with rc_context({"axes.titleweight": "normal", "axes.titlesize": 9} if figure.panels > 1 else {}):
            axes = [canvas.add_subplot(rows, columns, at + 1) for at in range(figure.panels)]
            figure.draw(*axes)
        if figure.panels > 1:
            for at, one in enumerate(axes):         # a label of neighbours is said once a row and once a column
                if at % columns and one.get_ylabel() == axes[at - 1].get_ylabel():
                    one.yaxis.label.set_visible(False)
                if at + columns < len(axes) and one.get_xlabel() == axes[at + columns].get_xlabel():
                    one.xaxis.label.set_visible(False)
            canvas.suptitle(figure.title, x=0.01, ha="left", fontsize=STYLE["axes.titlesize"], fontweight="bold")
        else:
            title = [part for line in figure.title.splitlines() for part in textwrap.wrap(
                line, TITLE_WIDTH, break_long_words=False, break_on_hyphens=False)]
            if len(title) < 2:
                title.append("")                        # so that axes beside it begin as high
            axes[0].set_title("\n".join(title))
        _legend(canvas, axes)
        canvas.set_dpi(DPI)
        FigureCanvasAgg(canvas)
        layout.execute(canvas)
        canvas.set_layout_engine("none")
    return canvas


_laid_out = lru_cache(maxsize=1)(as_matplotlib)


def across(panels: int) -> int:
    return {4: 2, 7: 4, 8: 4}.get(panels, min(panels, 3))


def colors_on_dark() -> dict[str, str]:
    return ON_DARK | {_viridis(0.85 * at / SHADES): _viridis(0.35 + 0.65 * at / SHADES) for at in range(SHADES + 1)}


@lru_cache(maxsize=1000)
def _viridis(share: float) -> str:
    from matplotlib import colormaps
    return "#" + "".join(f"{round(255 * part):02x}" for part in colormaps["viridis"](share)[:3])


def shade(at: int, count: int) -> str:
    """The colour of the one at ``at`` of ``count`` lines."""
    return _viridis(0.85 * round(SHADES * at / max(1, count - 1)) / SHADES)


def is_named(at: int, count: int) -> bool:
    """Whether the legend names it: MOST_NAMED of them, evenly spread."""
    return at in {round(place * (count - 1) / max(1, min(MOST_NAMED, count) - 1)) for place in range(MOST_NAMED)}


def mark_estimate(axes: Axes, x: float, estimate: Estimate, color: str, marker: str, label: str | None,
                  crowded: bool = False, aside: float = 1.0) -> None:
    """One point with its interval, which an SVG names when hovered over; see the module's text for the marks. It is
    drawn at x times ``aside``, so that points of several lines do not cover each other."""
    value, low, high = estimate.value, estimate.low, estimate.high
    named, x = f"{HOVER}{exact(x)}: {number(value)}{in_brackets(low, high)}", x * aside
    if is_positive(value):
        if high > low:
            top = high if math.isfinite(high) else value
            axes.plot([x, x], [low if low > 0 else value, top], color=color, linewidth=1.4, alpha=0.75, marker="_",
                      markersize=5, markeredgewidth=1.4)
            for _, way in arrows([estimate]):
                draw_arrow(axes, x, value, color, way)
        one = estimate.runs < 2
        hollow = {"markerfacecolor": "white", "markeredgewidth": 1.4} if crowded else {"markeredgewidth": 0}
        axes.plot([x], [value], linestyle="", marker="D" if one else marker, color=color,
                  markersize=5 if one else 5.5, zorder=3, gid=named, **hollow)
        if label:
            explain(axes, label, marker=marker, color=color, markersize=5.5, markeredgewidth=0)
        if one:
            explain(axes, "one run", marker="D", color=MUTED, markersize=5, markeredgewidth=0)
        if crowded:
            explain(axes, CROWDED_LABEL, marker="o", color=MUTED, markersize=5.5, **hollow)
        return
    for end, way in arrows([estimate]):         # no value is known, but that it lies above or below this
        draw_arrow(axes, x, end, color, way)
        look: Look = {"linestyle": "", "marker": "^" if way > 0 else "v", "markersize": 6.5, "markerfacecolor": "none",
                      "markeredgewidth": 1.3}
        axes.plot([x], [end], **look, markeredgecolor=color, zorder=3)
        explain(axes, "not met: above" if way > 0 else "not met: below", **look, markeredgecolor=MUTED)


def draw_arrow(axes: Axes, x: float, y: float, color: str, way: int, aside: int = 0, up: str = "data") -> None:
    """An arrow from a point upwards (way 1) or downwards (-1), and to the right (aside 1), clipped by the axes."""
    look = {"arrowstyle": "<-", "color": color, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 4, "clip_on": True,
            "clip_box": axes.bbox}
    axes.annotate("", xy=(x, y), xycoords=("data", up), xytext=(ARROW * aside, ARROW * way),
                  textcoords="offset points", arrowprops=look)


def is_positive(value: float) -> bool:
    """Whether a logarithmic axis can show it."""
    return math.isfinite(value) and value > 0


def _legend(canvas: Any, axes: Sequence[Any]) -> None:
    """One legend under the axes, each entry once, so that it covers nothing; axes are as high whatever its length.
    An entry and all that has its look are marked as one series, which a page can hide."""
    handles: dict[str, Artist] = {}
    for one in axes:
        handles |= dict(zip(*reversed(one.get_legend_handles_labels())))
    marks = ("one run", "not ", CROWDED_LABEL, "# ")
    names = sorted(handles, key=lambda name: name.startswith(marks))         # what marks mean comes last
    if handles:
        columns = max(2, across(len(axes)))
        columns = columns if max(map(len, names)) <= LONG else max(1, columns // 2)
        legend = canvas.legend(handles=[handles[name] for name in names], labels=names, loc="outside lower center",
                               ncols=columns, handlelength=1.8, columnspacing=1.6, labelspacing=0.35)
        canvas.set_figheight(canvas.get_figheight() + ENTRY * (-(-len(names) // columns) - ROOM))
        looks = {_look(handles[name]): at for at, name in reversed([*enumerate(names)])}
        drawn = [part for one in axes for part in (
            *(line for line in one.lines if len(line.get_xdata())), *one.patches, *one.collections,
            *(text.arrow_patch for text in one.texts if getattr(text, "arrow_patch", None))) if _look(part) in looks]
        for part in drawn:
            part.set_gid(f"series:{looks[_look(part)]}{part.get_gid() or ''}")
        for at in {looks[_look(part)] for part in drawn}:
            for part in (legend.legend_handles[at], legend.get_texts()[at]):
                part.set_gid(f"entry:{at}")


def _look(part: Any) -> tuple[object, ...]:
    """What the marks of a series share: its colour, as lines or as an area; of what is black or grey its form, too."""
    from matplotlib.colors import to_hex, to_rgba_array
    part = getattr(part, "patches", [part])[0]          # of bars, which have one entry
    if not hasattr(part, "get_marker"):
        is_arrow = hasattr(part, "get_arrowstyle")
        return *map(to_hex, to_rgba_array(part.get_edgecolor() if is_arrow else part.get_facecolor())[:1]), is_arrow
    form, color = (part.get_linestyle(), part.get_marker()), part.get_color()
    if form[0] == "None":
        color = part.get_markerfacecolor()
        color = part.get_markeredgecolor() if str(color) in ("none", "white") else color
    return to_hex(color), True, *(form if to_hex(color) in (INK, MUTED) else ())


def log2_axis(axes: Axes, which: str, values: Iterable[float], ends: Iterable[float] = (), most: int = TICKS,
              arrows: Iterable[Arrow] = ()) -> None:
    """A base 2 axis that holds the positive values, with a margin, and ticks at powers of 2; ends of intervals within a
    factor 4 of the values, as two runs may leave them far away; and whole arrows that start at values."""
    values, ends = list(filter(is_positive, values)) or [1], list(filter(is_positive, ends))
    low = min(values + [max(end, min(values) / 4) for end in ends])
    high = max(values + [min(end, max(values) * 4) for end in ends])
    getattr(axes, f"set_{which}scale")("log", base=2)
    margin = 2 ** (0.06 * max(1.5, math.log2(high / low)) + 0.1)
    low, high = math.log(low / margin), math.log(high * margin)
    down, up = (min((-way * math.log(value) for value, one in arrows if one == way), default=math.inf)
                for way in (-1, 1))
    for _ in range(20):                         # until every arrow has room
        length = ARROW_SHARE * (high - low)
        low, high = min(low, down - length), max(high, length - up)
    low, high = math.exp(low), math.exp(high)
    getattr(axes, f"set_{which}lim")(low, high)
    if which == "x":
        set_ticks(axes.xaxis, _apart(sorted(set(values)), most))
    else:
        power_ticks(axes.yaxis, low, high, most)


def _apart(values: Sequence[float], most: int) -> list[float]:
    """Of what was measured, the values to name: the smallest, and each that is far enough from the one before."""
    wide = math.log(values[-1] / values[0])
    named = [values[0]]
    for value in values[1:]:
        letters = (len(exact(named[-1])) + len(exact(value))) / 2 + 1
        if math.log(value / named[-1]) >= max(0.99 / most, letters / (LETTERS * most)) * wide:
            named.append(value)
    return named


def power_ticks(axis: Axis, low: float, high: float, most: int = TICKS) -> None:
    """Ticks at powers of 2; at round numbers where there are fewer than two powers between low and high."""
    first, last = math.ceil(math.log2(low)), math.floor(math.log2(high))
    if last > first:
        return set_ticks(axis, [2.0 ** at for at in range(first, last + 1, math.ceil((last - first + 1) / most))])
    size = 10 ** math.floor(math.log10(high - low))
    size *= next((share for share in (1, 0.5) if high - low > 4 * share * size), 0.2)
    return set_ticks(axis, [size * at for at in range(math.ceil(low / size), math.floor(high / size) + 1)])


def short(value: float) -> str:
    """``1,024``, ``0.125``."""
    return exact(value) if value >= 1 else f"{value:.3g}"


def set_ticks(axis: Axis, values: Sequence[float], write: Callable[[float], str] = short) -> None:
    from matplotlib.ticker import FixedLocator
    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(lambda value, _: write(value))


def fraction(value: float, _: object = None) -> str:
    """``4``, ``0.8``, and a power of 2 below 1 as ``1/8``."""
    return f"1/{1 / value:,.0f}" if 0 < value < 1 and math.log2(value).is_integer() else short(value)


def decimal_ticks(axis: matplotlib.axis.XAxis | matplotlib.axis.YAxis, ends: tuple[float, float],
                  most: int = TICKS) -> None:
    """Ticks at 1, 2, 5 times powers of 10; at 1, 3 times, then at some powers, where there were more than most."""
    first, last = (math.floor(math.log10(end)) for end in ends)
    for parts, every in (((1, 2, 5), 1), ((1, 3), 1), *(((1,), every) for every in range(1, last - first + 2))):
        ticks = [part * 10.0 ** power for power in range(first, last + 2, every) for part in parts]
        letters = [len(f"{tick:,g}") for tick in ticks]     # along x, two letters lie between names
        if sum(0.99 * ends[0] <= tick <= 1.01 * ends[1] for tick in ticks) <= most and (axis.axis_name == "y" or all(
                (name + after) / 2 + 2 <= LETTERS * most * math.log(later / tick) / math.log(ends[1] / ends[0])
                for name, after, tick, later in zip(letters, letters[1:], ticks, ticks[1:]))):
            break
    set_ticks(axis, ticks, "{:,g}".format)


def value_axis(axes: Axes, which: str, values: Iterable[float], most: int = TICKS) -> None:
    """A logarithmic axis where the values are positive and spread over more than a factor 8, else a plain one."""
    from matplotlib.ticker import MaxNLocator
    values = list(values)
    low, high = float(min(values)), float(max(values))
    axis, set_ends = getattr(axes, f"{which}axis"), getattr(axes, f"set_{which}lim")
    if low > 0 and high > 8 * low:
        margin = (high / low) ** 0.07
        getattr(axes, f"set_{which}scale")("log")
        set_ends(low / margin, high * margin)
        decimal_ticks(axis, (low, high), most)
        return
    margin = 0.08 * (high - low) or 0.3 * abs(low) or 0.3
    set_ends(low - margin, high + margin)
    axis.set_major_locator(MaxNLocator(most))
    axis.set_major_formatter(lambda value, _: f"{value:,.4g}")


def label_axes(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across)
    axes.set_ylabel(up)


def plain(text: object, longest: int = LONGEST) -> str:
    """A name as a figure can show it: printable, no longer than that many letters, and in a legend whatever it is."""
    text = "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in str(text))
    if len(text) > longest:
        text = f"{text[:longest // 2]}\N{HORIZONTAL ELLIPSIS}{text[-longest // 2 + 1:]}"
    return f" {text}" if text.startswith("_") else text          # matplotlib hides labels that begin with it


def heading(text: object) -> str:
    return plain(text, LONGEST_TITLE)


def draw_line(axes: Axes, points: Points, color: str, style: str = "-", width: float = 1, **look: Any) -> None:
    points = list(points)
    axes.plot([x for x, _ in points], [y for _, y in points], style, color=color, linewidth=width, **look)


def explain(axes: Axes, label: str, **look: Any) -> None:
    axes.plot([], [], **{"linestyle": "", **look}, label=label)


def ends_of(estimates: Iterable[Any]) -> list[float]:
    return [end for one in estimates for end in (one.low, one.high)]


def arrows(estimates: Iterable[Estimate]) -> list[Arrow]:
    """(where it starts, way) of each arrow that mark_estimate draws: at the open ends of intervals."""
    found: list[Arrow] = []
    for one in estimates:
        if is_positive(one.value):
            ends = (1, math.isinf(one.high)), (-1, one.low == 0)
            found += [(one.value, way) for way, is_open in ends if is_open and one.high > one.low]
        else:
            found += [(end, way) for end, way in ((one.beyond, 1), (one.high, -1)) if is_positive(end)][:1]
    return found


def draw_panels(draw: Callable[[Axes, Any], None], panels: Sequence[Any], titles: Sequence[str]) -> Callable[..., None]:
    """What draws each of them in axes of its own, under its title where there are several."""
    def draw_all(*axes: Axes) -> None:
        for one, panel, title in zip(axes, panels, titles):
            draw(one, panel)
            if len(panels) > 1:
                one.set_title(title)
    return draw_all


def spread_evenly(parts: Sequence[Part], most: int) -> list[Part]:
    """At most that many of them, evenly spread, the first and the last among them."""
    if len(parts) <= most:
        return list(parts)
    return [parts[round(at * (len(parts) - 1) / (most - 1))] for at in range(most)]
