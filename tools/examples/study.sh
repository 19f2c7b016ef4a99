#!/bin/bash
# A study on Slurm, from this folder: two jobs of two workers each share the trials of one sweep, and a report follows
# when both have ended. Further options of sbatch, such as -p or -A, are the arguments:
#
#     ./study.sh --time=30
set -euo pipefail
templates=${HVDSCALE_TEMPLATES:-../../slurm}        # the folder of study.sbatch, in a checkout with a .venv
out=sweeps/macro_f1
study=$(sbatch --parsable --array=0-1 -n2 --requeue --signal=B:USR1@120 "$@" "$templates/study.sbatch" sweep.toml \
        --out "$out")
report=$(sbatch --parsable --dependency="afterany:$study" "$@" "$templates/report.sbatch" "$out" --out "$out/report")
echo "study $study, report $report: $out/report/report.html"
