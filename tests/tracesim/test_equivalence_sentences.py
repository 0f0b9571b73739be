"""The test behind a verdict, in sentences that are read once."""

from iotwin.tracesim.verdict.equivalence_sentences import sentences_of_test
from iotwin.tracesim.verdict.wrong_twins import CONTROLS

MARGINS = {"time in training": 0.12, "calls to read on dataset files": 0.04, "bytes read from dataset files": 0.05}


def a_test(controls, distance_ratio=13.04, interval=(8.8, 33.06), margins=MARGINS):
    return {
        "distance_ratio": distance_ratio,
        "interval": list(interval) if interval else None,
        "margin": 2.32,
        "controls": controls,
        "smallest_change_noticed": margins,
    }


def control(noticed, overall=0.925):
    return {"overall": overall, "distance": 2.0, "noticed": noticed}


def test_distance_faults_and_least_changes_are_told():
    controls = {"order sorted": control(True), "times shuffled": control(False), "computation halved": control(True)}
    assert sentences_of_test(a_test(controls)) == [
        "B is 13.0 times as far from A as reruns of A are from one another (95 % interval 8.8 to 33.1); "
        "up to 2.3 times counts as alike",
        "faults put into A on purpose that would be called different: files in order of name, half the computation",
        "faults put into A on purpose that would not be noticed: calls at random times",
        "smallest changes that would be noticed: 12 % of time in training, 5 % of bytes read from dataset files",
    ]


def test_without_reruns_the_scores_of_the_faults_are_told():
    controls = {"order shuffled": control(None, 0.878), "computation halved": control(None, 0.929)}
    said = sentences_of_test(a_test(controls, None, None, {}), "the job", "its twin")
    assert said == [
        "with a fault put into it on purpose, the job scores: files in random order 0.878, half the computation 0.929"
    ]


def test_no_interval_is_told_where_nothing_can_vary_and_what_has_no_answer_is_left_out():
    said = sentences_of_test(a_test({"times shuffled": control(None)}, interval=None, margins={}), "the job", "its twin")
    assert said == [
        "its twin is 13.0 times as far from the job as reruns of the job are from one another; up to 2.3 times counts as alike"
    ]


def test_every_control_has_words():
    assert len(sentences_of_test(a_test({name: control(True) for name in CONTROLS}))[1].split(",")) == len(CONTROLS)
