#!/bin/bash
# Steps to a target against H, the steps between synchronizations, and M, the replicas:
#
#     tools/studies/local_steps.sh DATA OUT               4 core-hours; the same command resumes what was interrupted
#     tools/studies/local_steps.sh DATA OUT transformer   one workload
#
# Rates are searched for synchronous steps, and at M = 4 for H = 1 and 64: runs at H = 1 and 4 take those of 1, the
# others those of 64. At H = 1, where few trials meet the target, the best value within the budget counts.
# OUT/cnn/m4-h16-s0.h5 is the run at M = 4 and H = 16 with seed 0; m1-h0 are the synchronous ones.
set -euo pipefail
data=${1:?folder of data sets} out=${2:?folder for the results} here=$(cd "$(dirname "$0")" && pwd)/local_steps
shift 2
cnn=(mnist/simple_cnn --data-dir "$data/mnist" --global-batch 128 --target 'val/error<0.03' --set eval_batch=500
     --precision bf16)
transformer=(text/transformer --data-dir "$data/text/tinyshakespeare" --data-arg vocabulary=char --data-arg sequence=64
             --global-batch 64 --target 'val/cross_entropy<2.1' --set eval_batch=64)
[ $# -gt 0 ] || set -- cnn transformer
for name in "$@"; do
    declare -n job=$name
    folder=$out/$name
    mkdir -p "$folder"
    metric=$(sed -n 's/^targets = \["\([a-z_/]*\).*/\1/p' "$here/$name.toml")
    sed -e 's/^sync_every = .*/sync_every = 1/' -e "s|^targets = .*|objective = \"$metric\"|" -e '/^prune_keep/d' \
        "$here/$name.toml" >"$folder/every_1.toml"
    cp "$here/$name.toml" "$folder/every_64.toml"
    cp "$here/${name}_synchronous.toml" "$folder/every_0.toml"
    for every in 0 1 64; do
        hvdscale-tune "$folder/every_$every.toml" --data-dir "${job[2]}" --out "$folder/every_$every"
    done
    for run in 1:0 4:1 4:4 4:16 4:64 4:256 2:1 2:16 2:256 8:1 8:16 8:256; do
        replicas=${run%:*} every=${run#*:} rates=64
        if [ "$every" -le 4 ]; then rates=$((every > 0)); fi
        local=(--replicas "$replicas" --sync-every "$every")
        if [ "$every" = 0 ]; then local=(); fi
        for seed in 0 1 2; do
            log=$folder/m$replicas-h$every-s$seed.h5
            hvdscale-train "${job[@]}" --lr-rule tuned --metaparameters "$folder/every_$rates/tuned.toml" "${local[@]}" \
                --steps 500 --eval-every 10 --set eval_splits=val --set keep_going=true --seed "$seed" --log-file "$log" \
                --checkpoint "$folder/checkpoints/m$replicas-h$every-s$seed" --resume auto --set keep_checkpoints=1 \
                || [ $? = 3 ]                                                   # it may diverge
        done
    done
done
