/* What a report does beyond being read: tables that sort, and figures that follow a slider over the target.

   Everything is in the page: nothing is loaded. Each .explorer holds its data as JSON, see interactive.py; without this
   script it stays hidden and the still figures show the same at the page's own target. */
"use strict";
(() => {
  const MINUS = "\u2212", HAIR = "\u2009";
  const STATUS = ["running", "complete", "stopped before its end", "diverged", "stopped by its search"];
  const DIVERGED = 3, PRUNED = 4;
  const CROWDED = "<br>more workers than cores on the host";
  const FEW = 8;                      // values of a metaparameter, up to which it makes no axis of its own accord
  const COMPARE = {"<": (a, b) => a < b, "<=": (a, b) => a <= b, ">": (a, b) => a > b, ">=": (a, b) => a >= b};

  /* ---- small things ---- */

  const known = value => value !== null && value !== undefined;
  const plain = text => String(text).replace(/[&<>]/g, found => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[found]);
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const color = hex => style("--c" + hex.slice(1)) || hex;

  function number(value) {
    if (!known(value)) return "n/a";
    if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e12)) return value.toExponential(2);
    if (Number.isInteger(value)) return value.toLocaleString("en");
    return Number(value.toPrecision(3)).toLocaleString("en", {maximumFractionDigits: 12});
  }

  /* ---- tables that sort ---- */

  function sortable(table) {
    const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
    const written = [...body.rows];
    if (written.length < 2) return;
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === "ascending" ? "descending" : now === "descending" ? null : "ascending";
        heads.forEach(other => other.removeAttribute("aria-sort"));
        if (next) head.setAttribute("aria-sort", next);
        body.append(...(next ? ordered(written, at, next === "ascending" ? 1 : -1) : written));
      });
    });
  }

  /* Rows by one column: numbers by value, what has none after them, texts as people order them. */
  function ordered(rows, at, way) {
    const keys = new Map(rows.map(row => [row, sortKey(row.cells[at])]));
    return [...rows].sort((one, two) => {
      const a = keys.get(one), b = keys.get(two);
      if (a === null || b === null) return (a === null) - (b === null);
      if (typeof a === "number" && typeof b === "number") return way * (a === b ? 0 : a < b ? -1 : 1);
      return way * String(a).localeCompare(String(b), "en", {numeric: true});
    });
  }

  function sortKey(cell) {
    const value = cell.dataset.value;
    if (value === undefined) return cell.textContent;
    return value === "" ? null : Number(value);
  }

  /* ---- axes ---- */

  /* Powers of 2 over the values, thinned; or 1, 2, 5 times powers of 10; round numbers where these lie too far apart. */
  function ticks(low, high, base) {
    const found = [];
    if (high < 4 * low) {
      const wide = high - low, size = 10 ** Math.floor(Math.log10(wide));
      const each = size * (wide > 5 * size ? 2 : wide > 2 * size ? 1 : 0.5);
      for (let at = Math.ceil(low / each); at <= high / each; at += 1) found.push(Number((at * each).toPrecision(6)));
      return found;
    }
    if (base === 2) {
      const first = Math.floor(Math.log2(low)), last = Math.ceil(Math.log2(high));
      const each = Math.max(1, Math.ceil((last - first) / 9));
      for (let at = first; at <= last; at += each) found.push(2 ** at);
      return found;
    }
    const wide = high > 1000 * low ? [1] : [1, 2, 5];
    for (let at = Math.floor(Math.log10(low)); at <= Math.ceil(Math.log10(high)); at += 1)
      wide.forEach(part => found.push(part * 10 ** at));
    const each = Math.max(1, Math.ceil(found.length / 12));
    return found.filter((_, place) => place % each === 0);
  }

  function logAxis(title, values, base = 2, named = null) {
    const positive = values.filter(value => known(value) && value > 0);
    const shown = positive.length ? positive : [1];
    const low = Math.log10(Math.min(...shown)), high = Math.log10(Math.max(...shown));
    const margin = 0.04 * Math.max(high - low, 0.45) + 0.03, range = [low - margin, high + margin];
    const at = named || ticks(...range.map(end => 10 ** end), base);
    return {title: {text: plain(title), standoff: 8}, type: "log", range, tickvals: at, ticktext: at.map(number)};
  }

  /* The values of estimates and the ends of their intervals, as far as these lie within a factor 4 of the values. */
  function reach(estimates) {
    const values = estimates.flatMap(ends => [ends[0], ends[3]]).filter(value => known(value) && value > 0);
    const low = Math.min(...values) / 4, high = Math.max(...values) * 4;
    return values.concat(estimates.flatMap(ends => [ends[1], ends[2]]).filter(end => end > low && end < high));
  }

  /* Batches or workers that were run, as far as there is room between them. */
  function apart(values, most = 9) {
    const sorted = [...new Set(values)].sort((a, b) => a - b);
    const gap = (sorted[sorted.length - 1] / sorted[0]) ** (1 / most);
    return sorted.reduce((found, value) =>
      !found.length || value >= 0.99 * gap * found[found.length - 1] ? [...found, value] : found, []);
  }

  function axis(title, values) {
    const some = values.filter(known);
    const low = Math.min(...some), high = Math.max(...some);
    return some.length && low > 0 && high > 8 * low ? logAxis(title, some, 10)
      : {title: {text: plain(title), standoff: 8}};
  }

  function layout(x, y, legend = true) {
    const line = {color: style("--ink"), gridcolor: style("--line"), linecolor: style("--soft"), zeroline: false,
                  tickfont: {size: 12}, automargin: true, fixedrange: false};
    return {
      xaxis: {...line, ...x}, yaxis: {...line, ...y}, showlegend: legend, dragmode: "zoom", hovermode: "closest",
      margin: {l: 56, r: 12, t: 8, b: 44}, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: {family: getComputedStyle(document.body).fontFamily, size: 13, color: style("--ink")},
      legend: {orientation: "h", y: -0.2, x: 0, yanchor: "top", font: {size: 12}},
      hoverlabel: {bgcolor: style("--panel"), bordercolor: style("--soft"), align: "left",
                   font: {color: style("--ink"), size: 12.5}},
    };
  }

  const CONFIG = {responsive: true, displayModeBar: false};           // dragging zooms, a double click goes back

  /* Points with their intervals; ends are [value, low, high, beyond]. Hollow: of hosts with more workers than cores. */
  function points(x, ends, texts, name, shade, symbol = "circle", hollow = []) {
    const met = x.map((_, at) => at).filter(at => known(ends[at][0]) && ends[at][0] > 0);
    const open = x.map((_, at) => at).filter(at => !known(ends[at][0]) && known(ends[at][3]) && ends[at][3] > 0);
    const up = at => known(ends[at][2]) ? ends[at][2] - ends[at][0] : 0;
    const down = at => known(ends[at][1]) ? ends[at][0] - ends[at][1] : 0;
    return [
      {x: met.map(at => x[at]), y: met.map(at => ends[at][0]), mode: "lines+markers", name, hoverinfo: "text",
       hovertext: met.map(at => texts[at]), line: {color: shade, width: 1.2},
       marker: {color: shade, size: 8, symbol: met.map(at => hollow[at] ? `${symbol}-open` : symbol),
                line: {color: shade, width: 1.5}},
       error_y: {type: "data", symmetric: false, array: met.map(up), arrayminus: met.map(down), thickness: 1.5, width: 0,
                 color: shade, visible: met.some(at => up(at) || down(at))}},
      {x: [null], y: [null], mode: "markers", name: "more workers than cores", hoverinfo: "skip",
       showlegend: met.some(at => hollow[at]), marker: {color: shade, size: 8, symbol: `${symbol}-open`,
                                                        line: {width: 1.5}}},
      {x: open.map(at => x[at]), y: open.map(at => ends[at][3]), mode: "markers", name: "not met: above",
       hoverinfo: "text", hovertext: open.map(at => texts[at]), showlegend: open.length > 0,
       marker: {color: shade, size: 10, symbol: "triangle-up-open", line: {width: 1.5}}},
    ];
  }

  /* Where the labels of points go: towards the middle of the axes, above or below where the one before is near. */
  function beside(x, y) {
    const share = values => {
      const logs = values.map(Math.log), low = Math.min(...logs), wide = Math.max(...logs) - low;
      return logs.map(value => wide ? (value - low) / wide : 0);
    };
    const [across, up] = [share(x), share(y)], found = [];
    x.map((_, at) => at).sort((a, b) => up[a] - up[b]).reduce((before, at) => {
      const near = before !== null && up[at] - up[before] < 0.08 && Math.abs(across[at] - across[before]) < 0.5;
      found[at] = `${near ? "top" : "middle"} ${across[at] < 0.5 ? "right" : "left"}`;
      return at;
    }, null);
    return found;
  }

  /* From the first point that was met: half for each doubling. */
  function halving(x, ends, name) {
    const first = x.findIndex((_, at) => known(ends[at][0]) && ends[at][0] > 0);
    const over = first < 0 ? [] : [Math.min(...x), Math.max(...x)];
    return {x: over, y: over.map(value => ends[first][0] * x[first] / value), mode: "lines", name, hoverinfo: "skip",
            line: {color: style("--soft"), dash: "dash", width: 1.2}};
  }

  function interval(ends, unit) {
    if (!known(ends[0])) return known(ends[3]) ? `not met within ${number(ends[3])} ${unit}` : "not met";
    const range = known(ends[1]) && known(ends[2]) && ends[1] !== ends[2]
      ? ` (${number(ends[1])}${HAIR}\u2013${HAIR}${number(ends[2])})` : "";
    return `${number(ends[0])} ${unit}${range}`;
  }

  /* ---- an explorer: a slider and the figures that follow it ---- */

  class Explorer {
    static ROLES = {fastest: "#d55e00", knee: "#009e73", cheapest: "#0072b2"};

    constructor(root) {
      this.root = root;
      this.data = JSON.parse(root.querySelector("script").textContent);
      this.slider = root.querySelector("input[type=range]");
      this.plots = [...root.querySelectorAll("[data-plot]")];
      root.hidden = false;
      this.slider.addEventListener("input", () => this.draw());
      root.querySelector(".back").addEventListener("click", () => {
        this.slider.value = this.data.start;
        this.draw();
      });
      this.choices();
      this.draw();
    }

    get stop() { return Number(this.slider.value); }

    draw() {
      const label = this.data.labels[this.stop];
      this.root.querySelector("output").textContent = label;
      this.slider.setAttribute("aria-valuetext", label);
      this.root.querySelector(".reached").textContent = this.reached();
      this.root.querySelector(".back").disabled = this.stop === this.data.start;
      this.say();
      this.plots.forEach(plot => {
        const [traces, shape] = this[plot.dataset.plot]();
        Plotly.react(plot, traces, shape, CONFIG);
      });
    }

    reached() {
      const met = this.data.fewest[this.stop].filter(trial => trial >= 0).length;
      const all = this.data.batches.length;
      return all === 1 ? (met ? "met" : "not met") : `met at ${met} of ${all} batch sizes`;
    }

    /* What hovering over a trial shows. */
    trial(at) {
      const all = this.data.trials;
      const lines = [`<b>${plain(all.logs[all.log[at]])}: trial ${all.id[at]}</b>, ${STATUS[all.status[at]]}`,
                     `global batch ${number(this.data.batches[all.study[at]])}, seed ${all.seed[at]}`];
      for (const [name, values] of Object.entries(all.metaparameters))
        if (known(values[at])) lines.push(`${plain(name.replace(/_/g, " "))} ${number(values[at])}`);
      if (known(all.best[at]))
        lines.push(`best ${plain(this.data.column)} ${number(all.best[at])} at step ${number(all.at[at])}`);
      return lines.join("<br>");
    }

    steps() {
      const {batches, fewest, steps} = this.data, row = steps[this.stop];
      const texts = row.map((ends, at) => [
        `global batch ${number(batches[at])}: ${interval(ends, "steps")}`,
        ...(fewest[this.stop][at] >= 0 ? [`fewest: ${this.trial(fewest[this.stop][at])}`] : [])].join("<br>"));
      const every = reach(steps.flat());
      return [[halving(batches, row, "perfect scaling"), ...points(batches, row, texts, "steps to target",
                                                                    color("#0072b2"))],
              layout(logAxis("global batch (examples)", batches, 2, apart(batches)), logAxis("steps to target", every))];
    }

    /* What the plan recommends at this stop, in words; at the page's own target the page itself says it. */
    say() {
      const place = this.root.querySelector(".said");
      if (!place || !this.data.plan) return;
      place.hidden = this.stop === this.data.start;
      place.replaceChildren(...this.data.plan.said[this.stop].map(sentence => {
        const line = document.createElement("p");
        line.textContent = sentence;
        return line;
      }));
    }

    /* The worker counts that the plan has at this stop: [workers, batch, seconds, cost, how known, crowded, place]. */
    options() {
      const {workers, options} = this.data.plan;
      return options[this.stop].map((one, at) => one && [workers[at], ...one, at]).filter(known);
    }

    optionText([workers, batch, seconds, cost, mark, crowded]) {
      return `<b>${number(workers)} worker${workers > 1 ? "s" : ""}</b>, global batch ${number(batch)}, ${plain(mark)}<br>` +
        `time to target ${interval([...seconds, null], "s")}<br>` +
        `cost ${interval([...cost, null], "worker-hours")}${crowded ? CROWDED : ""}`;
    }

    times() {
      const {workers, batches, seconds, crowded} = this.data.times, row = seconds[this.stop];
      const texts = row.map((ends, at) => `${number(workers[at])} worker${workers[at] > 1 ? "s" : ""}, global batch ` +
        `${number(batches[at])}: ${interval(ends, "s")}${crowded[at] ? CROWDED : ""}`);
      const every = reach(seconds.flat());
      return [[halving(workers, row, "ideal"), ...points(workers, row, texts, "time to target", color("#d55e00"),
                                                         "square", crowded)],
              layout(logAxis("workers", workers, 2, apart(workers)), logAxis("seconds to target", every, 10))];
    }

    costs() {
      const now = this.options(), roles = this.data.plan.roles[this.stop], hues = this.constructor.ROLES;
      const named = now.map(one => Object.keys(hues).filter(name => roles[name] === one[6]));
      const [x, y] = [now.map(one => one[2][0]), now.map(one => one[3][0])];
      const dots = {x, y, mode: "markers+text", cliponaxis: false, hoverinfo: "text", hovertext: now.map(this.optionText),
                    text: now.map((one, at) => number(one[0]) + (one[5] ? "#" : "") +
                      (named[at].length ? `: ${named[at].join(", ")}` : "")),
                    textposition: beside(x, y), textfont: {size: 12},
                    marker: {size: named.map(some => some.length ? 11 : 7), opacity: 1,
                             color: named.map(some => some.length ? color(hues[some[0]]) : style("--soft"))}};
      return [[dots], layout(logAxis("time to target (s)", x, 10), logAxis("cost (worker-hours)", y, 10), false)];
    }

    /* The scatter's lists to choose from: the batch, and what its axes show. */
    choices() {
      const form = this.root.querySelector(".choices");
      if (!form) return;
      const best = {name: "best", title: `best ${this.data.column}`};
      this.axes = [...this.data.scatter, best];
      const lists = {
        batch: [["all", "-1"], ...this.data.batches.map((batch, at) => [number(batch), String(at)])],
        x: this.axes.map((one, at) => [one.title, String(at)]), y: this.axes.map((one, at) => [one.title, String(at)])};
      const second = this.data.scatter[1];
      const spread = second && new Set(this.data.trials.metaparameters[second.name]).size > FEW;
      this.chosen = {batch: "-1", x: "0", y: String(spread ? 1 : this.axes.length - 1)};
      for (const select of form.querySelectorAll("select")) {
        select.append(...lists[select.name].map(([text, value]) => new Option(text, value)));
        select.value = this.chosen[select.name];
        select.addEventListener("change", () => {
          this.chosen[select.name] = select.value;
          this.draw();
        });
      }
    }

    values(axis) {
      const all = this.data.trials;
      if (axis.name === "best") return all.best;
      return all.metaparameters[axis.name].map(value => known(value) && axis.complement ? 1 - value : value);
    }

    /* Which colour is which batch: a bar beside the axes, which is no point. */
    legend(shades) {
      const last = shades.length - 1, each = Math.ceil(shades.length / 12);
      const named = shades.map((_, at) => at).filter(at => at % each === 0);
      return {x: [null], y: [null], mode: "markers", showlegend: false, hoverinfo: "skip", marker: {
        color: [0], cmin: 0, cmax: last, showscale: true, colorscale: shades.map((shade, at) => [at / last, shade]),
        colorbar: {title: {text: "batch", font: {size: 12}}, thickness: 10, len: 1, outlinewidth: 0, tickvals: named,
                   ticktext: named.map(at => number(this.data.batches[at])), tickfont: {size: 11}}}};
    }

    scatter() {
      const all = this.data.trials, [x, y] = [this.axes[this.chosen.x], this.axes[this.chosen.y]];
      const [xs, ys] = [this.values(x), this.values(y)], only = Number(this.chosen.batch);
      const meets = COMPARE[this.data.comparison], goal = this.data.stops[this.stop];
      const leading = new Set(this.data.fewest[this.stop]);
      const groups = {met: [], "not met": [], pruned: [], diverged: [], "fewest steps": []};
      all.id.forEach((_, at) => {
        if (!known(xs[at]) || !known(ys[at]) || (only >= 0 && all.study[at] !== only)) return;
        const met = known(all.best[at]) && meets(all.best[at], goal);
        groups[all.status[at] === DIVERGED ? "diverged" : leading.has(at) ? "fewest steps" : met ? "met" :
          all.status[at] === PRUNED ? "pruned" : "not met"].push(at);
      });
      const look = {met: ["circle", 8], "not met": ["circle-open", 8], pruned: ["square-open", 7], diverged: ["x-thin", 8],
                    "fewest steps": ["star", 15]};
      const shades = this.data.colors.map(color);
      const traces = Object.entries(groups).map(([name, found]) => ({
        x: found.map(at => xs[at]), y: found.map(at => ys[at]), mode: "markers", name, hoverinfo: "text",
        hovertext: found.map(at => this.trial(at)), showlegend: found.length > 0,
        marker: {symbol: look[name][0], size: look[name][1], color: found.map(at => shades[all.study[at]]),
                 line: {width: name === "fewest steps" ? 1 : 1.5, color: name === "fewest steps" ? style("--ink") :
                   found.map(at => shades[all.study[at]])}}}));
      if (only < 0 && this.data.batches.length > 1) traces.push(this.legend(shades));
      const shape = layout(axis(x.title, xs), axis(y.title, ys));
      if ("best" === y.name) shape.shapes = [{type: "line", xref: "paper", x0: 0, x1: 1, y0: goal, y1: goal,
                                              line: {color: style("--soft"), dash: "dash", width: 1.2}}];
      return [traces, shape];
    }
  }

  document.documentElement.classList.add("live");
  document.querySelectorAll(".table table").forEach(sortable);
  const explorers = [...document.querySelectorAll(".explorer")].map(root => new Explorer(root));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => explorers.forEach(one => one.draw()));
})();
