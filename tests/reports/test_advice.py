"""What a sweep says of its settings: each finding is provoked."""

from dataclasses import replace

from reports.studies import line, made, study
from tdcd.reports.advice import advice
from tdcd.reports.study import Panel
from tdcd.runs.records import Finding

GOOD = [0.1, 0.5, 0.9, 0.92]


def test_a_sound_sweep_needs_no_advice() -> None:
    rates = {0.1: 0.3, 0.3: 0.2, 1.0: 0.4}
    quick = replace(line(made(1, GOOD)), rate=0.3, tried=rates)
    assert advice(study(Panel("", (quick,), ()))) == []


def test_rates_at_the_edge() -> None:
    rates = {0.1: 0.3, 0.3: 0.2, 1.0: 0.1}
    low = replace(line(made(1, GOOD)), rate=0.1, tried=rates)
    high = replace(line(made(6, GOOD)), rate=1.0, tried=rates)
    one = replace(line(made(12, GOOD)), rate=1.0, tried={1.0: 0.1})
    found = {finding.text: finding.advice for finding in advice(study(Panel("", (low, high, one), ()), wanted=2.0))}
    where = "K = 3, N = 2 is the"
    assert found == {
        f"The best rate for Q = 1, {where} smallest that was tried, 0.1": "Try smaller ones too, such as 0.033",
        f"The best rate for Q = 6, {where} largest that was tried, 1": "Try larger ones too, such as 3",
    }


def test_local_steps_that_cost_more_than_they_gain() -> None:
    few, many = line(made(1, [0.1, 0.9, 0.92])), line(made(20, [0.1, *[0.2] * 9, 0.9, 0.92]))
    (at_10, at_100) = advice(study(Panel("", (few, many), ())))
    assert at_10.kind == at_100.kind == "wasted-steps"
    assert at_10.numbers == {"t_comm": 10.0, "time_1": 62.0, "time_20": 550.0}
    assert "At t_comm 10, Q = 20 takes 8.9 times as long as Q = 1 to test accuracy 0.92" in at_10.text
    assert "Use Q = 1 there" in at_10.advice
    quick = line(made(20, [0.1, 0.92]))
    assert advice(study(Panel("", (few, quick), ()), t_comm=(100.0,))) == []


def test_runs_that_learned_nothing() -> None:
    run = made(1, GOOD)
    assert run.outcome
    useless = Finding("trivial", "failure", "The model is no better", "Try others")
    bad = replace(run, outcome=replace(run.outcome, findings=(useless,)))
    (finding,) = advice(study(Panel("", (line(bad, made(1, GOOD, seed=2)),), ())))
    assert (finding.kind, finding.level) == ("useless-runs", "failure")
    assert "1 of 2 runs learned nothing (the model is no better)" in finding.text
