"""An MLX model directory: a Hugging Face directory whose matrices are stored as triples.

    <path>.weight    u32 (…, rows, columns · bits / 32)   codes, a little-endian stream of bits per row
    <path>.scales    f32, f16 or bf16 (…, rows, columns / group_size)
    <path>.biases    like scales                          w = scale · code + bias

How many bits a code has is not in the weights; config.json says it:

    "quantization": {"group_size": 64, "bits": 4, "mode": "affine",      for every triple, unless
                     "<path>": {"group_size": 32, "bits": 8},            said otherwise for this one;
                     "<path>": false}                                    this one is not a triple

A triple is one tensor here, named "<path>.weight". Everything else is plain. The same object is
written under "quantization_config", where other tools look for it; it is never read from there.
In another mode than affine, or where other files tell of a method, all tensors are `foreign` (see `quantization`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from flyweight.containers import mlx_presets
from flyweight.containers.carried import Carried
from flyweight.containers.container import Container, Placement, require_carried
from flyweight.containers.hf import (
    CONFIG,
    INDEX,
    is_model_directory,
    place_files,
    place_side_files,
    place_tensors,
    read_tensors,
    side_files,
    stray_weights,
    unread_weights,
    with_method,
)
from flyweight.containers.named_quantizations import Preset
from flyweight.containers.quantization import as_foreign
from flyweight.containers.safetensors import header_metadata, metadata_of, with_extents
from flyweight.foundation import strict_json
from flyweight.foundation.cursor import check_shape
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import FlyweightError, MalformedError, UnsupportedError
from flyweight.foundation.limits import MAX_JSON_BYTES
from flyweight.foundation.manifest import Entry, Manifest, Typed
from flyweight.foundation.tensor import RAW, CodecSpec, Param, TensorSpec
from flyweight.sources import Bundle

BITS = (1, 2, 3, 4, 5, 6, 8)
GROUPS = (32, 64, 128)
SCALES = (DType.F32, DType.F16, DType.BF16)
PLAIN = frozenset(
    {
        DType.F32, DType.F16, DType.BF16, DType.C64, DType.BOOL,
        DType.I8, DType.I16, DType.I32, DType.I64, DType.U8, DType.U16, DType.U32, DType.U64,
    }
)  # fmt: skip
"""What MLX loads with its own type. It reads fp8 too, but as u8, which loses what it is."""

_CODES, _SCALE, _BIAS = ".weight", ".scales", ".biases"
_PARTS = {"codes": _CODES, "scale": _SCALE, "bias": _BIAS}
_AFFINE: dict[str, Param] = {"form": "scale_bias", "scale": "f32", "axis": -1}
_STORED: dict[str, Param] = {"packing": "little", "word": "u32"}
_SETTINGS = frozenset({"group_size", "bits", "mode"})
_KEY, _MIRROR = "quantization", "quantization_config"
_PLAIN = ("nothing is quantized, so this is a plain Hugging Face directory; use --quant int4 to quantize",)


class Grid(NamedTuple):
    """How a triple is to be read."""

    bits: int
    group: int

    def codec(self, scale: DType) -> CodecSpec:
        own: dict[str, Param] = {"bits": self.bits, "group": self.group, "scale": scale.label}
        return CodecSpec("affine", _AFFINE | own | _STORED)

    def as_json(self) -> dict[str, int]:
        return {"group_size": self.group, "bits": self.bits}


class Settings(NamedTuple):
    """What config.json says about triples. `False` marks a module that is not one, None says nothing."""

    default: Grid | None
    modules: Mapping[str, Grid | bool]

    def of(self, path: str) -> Grid | bool | None:
        found = self.modules.get(path, True)
        return self.default if found is True else found


# --- config.json ----------------------------------------------------------------------------------


def _malformed(message: str, file: str, code: str = "E_QUANTIZATION") -> MalformedError:
    return MalformedError(message, code=code, file=file)


def _settings(config: object, file: str) -> Settings:
    """The `quantization` object, checked to the last key."""
    if not isinstance(config, dict):
        raise _malformed("config.json must be an object", file)
    table = config.get(_KEY)
    if table is None:
        return Settings(None, {})
    if not isinstance(table, dict):
        raise _malformed(f"'{_KEY}' must be an object", file)
    default = _grid({key: table[key] for key in _SETTINGS & table.keys()}, _KEY, file)
    modules: dict[str, Grid | bool] = {}
    for path, value in table.items():
        if path in _SETTINGS:
            continue
        if isinstance(value, dict):
            modules[path] = _grid(value, f"{_KEY} of '{path}'", file)
        elif type(value) is bool:
            modules[path] = value
        else:
            raise _malformed(f"{_KEY} of '{path}' must be an object or a boolean", file)
    return Settings(default, modules)


def _method(config: object) -> str:
    """The mode of `quantization` or of a module in it that is not affine, the only one that is read; or nothing."""
    table = config.get(_KEY) if isinstance(config, dict) else None
    tables = [table, *table.values()] if isinstance(table, dict) else []
    modes = [str(part["mode"]) for part in tables if isinstance(part, dict) and "mode" in part]
    return next((f"MLX's mode {mode[:80]!r}" for mode in modes if mode != "affine"), "")


def _allowed(value: object, allowed: tuple[int, ...]) -> bool:
    """True and 4.0 equal members, but are none."""
    return type(value) is int and value in allowed


def _grid(table: Mapping[str, Any], what: str, file: str) -> Grid:
    if unknown := table.keys() - _SETTINGS:
        raise UnsupportedError(f"{what} has an unknown setting '{min(unknown)}'", code="E_QUANTIZATION", file=file)
    for key, allowed in (("bits", BITS), ("group_size", GROUPS)):
        value = table.get(key)
        if not _allowed(value, allowed):
            raise _malformed(f"{key} in {what} must be one of {', '.join(map(str, allowed))}, not {value!r}", file)
    return Grid(table["bits"], table["group_size"])


def _updated(config: Mapping[str, Any], entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The config with `quantization` as the entries need it; every other key and the order of keys kept."""
    grids = {_path(entry): _grid_of(entry.codec) for entry in entries.values() if entry.codec != RAW}
    if not grids:
        return {key: value for key, value in config.items() if key not in (_KEY, _MIRROR)}
    [(most, _)] = Counter(grids.values()).most_common(1)
    # No "mode": affine is the default, and older loaders know no other key.
    table: dict[str, Any] = dict(most.as_json())
    table |= {path: grid.as_json() for path, grid in grids.items() if grid != most}
    return {**config, _KEY: table, _MIRROR: table}


