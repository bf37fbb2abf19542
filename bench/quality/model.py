"""What the codecs of `weights` cost a whole model: perplexity, KL divergence, same likeliest token.

    python -m bench.quality.model MODEL TEXT [--windows 4 --context 512 --peers PYTHON]

Adds `model` to every recorded row that has none for this text, one at a time, and records after each: a run that is
stopped continues. Default quantizers come first, and those of about 4.5 bits, where the choice matters most. The weights are
those of MODEL with permuted channels (`permute`). The seven matrices of every layer go through the codec and back; the
embedding, which is also the output, goes through q8_0; norms stay f32. Rows have 576 or 1536 columns; a codec that takes only
multiples of 256 sees 2304 at a time, as on the rest of the page.
All products are f32, activations and cache too, so that nothing but the weights differs from the reference.

PYTHON is an interpreter with llama-cpp-python. It quantizes the same weights into GGUF files, which our own runtime reads: one
evaluator for all. Without one those rows are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

import flyweight
from bench import record, recorded
from bench.quality.permute import permuted_beside
from flyweight.checkpoint import Checkpoint, open_checkpoint
from flyweight.codecs import Codec, codec_for
from flyweight.evaluate import Predictor, evaluate, windows_of
from flyweight.evaluate.predict import of_decoder
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import RAW, CodecSpec, EncodedTensor, TensorSpec
from flyweight.quantizers import QUANTIZERS
from flyweight.runtime import open_model
from flyweight.runtime.decoder import Decoder, Settings
from flyweight.runtime.model import usable_cores
from flyweight.runtime.tensors import Tensors

Array = np.ndarray[Any, Any]

EMBEDDING = "model.embed_tokens.weight"
WIDE = 2304
PEERS = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")
QUANTIZE = """
import sys, llama_cpp
source, target, name, threads = sys.argv[1:]
params = llama_cpp.llama_model_quantize_default_params()
params.ftype, params.nthread = getattr(llama_cpp, "LLAMA_FTYPE_MOSTLY_" + name), int(threads)
sys.exit(llama_cpp.llama_model_quantize(source.encode(), target.encode(), params))
"""
RUNTIME = {
    "int8 activations": {"int8": True, "kv": "f32"},
    "f16 cache": {"int8": False, "kv": "f16"},
    "int8 cache": {"int8": False, "kv": "int8"},
    "int8 activations, f16 cache (default)": {"int8": True, "kv": "f16"},
    "int8 activations, int8 cache": {"int8": True, "kv": "int8"},
}


class Through(Tensors):
    """A model whose matrices have been through a codec, held as f32."""

    def __init__(self, checkpoint: Checkpoint, held: dict[str, Array]) -> None:
        super().__init__(checkpoint)
        self._held = held

    def __getitem__(self, name: str) -> EncodedTensor:
        if name not in self._held:
            return super().__getitem__(name)
        array = self._held[name]
        return EncodedTensor(TensorSpec(array.shape, DType.F32), RAW, {"data": array})


def there_and_back(codec: Codec, quantizer: str, values: Array) -> tuple[Array, int]:
    """What is left of a matrix, and the bytes it took."""
    try:
        return _there_and_back(codec, quantizer, values)
    except UnsupportedError as error:
        if error.code == "E_QUANTIZER":
            raise
        wide, nbytes = _there_and_back(codec, quantizer, values.reshape(-1, WIDE))
        return wide.reshape(values.shape), nbytes


def _there_and_back(codec: Codec, quantizer: str, values: Array) -> tuple[Array, int]:
    spec = TensorSpec(values.shape, DType.F32)
    codec = codec.fit(spec, values)
    parts = QUANTIZERS[quantizer](values, codec, spec)
    return np.ascontiguousarray(codec.decode(spec, parts), np.float32), sum(part.nbytes for part in parts.values())


def codec_named(name: str, **params: Any) -> Codec:
    return codec_for(CodecSpec.read({"name": name, "params": params}, code="E_CODEC_PARAMS"))


class Judge:
    """A model on a text, held to its reference, whose logits are computed once and kept."""

    def __init__(self, model: Path, text: Path, context: int, count: int) -> None:
        self.context, self.checkpoint = context, open_checkpoint(model)
        with open_model(model, context=context, kv="f32", int8=False) as opened:
            ids = opened.tokenizer.encode(text.read_text("utf-8"), special=False)
        self.windows = windows_of(ids, context, count * context)
        reference = self.predictor(Tensors(self.checkpoint))
        kept = {window.tobytes(): list(reference(window)) for window in self.windows}
        self.reference: Predictor = lambda window: iter(kept[window.tobytes()])

    def predictor(self, tensors: Tensors, kv: str = "f32", int8: bool = False) -> Predictor:
        return of_decoder(Decoder(tensors, self.context, Settings(int8, usable_cores())), kv)

    def __call__(self, predictor: Predictor) -> dict[str, Any]:
        figures = evaluate(self.windows, predictor, self.reference).figures()
        return {
            name: {"value": float(f"{e.value:.6g}"), "error": e.error and float(f"{e.error:.2g}")}
            for name, e in figures.items()
        }

    def text(self, path: Path) -> dict[str, Any]:
        count, length = self.windows.shape
        return {"text": path.name, "windows": count, "context": length, "predicted_tokens": count * (length - 1)}


def through(judge: Judge, row: dict[str, Any], embedding: tuple[Array, int]) -> dict[str, Any]:
    """One codec and quantizer over the whole model."""
    codec = codec_named(row["codec"], **row["params"])
    names = [name for name in judge.checkpoint if name.endswith("_proj.weight")]

    def one(name: str) -> tuple[Array, int]:
        return there_and_back(codec, row["quantizer"], np.asarray(judge.checkpoint[name]))

    with ThreadPoolExecutor(usable_cores()) as pool:
        made = dict(zip(names, pool.map(one, names), strict=True))
    made[EMBEDDING] = embedding
    stored = sum(nbytes for _, nbytes in made.values())
    weights = sum(array.size for array, _ in made.values())
    tensors = Through(judge.checkpoint, {name: array for name, (array, _) in made.items()})
    return {"file_bits_per_weight": round(8 * stored / weights, 3)} | judge(judge.predictor(tensors))


def peer_files(permuted: Path, python: str) -> Iterator[tuple[str, Path]]:
    """The same weights as llama.cpp quantizes them."""
    source = permuted.with_suffix(".f32.gguf")
    if not source.exists():
        flyweight.convert(permuted, source)
    for name in PEERS:
        target = permuted.with_suffix(f".{name}.gguf")
        if not target.exists():
            command = [python, "-c", QUANTIZE, str(source), str(target), name, str(usable_cores())]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        yield name, target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--windows", type=int, default=4)
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--peers", help="an interpreter with llama-cpp-python")
    given = parser.parse_args()
    report = recorded("quality")

    permuted = permuted_beside(given.model)
    judge = Judge(permuted, given.text, given.context, given.windows)
    asked = judge.text(given.text)
    if report.get("asked") != asked:
        report |= {"asked": asked, "peers": {}, "runtime": {}}
        for row in report["results"]:
            row.pop("model", None)

    def save(label: str, figures: dict[str, Any]) -> None:
        record("quality", report)
        print(f"{time.strftime('%H:%M:%S')} {label:52} KL {figures['kl_mean']['value']:.5f}", flush=True)

    for name, file in peer_files(permuted, given.peers) if given.peers else ():
        if name not in report["peers"]:
            with open_checkpoint(file) as checkpoint:
                tensors = Tensors(checkpoint)
                weights = sum(tensors.entry(tensor).spec.size for tensor in tensors)
                figures = judge(judge.predictor(tensors))
            report["peers"][name] = {"file_bits_per_weight": round(8 * file.stat().st_size / weights, 3)} | figures
            save(f"llama.cpp {name}", figures)
    todo = {name: how for name, how in RUNTIME.items() if name not in report["runtime"]}
    if todo:
        plain = Judge(given.model, given.text, given.context, given.windows)
        for name, how in todo.items():
            figures = plain(plain.predictor(Tensors(plain.checkpoint), **how))
            report["runtime"][name] = figures
            save(name, figures)
    embedding = there_and_back(codec_named("q8_0"), "nearest", np.asarray(judge.checkpoint[EMBEDDING]))
    rows = sorted(report["results"], key=lambda row: (not row["default"], abs(row["bits_per_weight"] - 4.5)))
    for place, row in enumerate(rows, 1):
        if "model" not in row:
            row["model"] = through(judge, row, embedding)
            save(f"{place}/{len(rows)} {row['codec']} {row['params']} {row['quantizer']}", row["model"])


if __name__ == "__main__":
    main()
