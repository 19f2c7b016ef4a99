"""Settings: layers one over the other, keys that exclude one another, and messages that name key and value."""
import pytest

from hvdscale.errors import UsageError
from hvdscale.plan.lengths import Length
from hvdscale.plan.settings import ALTERNATIVES, BATCH, KEYS, Settings, check, key_type, parse_assignments, read_toml

SAMPLES = {int: 3, float: 0.5, bool: True, str: "text", list: [3, 5], dict: {"a": 1}}
LENGTHS = {None: 5.0, "numbers": [3, 5], "pairs": [[0, 3], [5, 6]]}


def sample(name):
    """Some value that the key takes."""
    rules = KEYS[name].metadata
    if rules["units"]:
        return Length(LENGTHS[rules["many"]], "epochs")
    return rules["choices"][0] if rules["choices"] else SAMPLES[key_type(name)]


def test_a_later_layer_wins_over_an_earlier_one():
    settings = Settings.build({"lr": 0.1, "seed": 1}, {"lr": 0.2, "momentum": 0.5}, {"lr": 0.3})
    assert (settings.lr, settings.seed, settings.momentum) == (0.3, 1, 0.5)


@pytest.mark.parametrize("name", KEYS)
def test_every_key_is_taken_and_none_is_needed(name):
    assert getattr(Settings.build({}, {name: sample(name)}), name) == sample(name)
    assert Settings.build({}).typed == frozenset()


@pytest.mark.parametrize("earlier, later", [(a, b) for group in ALTERNATIVES for a in group for b in group if a != b])
def test_a_key_unsets_its_alternatives_of_earlier_layers(earlier, later):
    settings = Settings.build({earlier: sample(earlier)}, {later: sample(later)})
    assert getattr(settings, earlier) == KEYS[earlier].default
    assert getattr(settings, later) == sample(later)
    assert settings.typed == {later}


@pytest.mark.parametrize("group", [group for group in ALTERNATIVES if group is not BATCH], ids="-".join)
def test_two_alternatives_in_one_layer_are_an_error_naming_both(group):
    with pytest.raises(UsageError, match=f"{group[0]}.* and {group[1]}.* are alternatives"):
        Settings.build({}, {group[1]: sample(group[1]), group[0]: sample(group[0])})


def test_what_the_user_set_and_still_stands_is_what_was_asked_as_is_a_default_typed_again():
    settings = Settings.build({"lr": 0.1, "epochs": 5}, {"epochs": 2, "seed": 3}, {"steps": 7})
    assert settings.typed == {"seed", "budget"}
    assert settings.asked() == {"seed": 3, "steps": 7}
    assert Settings.build({"lr": 0.1}, {"lr": 0.1}).asked() == {"lr": 0.1}


def test_a_tuned_layer_lies_over_the_defaults_and_under_what_was_typed():
    settings = Settings.build({"lr": 0.1, "momentum": 0.5, "warmup_epochs": 2.0}, {"momentum": 0.8})
    tuned = settings.over({"lr": 0.7, "momentum": 0.99, "warmup_steps": 30})
    assert (tuned.lr, tuned.momentum, tuned.warmup_length) == (0.7, 0.8, Length(30, "steps"))
    assert tuned.asked() == {"momentum": 0.8}


def test_a_whole_number_is_taken_for_a_number_unless_it_is_none(worded):
    assert type(Settings.build({}, {"lr": 1}).lr) is float
    with worded.error(UsageError):
        check("lr", 10**400)


@pytest.mark.parametrize("texts, layer", [
    ([], {}),
    (["lr=0.1", "steps = 20"], {"lr": 0.1, "steps": 20}),
    (["lr=1e-4"], {"lr": 1e-4}),
    (["keep_going=true"], {"keep_going": True}),
    (["target=val/error<0.01"], {"target": "val/error<0.01"}),
    (["target=val/error<=0.01"], {"target": "val/error<=0.01"}),
    (['log="runs/a b.h5"'], {"log": "runs/a b.h5"}),
    (["log=runs/a.h5"], {"log": "runs/a.h5"}),
    (["log="], {"log": ""}),
    (["decay_at_epochs=[30, 60]"], {"decay_at_epochs": [30, 60]}),
    (["model_args={width = 8}"], {"model_args": {"width": 8}}),
    (["model_args.width=8", "model_args.act=relu"], {"model_args": {"width": 8, "act": "relu"}}),
    (["optimizer_args.betas=[0.9, 0.99]"], {"optimizer_args": {"betas": [0.9, 0.99]}}),
    (["seed=1", "seed=2"], {"seed": 2}),
])
def test_assignments_are_read_as_toml_and_else_as_text(texts, layer):
    assert parse_assignments(texts) == layer


def test_a_toml_file_is_read_with_its_tables(tmp_path):
    (tmp_path / "job.toml").write_text('lr = 0.1\n[model_args]\nwidth = 8\n')
    assert Settings.build({}, read_toml(tmp_path / "job.toml")).asked() == {"lr": 0.1, "model_args": {"width": 8}}


@pytest.mark.parametrize("content, said", [
    (None, "cannot be read: No such file"), ("folder", "cannot be read: is not a regular file"),
    (b"lr = 0.1\nseed = = 3\n", r"is not TOML: .*line 2"), (b"\xff\xfe", "is not TOML: ")])
def test_a_file_that_is_no_toml_is_named_with_the_place_of_the_error(tmp_path, content, said):
    path = tmp_path / "job.toml"
    if content == "folder":
        path.mkdir()
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError, match=f"job.toml: {said}"):
        read_toml(path)


def test_a_key_lapses_where_a_later_layer_sets_what_it_does_not_act_beside():
    preset = {"decay": "step", "decay_at_epochs": [30, 60], "optimizer": "nesterov", "momentum": 0.8}
    settings = Settings.build({}, preset, {"decay": "cosine", "optimizer": "adam"})
    assert settings.decay_at is None and settings.asked() == {"decay": "cosine", "optimizer": "adam"}
    assert Settings.build({}, preset, {"decay": "step"}).decay_at == Length([30, 60], "epochs")
    refused = Settings.build({}, preset, {"optimizer": "adam", "momentum": 0.5})         # by the plan
    assert "momentum" in refused.typed
