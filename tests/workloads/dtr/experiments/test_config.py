"""Configurations: what they unfold into, the arguments of each training, and errors that name the key.

The runs and names of all configurations in the authors' repository, of every commit, were compared with those of their programs.
"""

import pytest

from iotwin.common.errors import UsageError
from iotwin.workloads.dtr.experiments.config import read_experiment
from iotwin.workloads.dtr.experiments.settings import settings_of, with_peak
from iotwin.workloads.dtr.experiments.trials import Machine
from tests.workloads.dtr.experiments import CONFIG, changed, value_of, written


def settings(folder, config=CONFIG):
    return list(settings_of(read_experiment(written(folder, config))))


def named(folder, text, config=CONFIG):
    return next(setting for setting in settings(folder, config) if setting.file_name == text)


def test_lists_unfold_into_their_product_under_the_original_names(tmp_path):
    assert [setting.file_name for setting in settings(tmp_path)] == [
        "cmd-0-baseline-5-lstm.csv",
        "cmd-1-dtr-ratio-0.9-lstm.csv",
        "cmd-1-dtr-ratio-0.5-lstm.csv",
        "cmd-0-baseline-2-unet.csv",
        "cmd-0-baseline-3-unet.csv",
        "cmd-1-dtr-fixed-2-8000000.0-unet.csv",
        "cmd-1-dtr-fixed-2-4000000.0-unet.csv",
        "cmd-1-dtr-fixed-2-1000000.0-unet.csv",
        "cmd-2-dtr-sweep-2-6000000.0-unet.csv",
        "cmd-2-dtr-sweep-3-6000000.0-unet.csv",
    ]


def test_runs_with_the_same_original_name_have_tables_of_their_own(tmp_path):
    config = changed("dtr_settings", "unet", 1, "memory_budget", to=8e6)
    config["dtr_settings"]["unet"][1]["heuristic"] = ["DTR", "LRU"]
    names = [setting.file_name for setting in settings(tmp_path, config) if setting.command_id == 1]
    assert names[-2:] == ["cmd-1-dtr-fixed-2-8000000.0-unet.csv", "cmd-1-dtr-fixed-2-8000000.0-unet-2.csv"]


def test_a_baseline_inherits_the_batch_size_only(tmp_path):
    plain, budgeted = named(tmp_path, "cmd-0-baseline-2-unet.csv"), named(tmp_path, "cmd-2-dtr-sweep-3-6000000.0-unet.csv")
    assert (plain.timeout_s, budgeted.timeout_s) == (60, 30)
    without = changed("dtr_settings", "unet", to=[{"type": "baseline"}])
    assert named(tmp_path, "cmd-0-baseline-2-unet.csv", without).params == {"type": "baseline", "batch_size": 2}


def test_sampling_ends_at_a_budget_or_ratio_wherever_the_key_is(tmp_path):
    def sampled(config):
        return [setting.samples_candidates for setting in settings(tmp_path, config) if setting.params["type"] == "dtr"]

    assert sampled(CONFIG) == [True, False, True, False, False, True, True]
    assert sampled(changed("dtr_settings", "unet", 1, "extra_params", to={"use_sampling": False}))[2:5] == [False] * 3
    moved = changed("dtr_settings", "unet", 1, "no_sampling_below_budget", to=1e6)
    assert sampled(moved)[2:5] == [True, True, False]


def test_the_arguments_of_a_training(tmp_path):
    experiment, machine = read_experiment(written(tmp_path)), Machine("tiny", "cpu")
    fixed = machine.words(named(tmp_path, "cmd-1-dtr-fixed-2-4000000.0-unet.csv"), experiment, 1)
    assert fixed == [
        "train", "unet:height=48", "--batch", "2", "--steps", "4", "--preset", "tiny", "--device", "cpu", "--seed", "8",
        "--budget", "4000000", "--no-search", "--ignore-small",
    ]  # fmt: skip
    swept = machine.words(named(tmp_path, "cmd-2-dtr-sweep-3-6000000.0-unet.csv"), experiment, 0)
    assert swept[-6:] == ["6000000", "--no-search", "--heuristic", "LRU", "--sampling", "--ignore-small"]
    plain = machine.words(named(tmp_path, "cmd-0-baseline-3-unet.csv"), experiment, 0)
    assert plain[-3:] == ["--seed", "7", "--plain"] and "--budget" not in plain
    ratio = with_peak(named(tmp_path, "cmd-1-dtr-ratio-0.9-lstm.csv"), 1000)
    assert value_of(machine.words(ratio, experiment, 0), "--budget") == "900"


def test_a_budget_of_minus_1_is_none(tmp_path):
    config = changed("dtr_settings", "unet", 1, "memory_budget", to=-1)
    setting = named(tmp_path, "cmd-1-dtr-fixed-2--1-unet.csv", config)
    words = Machine().words(setting, read_experiment(written(tmp_path, config)), 0)
    assert setting.budget_bytes is None and int(value_of(words, "--budget")) >= 1 << 50 and setting.samples_candidates


def test_batch_sizes_that_are_lengths_or_depths_become_sizes(tmp_path):
    assert named(tmp_path, "cmd-0-baseline-5-lstm.csv").model_words() == ("lstm:in_dim=4,mem_dim=6,length=5", 3)
    for extra, expected in (
        ({"in_dim": 3, "input_size": 9}, ("treelstm:in_dim=3,dep=4", 9)),
        ({"dep": 6}, ("treelstm:dep=6", 4)),
        ({}, ("treelstm:dep=4", 100)),
    ):
        config = {
            "models": ["treelstm"],
            "dtr_settings": {"treelstm": [{"type": "baseline", "batch_size": 4, "extra_params": extra}]},
        }
        assert settings(tmp_path, config)[0].model_words() == expected


