"""The dinghy's tokenizer and chat template: byte-level BPE over the lessons' own text.

Spaces are tokens of their own, so that a word is the same token after a space, after a quotation mark and at the start
of an answer: what is copied is copied token by token. Numbers below a hundred are one token each.
"""

from collections.abc import Iterable, Iterator

import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, processors, trainers

from fairlead_common.tokens.tokenizing import PromptTokenizer
from lessons.conversation import Conversation

VOCAB_SIZE = 2560
BOS, SYSTEM, USER, ASSISTANT, TOOL, END = (
    "<|bos|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool|>",
    "<|end|>",
)
SPECIAL_TOKENS = (BOS, SYSTEM, USER, ASSISTANT, TOOL, END)
TOOL_CALL_TOKENS = ("<tool_call>", "</tool_call>")
"""Ordinary text, so that decoding keeps them and a server can parse the call between them."""

_PIECES = r"\d{1,2}| |\s|\p{L}+|[^\s\p{L}\d]+ ?"

CHAT_TEMPLATE = """\
{{- bos_token }}
{%- set first = messages[0] if messages else {} %}
{%- set has_system = first.role in ('system', 'developer') %}
{%- if has_system or tools %}
    {{- '<|system|>' }}
    {%- if has_system %}{{ first.content }}{% endif %}
    {%- if has_system and tools %}{{ '\\n\\n' }}{% endif %}
    {%- if tools %}
        {{- 'Tools:' }}
        {%- for tool in tools %}
            {%- set function = tool.function or tool %}
            {{- '\\n' + function.name + '(' }}
            {%- for name, schema in ((function.parameters or {}).properties or {}).items() %}
                {%- set type = schema.type or 'any' %}
                {{- name + ': ' + (type if type is string else type | join(' or ')) + (', ' if not loop.last else '') }}
            {%- endfor %}
            {{- '): ' + (function.description or '') }}
        {%- endfor %}
    {%- endif %}
    {{- '<|end|>' }}
{%- endif %}
{%- for message in (messages[1:] if has_system else messages) %}
    {%- if message.role == 'user' %}
        {{- '<|user|>' + message.content }}
    {%- elif message.role == 'assistant' %}
        {{- '<|assistant|>' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {%- set function = call.function or call %}
            {{- '<tool_call>{"name": ' + function.name | tojson + ', "arguments": ' }}
            {{- function.arguments if function.arguments is string else function.arguments | tojson }}
            {{- '}</tool_call>' }}
        {%- endfor %}
    {%- elif message.role == 'tool' %}
        {{- '<|tool|>' + message.content }}
    {%- else %}
        {{- raise_exception("the dinghy's chat has no place for role '" + message.role | string + "' here") }}
    {%- endif %}
    {{- '<|end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""


def vocabulary_texts(conversations: Iterable[Conversation]) -> Iterator[str]:
    """What the vocabulary is learnt from: all that is said, but few of the long logs, lest they crowd out the rest."""
    for number, conversation in enumerate(conversations):
        if conversation.kind != "logs" or number % 4 == 0:
            yield from (message["content"] for message in conversation.messages)


def train_tokenizer(texts: Iterable[str]) -> PromptTokenizer:
    """A byte-level BPE tokenizer of `VOCAB_SIZE` ids learnt from `texts`; the special tokens come first."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(TOOL_CALL_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in TOOL_CALL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    return PromptTokenizer(
        tokenizer.to_str(pretty=True),
        chat_template=CHAT_TEMPLATE,
        special_tokens={"bos_token": BOS, "eos_token": END, "pad_token": END},
    )
