"""Translations by beam search against every possible translation, and BLEU of a trained GNMT's checkpoints."""

import json
import sys
from itertools import product

import pytest
import torch
from torch import nn

from iotwin.main import main
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.runtime.beam_search import BEGIN, END, Beam, Translator
from tests.workloads.pipedream.runtime.ranks import run_ranks, write_conf

WORDS, LENGTH = 5, 2


class _Attention(nn.Module):
    def shares(self, targets, sources):
        mixed = (targets.unsqueeze(1) * 3 + sources.unsqueeze(0) * 5 + torch.arange(len(targets))[:, None, None]) % 7
        return (mixed.double() + 0.1).softmax(1)

    def forward(self, targets, sources):
        return self.shares(targets, sources)


class _Model(nn.Module):
    """Scores words by a table of the last two words and the source."""

    def __init__(self, seed):
        super().__init__()
        self.table = torch.randn(WORDS, WORDS, WORDS, generator=torch.Generator().manual_seed(seed)).double()
        self.attention = _Attention()

    def forward(self, source, target):
        self.attention(target, source)
        before = torch.cat([target[:1] * 0, target[:-1]])
        return self.table[before, target] + self.table[source.sum(0) % WORDS, before]


def best_of_all(model, source, beam):
    """Score every translation of at most LENGTH words that ends, by the formula of the paper."""
    found = {}
    for count in range(LENGTH + 1):
        for words in product([word for word in range(WORDS) if word != END], repeat=count):
            target = torch.tensor([[BEGIN, *words]]).T
            given = torch.tensor([source]).T
            logs = model(given, target)[:, 0].log_softmax(-1)
            total = sum(float(logs[index, word]) for index, word in enumerate([*words, END]))
            spread = model.attention.shares(target, given)[:, :, 0].sum(0).clamp(max=1)
            penalty = ((beam.length_constant + count + 1) / (beam.length_constant + 1)) ** beam.length_factor
            found[words] = total / penalty + beam.coverage_factor * float(spread.log().sum())
    return list(max(found, key=found.__getitem__))


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("factors", [(0.6, 0.1), (0.0, 0.0), (1.5, 2.0)])
def test_a_wide_beam_finds_the_best_of_all_translations(seed, factors):
    beam = Beam(size=WORDS ** (LENGTH + 1), most_words=LENGTH + 1, length_factor=factors[0], coverage_factor=factors[1])
    model, source = _Model(seed), [2, 4, 1]
    assert Translator(model, model.attention, beam).translate(source) == best_of_all(model, source, beam)


def test_a_translation_that_never_ends_is_cut():
    model = _Model(0)
    model.table[:, :, END] = -1e9
    assert len(Translator(model, model.attention, Beam(2, 6)).translate([2])) == 6


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store with the checkpoints of two epochs of a tiny GNMT on two ranks."""
    folder = tmp_path_factory.mktemp("gnmt")
    words = ("-m", "gnmt", "-s", "--preset", "tiny", "-b", 2, "--num_minibatches", 2, "--epochs", 2, "--eval-batch-size", 2)
    conf = write_conf(folder, 1, 1)
    run_ranks(folder, [*words, "--config_path", conf, "--checkpoint_dir", folder], 2)
    return folder / "checkpoint"


def bleu(trained, tmp_path, capsys, *more):
    status = main(["pipedream", "bleu", str(trained), "-i", str(tmp_path / "in"), "-r", str(tmp_path / "right"), *map(str, more)])
    found = capsys.readouterr()
    return status, found.out, found.err


def test_each_epoch_has_the_score_of_its_own_translations(trained, tmp_path, capsys):
    """A checkpoint's own translations score 100."""
    (tmp_path / "in").write_text("5 6 7 8\n9 10 11\n")
    (tmp_path / "right").write_text("1 2 3 4\n5 6 7 8\n")
    more = ("--json", "--max-seq-len", 8, "-o", tmp_path / "out")
    status, out, _ = bleu(trained, tmp_path, capsys, *more)
    rows = json.loads(out)["epochs"]
    assert status == 0 and [(row["epoch"], row["minibatches"]) for row in rows] == [(1, 2), (2, 4)]
    assert all(0 <= row["bleu"] < 100 for row in rows)
    last = (tmp_path / "out" / "step-4.txt").read_text()
    (tmp_path / "right").write_text(last)
    assert len(last.splitlines()) == 2 and max(len(line.split()) for line in last.splitlines()) <= 8
    assert json.loads(bleu(trained / "step-4", tmp_path, capsys, *more)[1])["epochs"][0]["bleu"] == pytest.approx(100)


def test_pieces_of_words_are_joined(trained, tmp_path, capsys):
    count = build("gnmt").module.source.num_embeddings - END - 1
    (tmp_path / "words").write_text("".join(f"w{index}@@\n" for index in range(count)))
    (tmp_path / "in").write_text("w1@@ w2@@ strange\n")
    (tmp_path / "right").write_text("w1w2\n")
    options = ("--vocabulary", tmp_path / "words", "--max-seq-len", 6, "-o", tmp_path / "out")
    assert bleu(trained, tmp_path, capsys, *options)[0] == 0
    assert "@@ " not in (tmp_path / "out" / "step-4.txt").read_text()


@pytest.mark.parametrize(
    ("given", "right", "text"),
    [
        ("1 2\n", "", "give a translation of each line"),
        ("hello\n", "1\n", "name the file of the model's words by --vocabulary"),
        ("64\n", "1\n", "more than numbers below 64"),
    ],
)
def test_wrong_texts_end_in_a_line(trained, tmp_path, capsys, given, right, text):
    (tmp_path / "in").write_text(given)
    (tmp_path / "right").write_text(right)
    status, _, err = bleu(trained, tmp_path, capsys)
    assert status == 1 and text in err and len(err.splitlines()) == 1


def test_without_sacrebleu_a_line_names_what_to_install(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    (tmp_path / "in").write_text("1\n")
    (tmp_path / "right").write_text("1\n")
    status, _, err = bleu(trained, tmp_path, capsys)
    assert status == 2 and "pip install 'iotwin[pipedream]'" in err and len(err.splitlines()) == 1


def test_a_folder_without_checkpoints_ends_in_a_line(tmp_path, capsys):
    (tmp_path / "in").write_text("1\n")
    (tmp_path / "right").write_text("1\n")
    status, _, err = bleu(tmp_path, tmp_path, capsys)
    assert status == 1 and "holds no checkpoint that loads" in err