def _fits(config: Mapping[str, Any], entries: Mapping[str, Entry]) -> bool:
    """Whether the config already says of every entry what it is."""
    if all(entry.codec == RAW for entry in entries.values()):
        return _KEY not in config and _MIRROR not in config
    try:
        settings = _settings(config, CONFIG)
    except FlyweightError:
        return False
    return not any(_contradicts(settings, entry) for entry in entries.values())


def _contradicts(settings: Settings, entry: Entry) -> bool:
    if entry.codec == RAW:
        return entry.name.endswith(_CODES) and isinstance(settings.modules.get(_path(entry)), Grid)
    return settings.of(_path(entry)) != _grid_of(entry.codec)


def _others(config: dict[str, Any]) -> dict[str, Any]:
    """The config without the mirror of `quantization`; what names another method is no mirror."""
    mirror = config.get(_MIRROR)
    mirrors = not isinstance(mirror, dict) or "quant_method" not in mirror
    return {key: value for key, value in config.items() if key != _MIRROR} if mirrors else config


# --- triples --------------------------------------------------------------------------------------


def _path(entry: Entry) -> str:
    return entry.name.removesuffix(_CODES)


def _grid_of(codec: CodecSpec) -> Grid:
    return Grid(codec.integer("bits"), codec.integer("group"))


