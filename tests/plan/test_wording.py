"""What is said of keys that cannot hold, word by word, as tests/golden/keys.txt keeps it."""
from hvdscale.errors import PlanError, UsageError
from hvdscale.plan.settings import check, parse_assignments
from tests.factories.plans import settled
from tests.wording import refusals

ADAM_SQRT = dict(optimizer="adam", lr_rule="adam_sqrt")
RAMP = [[0, 20], [10, 40], [30, 120]]
UNSETTLED = [
    # the batch
    dict(defaults=dict(lr=0.1, steps=9)),
    dict(workers=2, global_batch=20, local_batch=8),
    dict(workers=2, global_batch=20, local_batch=4, accumulate=3),
    dict(workers=2, global_batch=256, accumulate=2, max_local_batch=32),
    dict(global_batch=1001),
    dict(workers=12, local_batch=100),
    dict(workers=4, global_batch=3),
    dict(workers=2, global_batch=3, accumulate=4),
    # the learning rate
    dict(defaults=dict(local_batch=10, steps=9)),
    dict(lr_per_example=0.001, lr_rule="sqrt"),
    dict(lr_per_example=0.1, base_batch=4), dict(lr_per_example=0.1, max_lr_factor=4.0),
    dict(workers=10, **ADAM_SQRT),
    dict(workers=50, **ADAM_SQRT, beta2=0.98),
    dict(workers=60, optimizer="adam", lr_rule="adam_sqrt:beta2", beta2=0.98),
    dict(workers=16, **ADAM_SQRT, beta1=0.9375),
    *(dict(optimizer=name, lr_rule="adam_sqrt") for name in ("sgd", "nesterov", "lars", "torch.optim:Adam")),
    dict(lr_rule="tuned"),
    dict(metaparameters="tuned.toml"),
    *(dict(batch_schedule=pairs, **keys) for pairs, keys in (
        ([[0, 20], [5, 2000]], {}), ([[0, 2], [5, 20]], dict(workers=3)),
        ([[0, 4], [5, 8]], dict(workers=3, accumulate=4)), (RAMP, dict(last_batch="short")), (RAMP, dict(decay="cosine", batch_schedule_lr="seesaw")))),
    dict(batch_schedule_lr="stay"), dict(batch_schedule_examples=[[0, 20], [30, 40], [35, 80]]),
    # the optimizer
    dict(momentum=0.5, optimizer="adam"), dict(momentum=0.5, optimizer="sgd"),
    dict(momentum_half_life=60, optimizer="adam"), dict(beta1=0.5), dict(beta2=0.5, optimizer="lars"),
    dict(epsilon=1e-3, optimizer="torch.optim:Adam"), dict(trust_coefficient=0.1, optimizer="lamb"),
    *(dict(lr_in_velocity=True, optimizer=name) for name in ("adam", "lars")), dict(decay_norm_and_bias=True),
    dict(momentum_correction=True), dict(momentum_correction=True, optimizer="sgd"),
    dict(optimizer_args={"eps": 1}, optimizer="adam"),
    dict(beta2_half_life=60), dict(beta2_half_life=60, optimizer="torch.optim:Adam"),
    dict(beta1_half_life=60, **ADAM_SQRT),
    dict(decay_timescale=0.01, optimizer="adamw"), dict(decay_timescale=2, optimizer="lamb"), dict(decay_timescale=2),
    # warmup and decay
    dict(decay_steps=5), dict(decay_start_steps=30), dict(end_lr_factor=0.1), dict(decay_factor=0.5, decay="linear"),
    dict(warmup_start_factor=0.1, warmup="none"),
    dict(decay="step"),
    dict(workers=8, decay="linear", decay_steps=20, warmup_steps=20),
    dict(decay="cosine", seconds=3.0),
    dict(decay="linear", warmup_steps=20, decay_start_steps=10),
    dict(decay="1-sqrt", decay_start_steps=30, decay_steps=30),
    dict(decay="inverse_sqrt", warmup="none"),
    # budget, target, evaluation
    dict(defaults=dict(local_batch=10, lr=0.1)),
    *(dict(eval_splits=splits) for splits in ("valid", "train,", "train;val")),
    dict(target="val/error>0.9"),
    dict(target="val/accuracy>0.9"),
    dict(target="val/error<0.1", eval_every=0),
    # averages and the loss scale
    dict(average="ema"), dict(average="tail", average_start_steps=100), dict(average_half_life=5.0),
    dict(average="ema", average_half_life=5.0, average_start_steps=1), dict(target="val/averaged_error<0.1"),
    dict(loss_scale=2.0),
    # replicas
    dict(replicas=3, global_batch=64, sync_every=2), dict(workers=3, replicas=4, global_batch=64, sync_every=2),
    dict(replicas=4, global_batch=64), dict(outer="nesterov"), dict(outer_lr=0.5, sync_every=2), dict(exchange="bf16"),
    dict(sync_every=101), dict(sync_every="6401 examples", global_batch=64),
    dict(replicas=2, sync_every="1 epoch", defaults=dict(lr=0.1, steps=100), batch_schedule=[[0, 32], [9, 64]]),
    dict(replicas=4, global_batch=64, sync_every=2, ghost_batch="global"),
    dict(replicas=4, global_batch=64, sync_every=2, ghost_batch=32), dict(replicas=4, global_batch=4, sync_every=2),
    dict(replicas=2, global_batch=64, sync_every=2, last_batch="short", train=127),
    *(dict(replicas=2, global_batch=64, sync_every=2, **{name: value}) for name, value in (
        ("precision", "fp16"), ("compression", "fp16"), ("exact", True), ("noise_every", 5)))]
