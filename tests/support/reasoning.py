"""Replies with reasoning in their text, as local models and their servers return it, and answers that mention marks."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping

from llama_index_contextual._utils.reasoning import ReasoningFilter

THOUGHT = "Okay, let me check [Source 2]. The user asks about days, so it may be secretly 30 days."
ANSWER = "Three days [Source 1]."

# In the replies, {t} is the reasoning and {a} the answer.
REPLIES: Mapping[str, str] = {
    "think": "<think>{t}</think>\n\n{a}",
    "thinking": "<thinking>\n{t}\n</thinking>\n{a}",
    "thought": "<thought>\n{t}\n</thought>\n{a}",
    "reasoning": "<reasoning>{t}</reasoning>{a}",
    "reasoning content": "<reasoning_content>{t}</reasoning_content><content>{a}</content>",
    "upper case": "<THINK>{t}</THINK> {a}",
    "attributes": '<think effort="high" id=1>{t}</think>{a}',
    "spaces": "< think >{t}< / think >{a}",
    "nested": "<think>{t}<think>Or not?</think>Still thinking.</think>{a}",
    "other name at the end": "<think>{t}</thinking>{a}",
    "only closed": "{t}</think>\n\n{a}",
    "closed twice": "<think>{t}</think>{a}</think>",
    "empty, then only closed": "<think>\n\n</think>\n\n{t}\n</think>\n{a}",
    "two in a row": "<think>{t}</think>\n<think>{t}</think>{a}",
    "after the answer": "{a}\n\n<think>Was this right? {t}</think>",
    "after the answer, unclosed": "{a}\n\n<think>Was this right? {t}",
    "answer in tags": "<think>\n{t}\n</think>\n<answer>\n{a}\n</answer>",
    "response after a lost tag": "{t}\n</think>\n\n<response>\n{a}\n</response>\n",
    "reflection": "<thinking>{t}<reflection>Hm.</reflection></thinking><output>{a}</output>",
    "scratchpad": "<scratchpad>{t}</scratchpad>{a}",
    "namespace": "<seed:think>{t}<seed:cot_budget_reflect>9</seed:cot_budget_reflect></seed:think>{a}",
    "escaped": "&lt;think&gt;{t}&lt;/think&gt;{a}",
    "mentioned inside": "<think>The tag `</think>` would end it. {t}</think>{a}",
    "channels": "<|channel|>analysis<|message|>{t}<|end|><|start|>assistant<|channel|>final<|message|>{a}<|return|>",
    "channels from the start": "<|start|>assistant<|channel|>analysis<|message|>{t}<|end|>"
    "<|start|>assistant<|channel|>final<|message|>{a}",
    "channel with a call": "<|channel|>commentary to=functions.search<|message|>{{}}<|call|>"
    "<|channel|>final <|constrain|>json<|message|>{a}",
    "channels without marks": "analysis{t}assistantfinal{a}",
    "channel with a suffix": "<|channel>thought\n{t}<channel|>{a}",
    "brackets": "[THINK]{t}[/THINK]{a}",
    "triangles": "◁think▷{t}◁/think▷{a}",
    "control tokens": "<|START_THINKING|>{t}<|END_THINKING|><|START_RESPONSE|>{a}<|END_RESPONSE|>",
    "control tokens of a turn": "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|><|START_THINKING|>{t}<|END_THINKING|>"
    "<|START_TEXT|>{a}<|END_TEXT|>",
    "thought and solution": "<|begin_of_thought|>{t}<|end_of_thought|><|begin_of_solution|>{a}<|end_of_solution|>",
    "fullwidth": "<｜begin▁of▁thinking｜>{t}<｜end▁of▁thinking｜>{a}",
    "chat template": "<|im_start|>assistant\n<think>{t}</think>{a}<|im_end|>",
    "next turn": "<|assistant|>\n<think>{t}</think>\n{a}<|user|>And then?",
    "unused tokens": "<unused94>thought\n{t}<unused95>{a}",
    "prefix and suffix": "<|inner_prefix|>{t}<|inner_suffix|>{a}",
    "sentences": "Here is my thought process:\n{t}\n\nHere is my response:\n{a}",
    "details": '<details type="reasoning" done="true"><summary>Thought for 3 s</summary>\n> {t}\n</details>\n{a}',
    "details with a title": "<details>\n<summary>Thinking</summary>\n{t}\n</details>\n{a}",
    "code block": "```thinking\n{t}\n```\n{a}",
    "Chinese": "<思考>{t}</思考>{a}",
    "end token": "<think>{t}\n</think>\n\n{a}</s>",
}
WITHOUT_ANSWER: Mapping[str, str] = {
    "unclosed": "<think>{t}",
    "cut inside the mark": "<think>{t}</thi",
    "only reasoning": "<think>{t}</think>",
    "only reasoning, only closed": "{t}</think>\n",
    "unclosed channel": "<|channel|>analysis<|message|>{t}",
    "unclosed bracket": "[THINK]{t}",
    "unclosed triangle": "◁think▷{t}",
    "only a mark": "<think>",
    "two unclosed": "<think>{t}<think>{t}",
}
MENTIONS = (
    "The tag `<think>` begins the reasoning [Source 1].",
    "Models write <think> before their answer [Source 1]. Then they answer.",
    "Use <think> and </think> in the template. Then go on.",
    'Set the tag to "<think>" and go on [Source 1].',
    "```xml\n<think>foo</think>\n```\nThis is the block.",
    "The tokens are <think>, <answer> and <|channel|>.",
    "- <think>: begins the reasoning\n- </think>: ends it\n\nDone.",
    "| tag | meaning |\n|---|---|\n| <think> | begins |\n| </think> | ends |\n\nBoth.",
    "The tag <think>...</think> encloses the reasoning [Source 1].",
    "The <thinking> element wraps the trace. The <answer> element wraps the answer.",
    "The template adds <think>\\n at the end of the prompt [Source 2]. Three days.",
    "Analysis shows that three days are enough.",
    "Okay, so the user can return it within three days.",
    "Here is my response: three days.",
    "1 < thinking > 2 is not a formula.",
    "Press [INST] twice. Then a < b and b > c.",
)

_MARKS = re.compile(
    r"think|thought|reason|scratch|reflect|<\W*answer|channel|analysis|assistant|<\||\|>|▷|◁|<s>|</s>|思考|secretly|unused9",
    re.IGNORECASE,
)


def written(form: str, *, thought: str = THOUGHT, answer: str = ANSWER) -> str:
    """Return the reply of a form."""
    return form.format(t=thought, a=answer)


def marks_in(text: object) -> list[str]:
    """Return the marks and the reasoning in a text, found by another rule than the package's."""
    return _MARKS.findall(str(text))


def random_pieces(text: str, source: random.Random) -> list[str]:
    """Return a text in pieces of random length, which may split a mark."""
    longest, pieces = source.choice((1, 2, 3, 7, 50)), []
    while text:
        length = source.randint(1, longest)
        pieces.append(text[:length])
        text = text[length:]
    return pieces


def streamed(pieces: list[str], *, is_cut: bool = False) -> str:
    """Return what a filter returns for a streamed reply."""
    stream = ReasoningFilter()
    return "".join([part for piece in pieces for part in stream.feed(piece)] + stream.flush(is_cut=is_cut))
