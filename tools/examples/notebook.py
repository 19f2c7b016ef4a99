# Results as values, for a notebook: each part after "# %%" is a cell. It needs no torch.

# %% Read every log of a folder: also hvdscale.read("runs"), one log, or a list of them.
import numpy as np

import hvdscale

runs = hvdscale.read("runs/*.h5")
runs

# %% Tables of the logs are columns, which are numpy arrays; .to_pandas() makes a DataFrame of them.
evaluations = runs.evaluations
measured = [name for name in evaluations.columns if "val/" in name and np.isfinite(evaluations[name]).any()]
metric = measured[-1]
for log, trial in zip(runs.trials["log"], runs.trials["id"]):
    own = (evaluations["log"] == log) & (evaluations["trial"] == trial)
    last, steps = evaluations[metric][own][-1], evaluations["step"][own][-1]
    print(f"{log}, trial {trial}: {metric} {last:.3g} after {steps} steps")

# %% The report of hvdscale-report: sentences, findings with intervals, tables as records.
report = runs.report()
print(*report.verdict, sep="\n")
for finding in report.findings:
    print(finding["said"], finding["value"], finding["low"], finding["high"])
for name, table in report.tables.items():
    print(name, table.records()[0])

# %% Figures are matplotlib's: change one, and keep it as PDF.
for name, figure in report.figures.items():
    figure.axes[0].set_title("mine")
    figure.savefig(f"{name}.pdf")
