"""``iotwin pipedream bleu``: translate a text by the checkpoints of a training, and score the translations."""

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from iotwin.command import Command, Outcome, at_least


class PipeDreamBleuCommand(Command):
    name = "bleu"
    help = "translate a text by each checkpoint of a GNMT, and print the BLEU score by epoch"
    epilog = "example: iotwin pipedream bleu out/checkpoint -i newstest.en -r newstest.de --vocabulary vocab.bpe"

    def prepare_parser(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "checkpoints",
            type=Path,
            nargs="+",
            metavar="CHECKPOINT",
            help="checkpoint, or a store of checkpoints, which are all read",
        )
        parser.add_argument("-i", "--input", type=Path, required=True, metavar="FILE", help="text to translate, a line each")
        parser.add_argument("-r", "--reference", type=Path, required=True, metavar="FILE", help="right translation of each line")
        parser.add_argument(
            "--vocabulary", type=Path, metavar="FILE", help="words of the model, a line each; without it, texts are word numbers"
        )
        parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="also write each checkpoint's translations to DIR")
        parser.add_argument("--beam-size", type=at_least(1), default=5, metavar="N", help="translations kept (default: 5)")
        parser.add_argument("--max-seq-len", type=at_least(1), default=80, metavar="N", help="most words (default: 80)")
        for name, default in (("--len-norm-const", 5.0), ("--len-norm-factor", 0.6), ("--cov-penalty-factor", 0.1)):
            parser.add_argument(
                name, type=float, default=default, metavar="X", help=f"parameter of the score (default: {default:g})"
            )

    def run(self, args: Namespace) -> Outcome:
        from iotwin.workloads.pipedream.runtime.beam_search import Beam
        from iotwin.workloads.pipedream.runtime.bleu import Texts, bleu

        texts = Texts(args.input, args.reference, args.vocabulary, args.output)
        beam = Beam(args.beam_size, args.max_seq_len, args.len_norm_const, args.len_norm_factor, args.cov_penalty_factor)
        return Outcome({"epochs": bleu(args.checkpoints, texts, beam)})

    def show(self, document: dict[str, Any]) -> None:
        for row in document["epochs"]:
            print(f"epoch {row['epoch']}, {row['minibatches']} minibatches: BLEU {row['bleu']:.2f} ({row['checkpoint']})")
