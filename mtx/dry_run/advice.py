"""What a newcomer would want to hear before hours of training, each with what to do about it.

Flow: the figures of a dry run -> `Advice`. Each rule is a function of its own; the numbers in them are where people who
train translators would look twice, not where anything breaks.
"""

from collections.abc import Iterator

from mtx.config.schema import Config
from mtx.dry_run.report import Advice, Report, example, leaks, sets_of
from mtx.evaluation.metrics import writes_spaces

_DROPPED = 0.05  # share of the pairs, for one reason
_LEAKS = 0.01  # training pairs for each of a set
_UNKNOWN_WORDS = 0.02
_SWAPPED = 0.02
_ENOUGH_PAIRS, _ALIKE = 500, 0.3  # Multi30k has 0.9, and about 0 where one side is shifted by a line
_FEW_SENTENCES = 200  # below, BLEU moves by some points from one model to an equally good one
_FEW_PAIRS = 3_000
_FEW_STEPS = 10  # of an epoch
_MANY_EPOCHS = 200
_LONG_S = 3 * 86_400.0

# what to do about pairs that are dropped, by `mtx.data.cleaning`'s reasons
_ABOUT_DROPPED = {
    "empty": "a line without its translation: see that both sides have the same lines",
    "too long": "a larger data.max_tokens keeps them; sentences one a line train better",
    "length ratio": "see that both sides have the same lines; a larger data.max_length_ratio keeps them",
    "identical": "see that the target column or file is the translation",
    "control characters": "the text is damaged, or not UTF-8: convert it, for instance with iconv",
    "duplicate": "nothing, where the text repeats itself; one copy of each pair is kept",
}


def advice(report: Report, config: Config) -> list[Advice]:
    """All that is to be said of a run; of its text first."""
    rules = (_dropped, _sets, _swapped, _shifted, _unknown_words, _amount, _steps, _resources)
    return [found for rule in rules for found in rule(report, config)]


def _dropped(report: Report, config: Config) -> Iterator[Advice]:
    for reason, dropped in report.data["dropped"].items():
        share = dropped["pairs"] / report.data["read"]
        if share >= _DROPPED:
            what = "are the source copied as the target" if reason == "identical" else f"are dropped: {reason}"
            help = _ABOUT_DROPPED.get(reason, "see data/report.json of a prepared run")
            yield Advice(f"{share:.0%} of the pairs {what}, such as {example(dropped['example'])}", help)


def _sets(report: Report, config: Config) -> Iterator[Advice]:
    for name, told in sets_of(report.data).items():
        if told["leaks"]["train_pairs"] >= max(1, _LEAKS * told["pairs"]):
            help = "take them out of the training text: a score on what was learned by heart is too good"
            yield Advice(f"{name}: {leaks(told)}", help)
        if told["pairs"] < _FEW_SENTENCES:
            key = "data.valid=FILE" if name == "validation set" else "data.test=FILE"
            help = f"{key} with some hundred sentences or more, which are not in the training text"
            yield Advice(f"{name}: {told['pairs']:,} sentences are few; its BLEU will jump", help)
        if (number := sum(told["would_drop"].values())) >= max(1, _DROPPED * told["pairs"]):
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in told["would_drop"].items())
            help = "it is used as it is; see that both sides have the same lines"
            yield Advice(f"{name}: {number:,} of {told['pairs']:,} pairs look damaged ({reasons})", help)


def _swapped(report: Report, config: Config) -> Iterator[Advice]:
    for name, found in report.text.items():
        if found.swapped >= _SWAPPED:
            text = f"{name}: in {found.swapped:.0%} of the pairs the sides look exchanged"
            help = (
                f"the first must be {report.src}, the second {report.tgt}: see that the columns or files are in order"
            )
            yield Advice(text, help)


def _shifted(report: Report, config: Config) -> Iterator[Advice]:
    for name, found in report.text.items():
        if found.pairs >= _ENOUGH_PAIRS and found.alike < _ALIKE:
            text = f"{name}: long sentences do not have long translations (correlation of lengths {found.alike:.2f})"
            yield Advice(text, "see that line n of one side is the translation of line n of the other")


def _unknown_words(report: Report, config: Config) -> Iterator[Advice]:
    if config.training.init_from:
        help = "the tokenizer of training.init_from does not know this text; a model of these languages is wanted"
    else:
        help = "see that the text is in the language that it should be; a larger tokenizer.vocab_size may help"
    for name, found in report.text.items():
        for language, side in ((report.src, found.src), (report.tgt, found.tgt)):
            if side.unknown_words >= _UNKNOWN_WORDS and writes_spaces(language):
                yield Advice(
                    f"{name}: {side.unknown_words:.0%} of the {language} words are spelled in bytes or unknown", help
                )


def _amount(report: Report, config: Config) -> Iterator[Advice]:
    kept = report.data["kept"]
    if kept < _FEW_PAIRS and not config.training.init_from:
        help = "more text, or training.init_from=MODEL with a model of these languages (mtx import)"
        yield Advice(f"{kept:,} pairs are few: a translator that starts from nothing wants some thousand", help)
    steps, run = report.run.steps_per_epoch, report.run
    if steps < _FEW_STEPS:
        help = "a smaller training.batch_tokens makes more steps of the same text"
        yield Advice(f"an epoch has only {steps:.1f} steps", help)
    if run.epochs > _MANY_EPOCHS and not report.time.may_end_sooner and report.time.ends_by == "max_steps":
        help = "a smaller training.max_steps, or training.patience=6, which ends when nothing gets better"
        yield Advice(f"training.max_steps means {run.epochs:,.0f} epochs of your {kept:,} pairs", help)


def _steps(report: Report, config: Config) -> Iterator[Advice]:
    training, run, time = config.training, report.run, report.time
    last = run.steps_done + time.steps
    if not time.steps:
        yield Advice(f"this run has ended at step {run.steps_done:,}", f"a larger training.{time.ends_by} trains on")
        return
    if last <= training.warmup_steps:
        help = f"a smaller training.warmup_steps, for instance {max(1, last // 10)}"
        text = f"training ends at step {last:,}, and its learning rate rises until step {training.warmup_steps:,}"
        yield Advice(text, help)
    if time.ends_by == "time_limit" and last < run.steps_per_epoch:
        help = "a longer training.time_limit, or a smaller model.preset"
        yield Advice(f"the time limit lets training see {last / run.steps_per_epoch:.0%} of the text once", help)
    if time.total_s > _LONG_S:
        help = "a machine with a GPU, a smaller model.preset, or training.time_limit=12h"
        yield Advice(f"this run takes {time.total_s / 86_400:,.0f} days on {run.device}", help)


def _resources(report: Report, config: Config) -> Iterator[Advice]:
    memory, disk = report.memory, report.disk
    if memory.device is not None and memory.needed > memory.device:
        help = "a smaller training.micro_batch_tokens or model.preset"
        yield Advice("the memory of this machine is too small for this run while a checkpoint is written", help)
    if disk.needed > disk.free:
        help = "free some, or take a run_dir on a larger disk; a smaller training.average_last needs less"
        yield Advice(f"{config.run_dir}: its disk has too little room, training would not start", help)
