"""Translates sentences by a trained GNMT with a beam search. A sentence is a list of word ids.

Translations are ranked by s = log P / lp + cp of Wu et al. 2016, equation 14. lp normalises the length, and cp rewards attention
to every source word.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

UNKNOWN, BEGIN, END = 1, 2, 3  # word ids, as in PipeDream's vocabularies; id 0 is padding


@dataclass(frozen=True)
class Beam:
    """Options of the search: number of translations in the beam, most words of a translation, constants of lp and cp."""

    size: int = 5
    most_words: int = 80
    length_constant: float = 5.0
    length_factor: float = 0.6
    coverage_factor: float = 0.1

    def score(self, log_probability: float, words: int, attention: Tensor) -> float:
        """Return the score of a translation of `words` words.

        `attention`: for each source word, the sum of the attention that the translation's words pay to it.
        """
        length = ((self.length_constant + words) / (self.length_constant + 1)) ** self.length_factor
        coverage = float(attention.clamp(1e-30, 1.0).log().sum())
        return log_probability / length + self.coverage_factor * coverage


class Translator:
    """Translates by `model`, which it sets to evaluation mode. `attention` is the model's attention module.

    The method `attention.shares` returns how much each target word attends to each source word.
    """

    def __init__(self, model: nn.Module, attention: nn.Module, beam: Beam) -> None:
        self._model, self._beam = model.eval(), beam
        self._shares: list[Tensor] = []
        attention.register_forward_pre_hook(lambda module, given: self._shares.append(module.shares(*given)))

    def translate(self, source: list[int]) -> list[int]:
        """Return the word ids of the best translation, without BEGIN and END. `source`: the word ids of the sentence.

        If no translation ends within `beam.most_words` words, the best unfinished one is returned.
        """
        beam, finished = self._beam, list[tuple[float, list[int]]]()
        live, log_probabilities = [[BEGIN]], torch.zeros(1)
        attention = torch.zeros(0, 1)
        while live and len(live[0]) <= beam.most_words and len(finished) < beam.size:
            scores, attention = self._next_words(source, live)
            totals = log_probabilities[:, None] + scores
            best, places = totals.flatten().topk(min(beam.size, totals.numel()))
            grown, kept = [], []
            for total, place in zip(best.tolist(), places.tolist(), strict=True):
                parent, word = divmod(place, scores.shape[1])
                if word == END:
                    finished.append((beam.score(total, len(live[parent]), attention[:, parent]), live[parent][1:]))
                else:
                    grown.append([*live[parent], word])
                    kept.append((total, attention[:, parent]))
            live, log_probabilities = grown, torch.tensor([total for total, _ in kept])
            attention = torch.stack([each for _, each in kept], 1) if kept else attention
        if not finished:
            totals_now = log_probabilities.tolist()
            finished = [
                (beam.score(total, len(words) - 1, attention[:, index]), words[1:])
                for index, (total, words) in enumerate(zip(totals_now, live, strict=True))
            ]
        return max(finished, key=lambda each: each[0])[1]

    def _next_words(self, source: list[int], targets: list[list[int]]) -> tuple[Tensor, Tensor]:
        """Return (log probability of each next word, attention to each source word) for each of the partial `targets`.

        The shapes are (targets, vocabulary) and (source words, targets).
        """
        self._shares.clear()
        given = torch.tensor(source)[:, None].expand(-1, len(targets))
        with torch.no_grad():
            scores: Tensor = self._model(given, torch.tensor(targets).T)[-1]
        return scores.log_softmax(-1), self._shares[0].sum(0)