def _mistakable(entry: Entry) -> str:
    """Why a plain tensor looks like a piece of a triple, or nothing if it does not."""
    for suffix in (_SCALE, _BIAS):
        if entry.name.endswith(suffix):
            return f"named like the {suffix[1:]} of a quantized '{entry.name.removesuffix(suffix)}{_CODES}'"
    packed = entry.name.endswith(_CODES) and entry.spec.dtype is DType.U32
    return f"stored like a quantized tensor with '{_path(entry)}{_SCALE}'" if packed else ""


def _triple(path: str, grid: Grid, plain: Mapping[str, Entry]) -> Entry:
    """One tensor from its three; their shapes must tell the same story."""
    name = path + _CODES
    missing = [suffix for suffix in _PARTS.values() if path + suffix not in plain]
    if missing:
        raise MalformedError(f"the quantized tensor has no '{path}{missing[0]}'", code="E_TRIPLE", tensor=name)
    pieces = {part: plain[path + suffix] for part, suffix in _PARTS.items()}
    codes, scale, bias = (piece.spec for piece in pieces.values())
    if codes.dtype is not DType.U32 or scale.dtype not in SCALES or bias != scale or len(codes.shape) < 2:
        raise MalformedError(
            f"a quantized tensor needs u32 codes and two equal float tensors, not {codes}, {scale} and {bias}",
            code="E_TRIPLE",
            tensor=name,
        )
    shape = check_shape((*scale.shape[:-1], scale.columns * grid.group), tensor=name)
    if codes.shape != (*shape[:-1], shape[-1] * grid.bits // 32):
        raise MalformedError(
            f"{codes} with {scale} is not {grid.bits} bits in groups of {grid.group}", code="E_TRIPLE", tensor=name
        )
    return Entry(
        name,
        TensorSpec(shape, DType.F32),
        grid.codec(scale.dtype),
        {part: piece.spec for part, piece in pieces.items()},
        {part: piece.extents["data"] for part, piece in pieces.items()},
    )


def _collect(plain: Mapping[str, Entry], settings: Settings, file: str) -> dict[str, Entry]:
    """Triples put together, in the order of the file; each where its first piece is."""
    entries: dict[str, Entry] = {}
    triples = {name.removesuffix(_SCALE) for name in plain if name.endswith(_SCALE)}
    owners = {path + suffix: path for path in triples for suffix in _PARTS.values()}
    for name, entry in plain.items():
        path = owners.get(name)
        if entry.codec != RAW:
            raise UnsupportedError(f"MLX cannot store the codec {entry.codec}", code="E_DESCRIPTION", tensor=name)
        if path is None:
            if looks := _mistakable(entry):
                raise MalformedError(f"{looks}, which is not there", code="E_TRIPLE", tensor=name)
            if _contradicts(settings, entry):
                raise MalformedError(
                    "the tensor is plain, but config.json says that it is quantized", code="E_TRIPLE", file=file, tensor=name
                )
            entries[name] = entry
        elif path + _CODES not in entries:
            grid = settings.of(path)
            if not isinstance(grid, Grid):
                raise MalformedError(
                    "the tensor is quantized, but config.json does not say so", code="E_TRIPLE", file=file, tensor=path + _CODES
                )
            entries[path + _CODES] = _triple(path, grid, plain)
    return entries


def _keys(entries: Iterable[Entry]) -> dict[str, tuple[str, str]]:
    """The key each part is stored under, in order: key → (tensor, part)."""
    keys: dict[str, tuple[str, str]] = {}
    for entry in entries:
        if entry.codec == RAW:
            keys[entry.name] = (entry.name, "data")
        else:
            keys |= {_path(entry) + suffix: (entry.name, part) for part, suffix in _PARTS.items()}
    return keys


class MlxDirectory(Container):
    name = "mlx"
    title = "MLX directory"
    dialect = "hf"
    expert_layout = "mlx"
    own_files = (INDEX,)
    quants = mlx_presets.QUANTS
    sizes = mlx_presets.SIZES
    codecs = (
        Carried("raw", dtypes=tuple(PLAIN)),
        Carried(
            "affine",
            {
                **{key: (value,) for key, value in (_AFFINE | _STORED).items()},
                "bits": BITS,
                "group": GROUPS,
                "scale": tuple(scale.label for scale in SCALES),
            },
        ),
    )
    is_directory = True

    def probe(self, bundle: Bundle) -> bool:
        """A model directory whose config.json speaks of `quantization`, whatever it says."""
        if not is_model_directory(bundle) or CONFIG not in bundle or bundle[CONFIG].size > MAX_JSON_BYTES:
            return False
        try:
            config = strict_json.load(bundle[CONFIG])
        except FlyweightError:
            # Not JSON: if it meant to be ours, let the parser say what is wrong with it.
            return f'"{_KEY}"'.encode() in bytes(bundle[CONFIG].read(0, bundle[CONFIG].size))
        return isinstance(config, dict) and config.get(_KEY) is not None

    def parse(self, bundle: Bundle) -> Manifest:
        """A directory without triples is a dense model, as it is to MLX."""
        file = bundle[CONFIG].name if CONFIG in bundle else bundle.name
        config = strict_json.load(bundle[CONFIG]) if CONFIG in bundle else {}
        method = _method(config)
        settings = _settings(config, file) if not method else Settings(None, {})
        stored, entries = read_tensors(bundle)
        metadata, dialect = metadata_of(stored, bundle.name)
        try:
            entries = as_foreign(entries, method, CONFIG) if method else _collect(entries, settings, file)
        except FlyweightError as error:
            raise error.at(file=bundle.name) from None
        entries = with_method(bundle, entries, _others(config))
        return Manifest(self.name, entries, metadata, side_files(bundle), dialect)

    def carries(self, spec: TensorSpec, codec: CodecSpec) -> bool:
        if codec == RAW:
            return spec.dtype in PLAIN
        params = codec.params
        if codec.name != "affine" or not _allowed(params.get("bits"), BITS) or not _allowed(params.get("group"), GROUPS):
            return False
        grid = _grid_of(codec)
        whole = len(spec.shape) >= 2 and spec.columns % grid.group == 0
        return whole and any(codec == grid.codec(scale) for scale in SCALES)

    def preset(self, quant: str, extras: object) -> Preset | None:
        return mlx_presets.preset(quant)

    def summary(self, bundle: Bundle) -> Mapping[str, Any]:
        return unread_weights(bundle)

    def warnings(self, bundle: Bundle, manifest: Manifest) -> Iterable[tuple[str, str]]:
        return stray_weights(bundle)

    def adapt(self, codec: CodecSpec, name: str = "") -> CodecSpec:
        if codec.name != "affine":
            return codec
        return CodecSpec("affine", _AFFINE | dict(codec.params) | _STORED)

    def place(self, manifest: Manifest, name: str, shard_bytes: int | None = None) -> Placement:
        """Needs the bytes of config.json among the manifest's files: what they say of triples is made to fit."""
        require_carried(self, manifest)
        files, entries = place_files(self, manifest), manifest.entries
        if not isinstance(files.get(CONFIG), bytes):
            raise UnsupportedError("an MLX directory needs a config.json", code="E_NO_CONFIG")
        for entry in entries.values():
            if entry.codec != RAW and not entry.name.endswith(_CODES):
                raise UnsupportedError(f"MLX quantizes only tensors named '…{_CODES}'", code="E_KEY", tensor=entry.name)
            if entry.codec == RAW and (looks := _mistakable(entry)):
                raise UnsupportedError(f"plain, but {looks}", code="E_KEY", tensor=entry.name)
        keys = _keys(entries.values())
        if "format" in manifest.metadata:  # another loader's, taken over from the source
            manifest = replace(manifest, metadata={**manifest.metadata, "format": Typed("str", "mlx")})
        images, extents = place_tensors(entries, keys, header_metadata(manifest, "mlx"), shard_bytes)
        new_files, copies = place_side_files(files)
        placed = with_extents(manifest, self.name, keys, extents)
        return Placement(
            replace(placed, files=files), images | new_files, copies, notes=() if len(keys) > len(entries) else _PLAIN
        )

    def config(self, config: Mapping[str, Any], entries: Mapping[str, Entry]) -> Mapping[str, Any]:
        return config if _fits(config, entries) else _updated(config, entries)
