"""Scores the translations of a trained GNMT's checkpoints with sacrebleu."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from iotwin.common.checkpoints import Found, checkpoints, look, verify
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, write_whole
from iotwin.common.progress import note
from iotwin.common.units import counted
from iotwin.common.untrusted_files import read_foreign_lines
from iotwin.workloads.pipedream.runtime.beam_search import BEGIN, END, UNKNOWN, Beam, Translator
from iotwin.workloads.pipedream.runtime.merge import manifest_of, whole_model

_MOST_LINE_BYTES = 1 << 16
_PIECE = "@@ "  # end of a piece of a word, if another piece of this word follows


@dataclass(frozen=True)
class Texts:
    """The files of an evaluation: sentences, correct translations, and the model's words, one per line.

    Without a file of words, the lines of sentences and translations hold word ids.

    `output` is a folder for the translations of each checkpoint; None if they are not saved.
    """

    source: Path
    reference: Path
    vocabulary: Path | None = None
    output: Path | None = None


def bleu(paths: Sequence[Path], texts: Texts, beam: Beam) -> list[dict[str, Any]]:
    """Return {"epoch", "minibatches", "bleu", "checkpoint"} of each checkpoint, in the order of training.

    `paths` are checkpoints, or stores, which stand for all of their checkpoints. Raises UsageError if sacrebleu is missing.
    Raises IotwinError if a file cannot be read, if the texts differ in their number of lines, or if a checkpoint's model does
    not translate.
    """
    try:
        from sacrebleu import corpus_bleu
    except ImportError:
        raise UsageError("BLEU needs the Python package sacrebleu; install it with: pip install 'iotwin[pipedream]'") from None
    sources, references = _lines(texts.source), _lines(texts.reference)
    if not sources or len(sources) != len(references):
        counts = f"{texts.source} has {counted(len(sources), 'line')}, {texts.reference} has {len(references)}"
        raise IotwinError(f"{counts}; give a translation of each line, of at least one")
    words = _lines(texts.vocabulary) if texts.vocabulary else None
    rows = []
    for found in _opened(paths):
        lines = _translations(whole_model(found)[0], sources, words, beam, found.path)
        if texts.output is not None:
            make_folder(texts.output)
            write_whole(texts.output / f"{found.name}.txt", "".join(f"{line}\n" for line in lines).encode())
        manifest = manifest_of(found)
        score = float(corpus_bleu(lines, [references]).score)
        rows.append({"epoch": manifest.epoch - 1, "minibatches": manifest.step, "bleu": score, "checkpoint": str(found.path)})
    return rows


def _lines(path: Path) -> list[str]:
    try:
        return [line.decode("utf-8", "replace").strip() for line in read_foreign_lines(path, _MOST_LINE_BYTES)]
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror}") from None


def _opened(paths: Sequence[Path]) -> list[Found]:
    """Return the undamaged checkpoints at `paths` in the order of training. Raises IotwinError if there is none."""
    usable = []
    for path in paths:
        alone = look(path)
        for found in [alone] if alone.manifest else checkpoints(path):
            checked = verify(found)
            if checked.reason is None:
                usable.append(checked)
            else:
                note(f"{checked.path} is not used: {checked.reason}")
    if not usable:
        raise IotwinError(
            f"{paths[0]} holds no checkpoint that loads; find the reason with: iotwin checkpoints verify {paths[0]}"
        )
    return sorted(usable, key=lambda found: manifest_of(found).step)


def _translations(model: nn.Module, sources: Sequence[str], words: list[str] | None, beam: Beam, name: Path) -> list[str]:
    """Return the translation of each source."""
    attention, embedding = getattr(model, "attention", None), getattr(model, "source", None)
    if not isinstance(attention, nn.Module) or not isinstance(embedding, nn.Embedding):
        raise IotwinError(f"{name} holds a model that does not translate; BLEU is for gnmt")
    known = embedding.num_embeddings
    if words is not None and END + 1 + len(words) > known:
        raise IotwinError(f"the vocabulary has {counted(len(words), 'word')}; the model in {name} knows {known - END - 1}")
    numbers = {word: END + 1 + index for index, word in enumerate(words or ())}
    translator = Translator(model, attention, beam)
    found = []
    for line in sources:
        own = _parsed(line, known) if words is None else [numbers.get(word, UNKNOWN) for word in line.split()]
        translated = translator.translate([BEGIN, *own, END])
        found.append(" ".join(map(str, translated)) if words is None else _joined(translated, words))
    return found


def _parsed(line: str, known: int) -> list[int]:
    """Return the numbers in a line. Raises IotwinError if it has anything but numbers of words that the model knows."""
    found = [int(word) if word.isascii() and word.isdigit() else known for word in line.split()]
    if any(number >= known for number in found):
        raise IotwinError(
            f"'{line[:40]}' has more than numbers below {known}; name the file of the model's words by --vocabulary"
        )
    return found


def _joined(numbers: Iterable[int], words: Sequence[str]) -> str:
    """Return the text of a translation, in which the pieces of a word are joined."""
    last = END + len(words)
    return " ".join(words[number - END - 1] if END < number <= last else "<unk>" for number in numbers).replace(_PIECE, "")
