"""Text through a model, layer by layer, and what is added up on the way.

    for each layer:
        for each run of windows:
            x ← what the layer before gave
            x ← layer(x), its inputs added up on the way
        write the layer's statistics, say in the journal that they are there

What goes from layer to layer is in two files beside the statistics, so that memory holds one run of windows and one layer's
sums, and a run that was killed goes on at the layer it was in. Each window is a text of its own: attention sees no other.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

import flyweight
from flyweight.calibration.input_sums import CAP, FIRST, InputSums
from flyweight.calibration.sampling import spread
from flyweight.containers.container import Image
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, InterruptedRunError, ResourceError, UnsupportedError
from flyweight.foundation.manifest import Entry, Extent
from flyweight.foundation.tensor import RAW, TensorSpec
from flyweight.models.dialects import DIALECTS
from flyweight.models.dialects.gguf_form import GgufForm
from flyweight.pipeline.conversion_report import TensorReport
from flyweight.pipeline.model_sketch import sketch_of
from flyweight.pipeline.output.staging import Staging
from flyweight.pipeline.plans.inputs import input_of
from flyweight.runtime import Model
from flyweight.runtime.batch import Windows
from flyweight.runtime.decoder import Buffers, Joint
from flyweight.statistics_files.known_files import IMATRIX_SUFFIXES, form_for
from flyweight.statistics_files.statistics_form import Form, Gathered, Wanted

Array = np.ndarray[Any, Any]
Progress = Callable[[int, int], None]
"""progress(layers through which all windows have gone, in windows; of how many)"""

_RUN = 512
"""Positions that go through a layer at a time: enough for products to be fast, and their values stay in a cache."""
_FEW, _TOO_FEW = 4.0, 0.125
"""Tokens for each column of the widest input: a Gram matrix of fewer is noted, one of fewer still refused."""


class LayerWalk:
    """All that a run decides before it starts; `carry_out` then makes the file."""

    def __init__(self, model: Model, destination: Path, windows: Array, *, gram: bool) -> None:
        self.model, self.destination, self.gram = model, destination, gram
        self.decoder, tensors = model.decoder, model.decoder.tensors
        self.config = self.decoder.config
        count, self.window = map(int, windows.shape)
        per_run = max(_RUN // self.window, 1)
        runs = -(-count // per_run)
        self.windows = spread(windows, runs)
        sizes = [len(range(start, count, runs)) for start in range(runs)]
        ends = np.cumsum(sizes)
        self.runs = [slice(int(end) - size, int(end)) for end, size in zip(ends, sizes, strict=True)]
        self.layers = [tuple(Joint.of(tensors, index)) for index in range(self.config.dims.layers)]
        self.output = (tensors.output_name.removesuffix(".weight"),)
        joint: list[tuple[str, ...]] = [*(names for layer in self.layers for names in layer), self.output]
        specs = {name: tensors.entry(f"{name}.weight").spec for names in joint for name in names}
        self.rows = {name: spec.rows for name, spec in specs.items()}
        self.inputs = {names: int(specs[names[0]].columns) for names in joint}
        self.sketch = sketch_of(model.checkpoint, tensors.blueprint)
        has_names = self.config.family.form(GgufForm) is not None
        gguf = DIALECTS["gguf"]
        self.called = {name: gguf.stored(f"{name}.weight", self.config).name for name in self.rows} if has_names else {}
        if destination.suffix in IMATRIX_SUFFIXES and not has_names:
            raise UnsupportedError(
                f"GGUF has no names for {self.config.family.model_type} models, and an imatrix goes by these",
                code="E_STATISTICS", hint="give the output another suffix, such as .stats",
            )  # fmt: skip
        self.form: Form = form_for(destination, self.called, count)
        if gram and not self.form.gives_gram:
            raise UnsupportedError(
                f"'{destination.suffix}' asks for an imatrix of llama.cpp, which has no place for Gram matrices",
                code="E_STATISTICS", hint="give the output another suffix, such as .stats",
            )  # fmt: skip

    @property
    def tokens(self) -> int:
        return len(self.windows) * self.window

    def notes(self) -> Iterator[str]:
        """What is to be said of a Gram matrix of so many tokens; UnsupportedError if they are absurdly few."""
        widest = max(self.inputs.values())
        if self.gram and self.tokens < _TOO_FEW * widest:
            raise UnsupportedError(
                f"{self.tokens} tokens for Gram matrices of {widest} columns; at least {int(_TOO_FEW * widest)} are needed",
                code="E_TEXT",
                hint=f"give more text and --tokens {int(_FEW * widest)}, or leave out --gram",
            )
        if self.gram and self.tokens < _FEW * widest:
            yield f"{self.tokens} tokens are few for the {widest} columns of the widest matrix; {int(_FEW * widest)} are enough"

    def require_memory(self, max_ram: int | None) -> None:
        if max_ram is None:
            return
        need = self._run_nbytes() + self._sums_nbytes()
        if need > max_ram // 2:
            raise ResourceError(
                f"a run of windows and the sums of one layer need {need >> 20} MiB beside the weights", code="E_RAM",
                hint=f"allow at least {2 * need >> 20}M with --max-ram" + (", or leave out --gram" if self.gram else ""),
            )  # fmt: skip

    def _run_nbytes(self) -> int:
        dims = self.config.dims
        widths = 4 * dims.hidden + dims.size("qkv") + 2 * dims.size("q") + 3 * dims.ffn
        waiting = sum(self.inputs[names] for names in self.layers[0]) * FIRST if self.gram else 0
        return 4 * (max(_RUN, self.window) * widths + waiting)

    def _sums_nbytes(self) -> int:
        """Half a Gram matrix of each input of a layer, in f32, one of them packed and one tile on the way."""
        columns = [self.inputs[names] for names in self.layers[0]]
        return sum(2 * n * n for n in columns) + 2 * max(columns) ** 2 if self.gram else 0

    # Carrying it out ------------------------------------------------------------------------------

    def carry_out(
        self, about: Mapping[str, Any], texts: Sequence[str] = (), *, resume: bool, force: bool, progress: Progress | None
    ) -> tuple[int, int]:
        """Bytes of the file, and layers that an earlier run had done."""
        about = {**about, "gram_cap": CAP} if self.gram else about
        wanted = Wanted(
            self.inputs,
            self.rows,
            self.called,
            self.sketch,
            self.tokens,
            len(self.windows),
            self.window,
            texts,
            about,
            self.gram,
        )
        image, extents = self.form.layout(self.destination.name, wanted)
        fingerprint = self._fingerprint(image)
        streams = [f"{self.destination.name}.stream-{which}" for which in range(2)]
        staging = Staging(
            self.destination, [self.destination.name, *streams], is_directory=False, fingerprint=fingerprint, resume=resume,
            force=force,
        )  # fmt: skip
        try:
            if staging.published:
                staging.discard()
                return image.nbytes, len(self.layers)
            try:
                resumed = _Gathering(self, staging, image, extents, streams).all_layers(progress)
            except InterruptedRunError:
                raise
            except FlyweightError:
                staging.discard()
                raise
            for stream in streams:
                staging.cut(stream, 0)
            staging.publish()
        finally:
            staging.close()
        return image.nbytes, resumed

    def _fingerprint(self, image: Image) -> str:
        """What must be the same for a resumed run to end in the same bytes."""
        source = input_of(self.model.checkpoint)
        said = [
            flyweight.__version__, [*map(str, source)], self.gram, self.decoder.settings.int8,
            blake3(np.ascontiguousarray(self.windows, "<i8").tobytes()).hexdigest(),
            [[offset, blake3(chunk).hexdigest()] for offset, chunk in image.chunks],
        ]  # fmt: skip
        return blake3(json.dumps(said).encode()).hexdigest()


class _Gathering:
    """The files of one run, and what goes through them."""

    def __init__(
        self, walk: LayerWalk, staging: Staging, image: Image, extents: Mapping[str, Extent], streams: list[str]
    ) -> None:
        self.walk, self.staging, self.extents, self.streams = walk, staging, extents, streams
        hidden = walk.config.dims.hidden
        self._width = 4 * hidden * walk.window
        nbytes = self._width * len(walk.windows)
        staging.allocate({walk.destination.name: image} | {stream: Image(nbytes, ()) for stream in streams})
        self._stream_spec = TensorSpec((nbytes // 4,), DType.F32)
        self._together: Callable[..., Iterable[None]] = map
        self._cache = Windows(walk.config, walk.window)
        self._buffers = Buffers(walk.config, max(run.stop - run.start for run in walk.runs) * walk.window)

    def all_layers(self, progress: Progress | None) -> int:
        """Go through what is not done yet; how many layers were."""
        walk, first = self.walk, self._first_layer()
        total = (len(walk.layers) + 1) * len(walk.windows)
        with walk.decoder.tensors.turn, ThreadPoolExecutor(walk.decoder.settings.threads, "gram") as pool:
            self._together = pool.map
            if not first:
                digest = blake3()
                for run in walk.runs:
                    self._put(0, run, walk.decoder.embed(walk.windows[run].reshape(-1)), digest)
                self._record_stream(0, digest)
            for layer in walk.decoder.layers:
                if layer.index >= first:
                    self._one_layer(layer.index, layer, progress, total)
            self._one_layer(len(walk.layers), None, progress, total)
        return first

    def _one_layer(self, index: int, layer: Any, progress: Progress | None, total: int) -> None:
        """Layer `index` over all windows; behind the last comes the output matrix, which is None here and not computed."""
        walk = self.walk
        inputs = walk.layers[index] if layer is not None else (walk.output,)
        sums = {names: InputSums(names[0], walk.inputs[names], gram=walk.gram, together=self._together) for names in inputs}

        def tap(names: tuple[str, ...], x: Array) -> None:
            sums[names].add(x)

        digest = blake3()
        for run in walk.runs:
            x = self._stream(index, run)
            if layer is None:
                tap(walk.output, walk.decoder.output_input(x))
            else:
                layer(x, self._cache, self._buffers, tap)
                self._put(index + 1, run, x, digest)
            if progress:
                progress(index * len(walk.windows) + run.stop, total)
        parts: dict[str, str] = {}
        for names in inputs:
            done = sums.pop(names)
            gathered = Gathered(names, done.importance(), done.tokens, done.gram())
            for name, pieces in walk.form.values(gathered):
                parts[name] = self._write(name, pieces)
        if layer is not None:
            self._record_stream(index + 1, digest)
        self._record(self._layer_entry(index, inputs), parts)

    def _stream(self, index: int, run: slice) -> Array:
        """What goes into a layer for some windows."""
        raw = self.staging.read(self._stream_extent(index, run))
        return np.frombuffer(raw, "<f4").reshape(-1, self.walk.config.dims.hidden).copy()

    def _put(self, index: int, run: slice, x: Array, digest: blake3) -> None:
        raw = np.ascontiguousarray(x, "<f4").reshape(-1).view(np.uint8).data
        digest.update(raw)
        self.staging.write(self.streams[index % 2], self._stream_extent(index, run).offset, raw)

    def _stream_extent(self, index: int, run: slice) -> Extent:
        return Extent(self.streams[index % 2], self._width * run.start, self._width * (run.stop - run.start))

    def _write(self, name: str, pieces: Iterator[Array]) -> str:
        """The digest of what is written."""
        digest, extent = blake3(), self.extents[name]
        at = extent.offset
        for piece in pieces:
            raw = np.ascontiguousarray(piece).view(np.uint8).data
            digest.update(raw)
            self.staging.write(self.walk.destination.name, at, raw)
            at += len(raw)
        assert at == extent.end
        return digest.hexdigest()

    # Going on -------------------------------------------------------------------------------------

    def _record_stream(self, index: int, digest: blake3) -> None:
        self._record(self._stream_entry(index), {"data": digest.hexdigest()})

    def _record(self, entry: Entry, parts: Mapping[str, str]) -> None:
        self.staging.record(entry.name, parts, asdict(TensorReport.of("calibrate", entry, None)))

    def _stream_entry(self, index: int) -> Entry:
        extent = Extent(self.streams[index % 2], 0, self._stream_spec.nbytes)
        return Entry(_stream_line(index), self._stream_spec, RAW, {"data": self._stream_spec}, {"data": extent})

    def _layer_entry(self, index: int, inputs: Sequence[tuple[str, ...]]) -> Entry:
        specs: dict[str, TensorSpec] = {}
        for names in inputs:
            specs |= self.walk.form.parts(names, self.walk.inputs[names], gram=self.walk.gram)
        return Entry(_layer_line(index), self._stream_spec, RAW, specs, {name: self.extents[name] for name in specs})

    def _first_layer(self) -> int:
        """The first that is to be done: all before it are, and what goes into it is there."""
        claimed = [index for index in range(len(self.walk.layers) + 1) if _stream_line(index) in self.staging.finished]
        made = [self._stream_entry(index) for index in claimed[-2:]]
        made += [self._layer_entry(index, inputs) for index, inputs in enumerate(self.walk.layers)]
        entries = {entry.name: entry for entry in made}
        there = {line["tensor"] for line in self.staging.verified(entries)}
        for index in reversed(claimed):
            if _stream_line(index) in there and all(_layer_line(before) in there for before in range(index)):
                return index
        return 0


def _layer_line(index: int) -> str:
    return f"layer {index}"


def _stream_line(index: int) -> str:
    return f"input of layer {index}"