MISUSED = [
    dict(lr_rule="cubic"), dict(optimizer="adam", beta2=0.9, beta2_half_life=600), dict(target="val/error"),
    dict(exchange="powersgd:0"), dict(steps=5, epochs=3), dict(budget=10), dict(budget="ten epochs"),
    dict(budget="2.5 steps"), dict(warmup="5 min"), dict(warmup="slow"), dict(decay_at="60, 30 epochs"),
    dict(budget="0 epochs"), dict(beta1_half_life="5 steps"), dict(budget="5 steps", epochs=3),
    dict(warmup="5 steps", warmup_epochs=3),
    dict(global_batch=64, batch_schedule=RAMP), *(dict(batch_schedule=value) for value in (
        [], [[1, 64]], [[0, 64], [0, 128]], [[0, 64], [9, 128], [5, 256]], [[0, 0]], [[0, 64], [2.5, 128]],
        [[0, 64, 1]], [0, 64], [[0, True]])),
    dict(localbatch=1), dict(learning_rate=1), dict(momentun=1), dict(weightdecay=1)]
WRONG_VALUES = [dict(name=name, value=value) for name, value in (
    ("local_batch", 0), ("local_batch", 2.5), ("local_batch", True), ("local_batch", "32"), ("ghost_batch", 1),
    ("lr", 0), ("lr", -0.1), ("lr", float("nan")), ("lr", float("inf")), ("lr", "fast"), ("lr", True),
    ("epochs", float("inf")), ("momentum", 1), ("momentum", -0.1), ("beta2", 1), ("epsilon", 0),
    ("clip_norm", 0), ("label_smoothing", 1.0), ("seed", 2**63), ("seed", -1), ("keep_going", 1),
    ("lr_in_velocity", "yes"), ("target", 0.01), ("model_args", 3), ("decay_at_epochs", 30), ("decay_at_epochs", []),
    ("decay_at_epochs", [60, 30]), ("decay_at_epochs", [1, float("inf")]), ("decay_at_steps", [0, 5]),
    ("decay_at_steps", [2.5, 7]), ("decay_at_steps", ["5"]), ("last_batch", "wrap"), ("warmup", "slow"),
    ("decay", "exp"), ("device", "tpu"), ("precision", "fp8"))]
NO_ASSIGNMENTS = [dict(texts=texts) for texts in (
    ["seed"], ["=3"], ["seed.a=3"], ["nothing.a=3"], ["model_args=7", "model_args.a=3"])]


def test_keys_that_cannot_hold_are_refused_in_the_same_words(golden):
    golden("keys", "\n".join([
        refusals(PlanError, settled, UNSETTLED), refusals(UsageError, settled, MISUSED),
        refusals(UsageError, check, WRONG_VALUES), refusals(UsageError, parse_assignments, NO_ASSIGNMENTS)]))
