"""Makes a random Llama of a few megabytes, with a tokenizer and a chat template of its own.

What it says is noise; that it says it through the real engine, token by token, is the point.
Usage: make_tiny_model.py FOLDER
"""

import os
import stat
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SENTENCES = [
    "A job asks for a node, a node runs a step, and a step ends.",
    "The quick brown fox jumps over the lazy dog, twice on Sundays.",
    "Tokens are counted; words are guessed; neither is understood here.",
    "One two three four five six seven eight nine ten eleven twelve.",
]

CHAT_TEMPLATE = """\
{%- for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}
{%- if add_generation_prompt %}<|assistant|>{% endif %}"""

SPECIAL = ["<|pad|>", "<|start|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]


def tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE, so that any text can be encoded and nothing is ever unknown."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        SENTENCES,
        trainers.BpeTrainer(
            vocab_size=512,
            special_tokens=SPECIAL,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<|pad|>",
        bos_token="<|start|>",
        eos_token="<|end|>",
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
    )


def main(folder: str) -> None:
    torch.manual_seed(7)  # the same model on every machine
    words = tokenizer()
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=512,
            hidden_size=256,
            intermediate_size=512,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=2048,
            pad_token_id=words.pad_token_id,
            bos_token_id=words.bos_token_id,
            eos_token_id=words.eos_token_id,
        )
    )
    model.save_pretrained(folder, safe_serialization=True)
    words.save_pretrained(folder)
    # save_pretrained writes 0600; the lab's users read it.
    for entry in os.scandir(folder):
        os.chmod(entry.path, stat.S_IRUSR | stat.S_IWUSR | stat.S_IRGRP | stat.S_IROTH)


if __name__ == "__main__":
    main(sys.argv[1])
