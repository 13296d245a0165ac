"""A small cross-encoder that learns to rank invented passages, because no small trained one is on PyPI.

A question such as "how heavy is the pump" is answered by a sentence about the weight of the pump. Passages that repeat
the word "heavy" but give another figure, or the weight of another machine, share more words with the question.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ATTRIBUTES = {
    "heavy": "weight",
    "tall": "height",
    "costly": "price",
    "old": "age",
    "hot": "temperature",
    "fast": "speed",
}
"""Word of the question, and word of the answer."""

MACHINES = ("pump", "valve", "motor", "filter", "boiler", "crane", "press", "drill", "mixer")
FILLERS = ("cleaned every week .", "it stands in hall two .", "a spare part is in store .")
LENGTH = 44
"""Number of tokens that the model reads."""

RATE = 3e-3

Pair = tuple[str, str]


@dataclass(frozen=True)
class Case:
    """A question with a passage that answers it, and passages that do not."""

    question: str
    answer: str
    others: tuple[str, ...]


def case(attribute: str, machine: str, words: random.Random) -> Case:
    """Return a question about an attribute of a machine; the other passages share more words with it."""
    wrong = [each for each in ATTRIBUTES if each != attribute]
    elsewhere = [each for each in MACHINES if each != machine]

    def passage(of: str, where: str, word: str) -> str:
        parts = [f"the {ATTRIBUTES[of]} of the {where} is {words.randrange(10, 100)} .", words.choice(FILLERS)]
        parts += [f"how {word} it is was asked ."] if word else []
        words.shuffle(parts)
        return " ".join(parts)

    return Case(
        f"how {attribute} is the {machine} ?",
        passage(attribute, machine, words.choice(("", attribute, *wrong))),
        (
            *(passage(words.choice(wrong), machine, attribute) for _ in range(3)),
            passage(words.choice(wrong), machine, ""),
            passage(attribute, words.choice(elsewhere), attribute),
            passage(attribute, words.choice(elsewhere), ""),
        ),
    )


def combinations(seed: int = 3) -> tuple[list[Pair], list[Pair]]:
    """Return the attributes and machines to train with, and those that are held out."""
    every = list(product(ATTRIBUTES, MACHINES))
    random.Random(seed).shuffle(every)
    held = len(every) // 5
    return every[held:], every[:held]


def vocabulary() -> list[str]:
    words = {word for text in (*FILLERS, "how is it the of was asked ? .") for word in text.split()}
    pieces = [*"0123456789", *(f"##{digit}" for digit in "0123456789")]
    return [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *sorted({*words, *ATTRIBUTES, *ATTRIBUTES.values(), *MACHINES}),
        *pieces,
    ]


def train(folder: Path, *, steps: int = 1_500, batch: int = 32, seed: int = 7) -> str:
    """Train a BERT with two layers and random weights, and write it to a folder for sentence-transformers."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    torch.manual_seed(seed)
    words = vocabulary()
    wordpiece = BertWordPieceTokenizer({word: at for at, word in enumerate(words)}, lowercase=True)
    names = {"unk": "[UNK]", "pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=wordpiece._tokenizer,
        model_max_length=LENGTH,
        **{f"{name}_token": token for name, token in names.items()},
    )
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=64,
        num_labels=1,
        initializer_range=0.2,  # the usual 0.02 needs many more steps in so small a model
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = BertForSequenceClassification(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    pairs = training_pairs(seed)
    for _ in range(steps):
        questions, passages, labels = zip(*(next(pairs) for _ in range(batch)), strict=True)
        encoded = tokenizer(list(questions), list(passages), padding=True, truncation=True, return_tensors="pt")
        logits = model(**encoded).logits[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    model.eval().save_pretrained(folder)
    return str(folder)


def training_pairs(seed: int) -> Iterator[tuple[str, str, float]]:
    """Yield questions, passages, and labels: 1 if the passage answers the question, otherwise 0."""
    words = random.Random(seed)
    known, _ = combinations()
    while True:
        one = case(*words.choice(known), words)
        yield one.question, one.answer, 1.0
        wrong_attribute, wrong_machine = one.others[:4], one.others[4:]
        yield one.question, words.choice(words.choice((wrong_attribute, wrong_machine))), 0.0


def held_out() -> list[Case]:
    """Return a question about each attribute and machine that are not together in the training, with passages."""
    words = random.Random(99)
    _, pairs = combinations()
    return [case(*pair, words) for pair in pairs]
