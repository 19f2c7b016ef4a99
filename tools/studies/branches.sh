#!/bin/bash
# The branches and growing batches of README.rst, some minutes each:   tools/studies/branches.sh DATA OUT
set -euo pipefail
data=${1:?folder of data sets} out=${2:?folder for the results}
for rule in sqrt linear; do
    hvdscale-branch mnist/fc_64_64_64 --data-dir "$data/mnist" --optimizer sgd --lr 0.1 --global-batch 8 --base-batch 8 \
        --set warmup=none --set decay=constant --set eval_batch=500 --steps 8671 --at 250,1000,2500,5000,8671 \
        --factors 1,2,4,8,16,32,64,128,256 --orders 5 --rule $rule --out "$out/fc_$rule"
done
hvdscale-branch mnist/simple_cnn --data-dir "$data/mnist" --optimizer nesterov --lr 0.01 --global-batch 32 \
    --base-batch 32 --set warmup=none --set decay=constant --set train_eval_examples=2000 --steps 1000 \
    --at 100,300,1000 --factors 1,2,4,8,16,32 --branch-examples 8192 --out "$out/cnn"
hvdscale-branch text/transformer_narrow_and_shallow --data-dir "$data/text/tinyshakespeare" \
    --data-arg vocabulary=char --data-arg sequence=32 --set warmup=none --optimizer adamw --lr 0.003 \
    --set 'model_args={width = 32, hidden = 128, heads = 2, layers = 2, dropout = 0.0}' --global-batch 8 \
    --base-batch 8 --set train_eval_examples=2000 --steps 2000 --at 100,500,2000 \
    --factors 1,2,4,8,16,32,64 --branch-examples 8192 --out "$out/shakespeare"
for seed in 0 1 2; do                           # and with --global-batch 32, 128 and 256 in place of the schedule
    hvdscale-train mnist/simple_cnn --data-dir "$data/mnist" --optimizer nesterov --lr 0.01 --base-batch 32 \
        --set batch_schedule='[[0, 32], [300, 128]]' --set warmup=none --set decay=constant --budget "320000 examples" \
        --eval-every "3200 examples" --target 'val/error<0.01' --seed $seed --log-file "$out/growing-$seed.h5"
done
