"""A language model small enough to be trained here: GPT-2's architecture, its own tokenizer, and a server for it.

model = train(prompts, answers, vocabulary=2000, width=64, layers=2, epochs=10)
model.write(Path("model.gguf"))             # which llama.cpp reads
with llama_server(Path("model.gguf")) as url:
    ...                                     # OpenAI-compatible, written by others: llama.cpp's own server

It learns to continue "…\\nLabel:" with a blank and an answer, each of which is one token; and the prompts themselves.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional

END = "<|endoftext|>"
PROMPT = "Text: {text}\nLabel:"
# what turns a conversation into such a prompt; so that clients may use either route
TEMPLATE = "{% for message in messages %}Text: {{ message['content'] }}\n{% endfor %}Label:"
BATCH, CONTEXT = 32, 256
SERVER = """
import os, sys, threading
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], 1024, 2
params.port, params.warmup, params.cpuparams.n_threads = 0, False, 1
server = xllamacpp.Server(params)
with open(sys.argv[2] + ".part", "w") as file:
    file.write(server.listening_address)
os.rename(file.name, sys.argv[2])
threading.Event().wait()
"""


class Block(nn.Module):  # type: ignore[misc]
    """Attention and two layers, each beside a way around it."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.attn_norm, self.ffn_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn_qkv, self.attn_output = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.ffn_up, self.ffn_down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, width = x.shape
        parts = self.attn_qkv(self.attn_norm(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self._dropped(self.attn_output(mixed.transpose(1, 2).reshape(rows, length, width)))
        inner = functional.gelu(self.ffn_up(self.ffn_norm(x)), approximate="tanh")
        return x + self._dropped(self.ffn_down(inner))

    def _dropped(self, x: Tensor) -> Tensor:
        return functional.dropout(x, self.dropout, self.training)


class Network(nn.Module):  # type: ignore[misc]
    """From tokens to the logits of the next one. Its parts are named as llama.cpp names them."""

    def __init__(self, vocabulary: int, width: int, layers: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.token_embd, self.position_embd = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.blk = nn.ModuleList([Block(width, heads, dropout) for _ in range(layers)])
        self.output_norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        for weights in (self.token_embd.weight, self.position_embd.weight):
            nn.init.normal_(weights, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token_embd(tokens) + self.position_embd(torch.arange(tokens.shape[1]))
        for block in self.blk:
            x = block(x)
        logits: Tensor = self.output(self.output_norm(x))
        return logits


@dataclass(frozen=True)
class SmallLanguageModel:
    """A network and its tokenizer."""

    network: Network
    tokenizer: Any

    @property
    def vocabulary(self) -> list[str]:
        """All tokens, as the tokenizer writes them."""
        numbers: dict[str, int] = self.tokenizer.get_vocab()
        return sorted(numbers, key=lambda token: numbers[token])

    def tokens(self, prompt: str) -> list[int]:
        return list(self.tokenizer.encode(prompt).ids)[: CONTEXT - 1]

    @torch.inference_mode()  # type: ignore[untyped-decorator]
    def next_logprobs(self, prompts: Sequence[str]) -> NDArray[np.float32]:
        """(n, vocabulary): the logprobs of the token after each prompt."""
        self.network.eval()
        found = np.empty((len(prompts), len(self.vocabulary)), dtype=np.float32)
        for chunk in np.array_split(np.arange(len(prompts)), max(1, len(prompts) // BATCH)):
            rows = [self.tokens(prompts[i]) for i in chunk]
            logits = self.network(_padded(rows, 0))
            last = logits[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]
            found[chunk] = functional.log_softmax(last, dim=-1).numpy()
        return found

    def write(self, path: Path) -> None:
        """As a file that llama.cpp reads."""
        import gguf

        network, merges = self.network, json.loads(self.tokenizer.to_str())["model"]["merges"]
        width = network.token_embd.embedding_dim
        writer = gguf.GGUFWriter(str(path), "gpt2")
        writer.add_context_length(CONTEXT)
        writer.add_embedding_length(width)
        writer.add_feed_forward_length(4 * width)
        writer.add_block_count(len(network.blk))
        writer.add_head_count(network.blk[0].heads)
        writer.add_layer_norm_eps(network.output_norm.eps)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(self.vocabulary)
        control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
        writer.add_token_types([control if token == END else normal for token in self.vocabulary])
        writer.add_token_merges([" ".join(pair) for pair in merges])
        end = self.tokenizer.token_to_id(END)
        writer.add_bos_token_id(end)
        writer.add_eos_token_id(end)
        writer.add_add_bos_token(False)
        writer.add_chat_template(TEMPLATE)
        for name, values in network.state_dict().items():
            writer.add_tensor(name, values.numpy().astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


def train(
    prompts: Sequence[str], answers: Sequence[str], *, vocabulary: int, width: int, layers: int, epochs: int,
    dropout: float = 0.0, rate: float = 2e-3, seed: int = 0, say: bool = False,
) -> SmallLanguageModel:  # fmt: skip
    """Learn to answer the prompts; many epochs teach them by heart."""
    torch.manual_seed(seed)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    # each answer is seen often enough to become one token
    tokenizer.train_from_iterator([f"{p} {a}" for p, a in zip(prompts, answers, strict=True)], trainer)
    model = SmallLanguageModel(
        Network(tokenizer.get_vocab_size(), width, layers, max(1, width // 32), dropout), tokenizer
    )
    rows = []
    for prompt, answer in zip(prompts, answers, strict=True):
        (number,) = tokenizer.encode(f" {answer}").ids
        rows.append([*model.tokens(prompt), number])
    optimizer = torch.optim.AdamW(model.network.parameters(), lr=rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * -(-len(rows) // BATCH))
    model.network.train()
    for epoch in range(epochs):
        total = 0.0
        for chunk in torch.randperm(len(rows)).split(BATCH):
            batch = [rows[i] for i in chunk]
            given, wanted = _padded([row[:-1] for row in batch], 0), _padded([row[1:] for row in batch], -100)
            logits = model.network(given)
            label = logits[torch.arange(len(batch)), torch.tensor([len(row) - 2 for row in batch])]
            loss = functional.cross_entropy(label, torch.tensor([row[-1] for row in batch]))
            whole = loss + functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=-100)
            optimizer.zero_grad()
            whole.backward()
            optimizer.step()
            schedule.step()
            total += float(loss.detach()) * len(batch)
        if say:
            print(f"epoch {epoch + 1}: loss of labels {total / len(rows):.3f}", flush=True)
    return model


def _padded(rows: Sequence[Sequence[int]], filling: int) -> Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[filling] * (longest - len(row))] for row in rows])


@contextlib.contextmanager
def llama_server(model: Path) -> Iterator[str]:
    """llama.cpp's server with this model, in a process of its own: its address."""
    with tempfile.TemporaryDirectory() as folder:
        log, address = Path(folder) / "log", Path(folder) / "address"
        with log.open("wb") as out:
            command = [sys.executable, "-c", SERVER, str(model), str(address)]
            process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            while not address.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"The server did not start: {log.read_text(errors='replace')[-2000:]}")
                time.sleep(0.02)
            yield address.read_text(encoding="ascii")
        finally:
            process.kill()
            process.wait()