def test_missing_keys_have_the_defaults_and_notes(tmp_path):
    config = {"models": ["unet"], "dtr_torch_cmd": "~/python3", "log_dest": "~/logs", "note_on_errors": "a comment",
              "dtr_settings": {"unet": [{"type": "baseline"}]}}  # fmt: skip
    experiment = read_experiment(written(tmp_path, config))
    assert (experiment.dry_run, experiment.n_inputs, experiment.n_reps, experiment.sync_gpu) == (8, 3, 100, True)
    assert (experiment.seed, experiment.report_errors, experiment.active) == (0, False, True)
    assert [note.split()[0] for note in experiment.notes] == ["dtr_torch_cmd", "log_dest", "sync_gpu", "n_reps"]
    assert settings(tmp_path, config)[0].params["batch_size"] == 8
    assert read_experiment(written(tmp_path, {**config, "n_times_per_input": 4})).n_reps == 4


def test_ignored_kinds_are_left_out_but_numbers_remain(tmp_path):
    names = [setting.file_name for setting in settings(tmp_path, {**CONFIG, "ignore_kind": ["fixed", "ratio"]})]
    assert names[-1] == "cmd-2-dtr-sweep-3-6000000.0-unet.csv" and not any("fixed" in name or "ratio" in name for name in names)


def test_an_experiment_is_named_after_its_file_or_folder(tmp_path):
    (tmp_path / "pareto_curve").mkdir()
    assert read_experiment(written(tmp_path)).name == "study"
    assert read_experiment(written(tmp_path / "pareto_curve", name="config.json")).name == "pareto_curve"


UNET = ("dtr_settings", "unet", 1)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ([], "is not the configuration of an experiment"),
        ({**CONFIG, "n_rep": 3}, "study.json: unknown key 'n_rep' (did you mean 'n_reps'?)"),
        ({**CONFIG, "n_reps": 0}, "study.json.n_reps must be a whole number of at least 1 (got 0)"),
        ({**CONFIG, "n_reps": True}, "n_reps must be a whole number"),
        ({**CONFIG, "active": "yes"}, "active must be true or false (got 'yes')"),
        ({**CONFIG, "models": ["unett"]}, "models: unknown model 'unett' (did you mean 'unet'?)"),
        ({**CONFIG, "models": []}, "models must not be an empty list"),
        ({**CONFIG, "models": "unet"}, "models must be a list of texts"),
        ({**CONFIG, "models": ["gru"]}, "dtr_settings.gru is missing"),
        ({**CONFIG, "dtr_settings": []}, "dtr_settings must be an object"),
        (changed("dtr_settings", "unet", to={}), "dtr_settings.unet must be a list of commands"),
        (changed("dtr_settings", "unit", to=[]), "dtr_settings.unit: unknown model 'unit' (did you mean 'unet'?)"),
        (changed("dtr_settings", "default", "timeout", to="x"), "dtr_settings.default.timeout must be a number above 0"),
        (changed(*UNET, "memory_bugdet", to=1), "settings.unet[1]: unknown key 'memory_bugdet' (did you mean 'memory_budget'?)"),
        (changed(*UNET, "memory_budget", to=[8e6, 0]), "dtr_settings.unet[1].memory_budget[1] must be a number of bytes"),
        (changed(*UNET, "memory_budget", to=[]), "dtr_settings.unet[1].memory_budget must not be an empty list"),
        (changed(*UNET, "memory_budget", to=None), "memory_budget is missing: a command of the kind fixed requires it"),
        (changed(*UNET, "kind", to="ratio"), "ratio is missing: a command of the kind ratio requires it"),
        (changed(*UNET, "kind", to=None), "dtr_settings.unet[1]: kind is missing"),
        (changed(*UNET, "kind", to="fix"), "kind must be one of fixed, ratio, param_sweep (got 'fix')"),
        (changed(*UNET, "type", to="simrd"), "dtr_settings.unet[1].type must be one of baseline, dtr (got 'simrd')"),
        (changed(*UNET, "type", to=None), "dtr_settings.unet[1]: type is missing"),
        (changed(*UNET, "batch_size", to=[2, -1]), "dtr_settings.unet[1].batch_size[1] must be a whole number"),
        (changed(*UNET, "extra_params", to={"hight": 3}), "unet[1].extra_params: unknown key 'hight' (did you mean 'height'?)"),
        (changed(*UNET, "extra_params", to={"height": "3"}), "extra_params.height must be a number (got '3')"),
        (changed(*UNET, "ratio", to=0), "ratio must be a number above 0"),
        ({"models": ["treelstm"], "dtr_settings": {"treelstm": [{"type": "baseline", "batch_size": 32}]}}, "at most 20 (got 32)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_by_its_key(tmp_path, config, message):
    with pytest.raises(UsageError) as raised:
        read_experiment(written(tmp_path, config))
    assert message in str(raised.value) and str(tmp_path / "study.json") in str(raised.value)


def test_files_that_are_no_json_are_refused(tmp_path):
    (tmp_path / "x.json").write_text("{")
    for name in ("x.json", "missing.json"):
        with pytest.raises(UsageError, match=name):
            read_experiment(tmp_path / name)
