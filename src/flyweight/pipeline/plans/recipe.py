"""Recipes: rules that choose a codec for each tensor.

A recipe is an ordered list of rules; the first that matches a tensor decides. A rule matches by name (in the source's or the
target's naming; patterns are shell globs) and, if it says so, only in some layers or some models (`rule_conditions`). It asks
for one of

    keep      the tensor stays as it is stored, as far as the target can hold it
    dense     plain numbers, of `dtype` if given
    <codec>   a codec by name with parameters, filled by a quantizer

`recipe_file` has the form in TOML, `quantization_names` the recipes that have names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from flyweight.codecs import CODECS, Codec, codec_for
from flyweight.codecs.value_checks import FLOATS
from flyweight.containers.named_quantizations import Floor
from flyweight.foundation.accuracy_gate import Gate
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import UnsupportedError
from flyweight.foundation.tensor import RAW, CodecSpec, Param, TensorSpec
from flyweight.models import dense_by_default
from flyweight.pipeline.plans.arguments import as_dtype
from flyweight.pipeline.plans.rule_conditions import UNKNOWN, Condition, Layers, ModelTraits, layer_of
from flyweight.quantizers import QUANTIZERS

ROW = "row"
"""A parameter of this value is the number of a tensor's columns."""
STORED = "stored"
"""A parameter of this value is the element type of a tensor, if that is a type for scales, and f32 if not."""
_ANY = TensorSpec((1, 1), DType.F32)


@dataclass(frozen=True, slots=True)
class Choice:
    """What a rule asks for. `codec` None means keep; the raw codec means dense."""

    codec: CodecSpec | None
    quantizer: str = ""
    """Empty: the one the codec names, unless codes can be taken over as they are."""
    dtype: DType | None = None
    sparsity: float = 0.0
    """The share of blocks set to zero before the codec, which drops such blocks, gets the values."""
    floor: Floor | None = None
    """Another codec for a tensor that would not stay near enough to its source in this one."""
    otherwise: tuple[CodecSpec, ...] = ()
    """Codecs for a tensor whose shape this one does not fit; the first that does is taken."""
    note: str = ""
    """What is to be said of a tensor that gets it."""
    decided: bool = False
    """Whether it was made for this very tensor, so that its values need not be looked at again."""

    def for_tensor(self, spec: TensorSpec) -> Choice:
        """The choice for a tensor of this shape and type."""
        if self.codec is None:
            return self
        wanted, *others = (codec_for(of_tensor(codec, spec)) for codec in (self.codec, *self.otherwise))
        if others and not fits(wanted, spec) and (other := next((codec for codec in others if fits(codec, spec)), None)):
            note = f"{other.name} instead of {wanted.name}: rows of {spec.columns} are no whole blocks of that"
            return replace(self, codec=other.spec, otherwise=(), note=note)
        return replace(self, codec=wanted.spec, otherwise=())

    def as_json(self) -> dict[str, Any]:
        return {
            "codec": self.codec.as_json() if self.codec else "keep",
            "quantizer": self.quantizer or codec_for(of_tensor(self.codec or RAW, _ANY)).quantizer,
            "dtype": self.dtype.label if self.dtype else None,
            **({"sparsity": self.sparsity} if self.sparsity else {}),
            **({"if_it_does_not_fit": [codec.as_json() for codec in self.otherwise]} if self.otherwise else {}),
            **({"cosine": self.floor.cosine, "otherwise": self.floor.otherwise.as_json()} if self.floor else {}),
        }


def of_tensor(codec: CodecSpec, spec: TensorSpec) -> CodecSpec:
    """The codec with what a tensor has wherever its parameters, or those of a codec inside it, say ROW or STORED."""
    dtype = spec.dtype if spec.dtype.label in FLOATS else DType.F32
    own: dict[str, Param] = {ROW: max(spec.columns, 1), STORED: dtype.label}
    params = {key: own[value] for key, value in codec.params.items() if isinstance(value, str) and value in own}
    inside = {key: of_tensor(value, spec) for key, value in codec.params.items() if isinstance(value, CodecSpec)}
    return codec.with_params(**params, **inside) if params or inside else codec


def fits(codec: Codec, spec: TensorSpec) -> bool:
    try:
        codec.layout(TensorSpec(spec.shape, codec.decoded_dtype(spec.dtype)))
    except UnsupportedError:
        return False
    return True


SAME_CODES = "same codes"
"""Not a quantizer: the codes a tensor has go into the other codec's form, through the grid behind both."""
KEEP = Choice(None)
DENSE = Choice(RAW)


def _matches(patterns: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Rule:
    patterns: tuple[str, ...]
    choice: Choice
    layers: Layers | None = None
    """Only in these; None: in all, and outside of layers too."""
    when: tuple[Condition, ...] = ()
    """Only in models of which all this is true."""

    def matches(self, model: ModelTraits, *names: str) -> bool:
        if not _matches(self.patterns, names) or not all(condition.holds(model) for condition in self.when):
            return False
        if self.layers is None:
            return True
        layer = next((number for name in names if (number := layer_of(name)) is not None), None)
        return layer is not None and self.layers.have(layer, model.layers)

    def as_json(self) -> dict[str, Any]:
        where = {"layers": self.layers.text} if self.layers else {}
        when = {"when": [condition.text for condition in self.when]} if self.when else {}
        return {"match": list(self.patterns), **where, **when, **self.choice.as_json()}


@dataclass(frozen=True, slots=True)
class Masks:
    """A mask over whatever the rules choose for the matrices of these names: a bit for each `block` weights of a row."""

    patterns: tuple[str, ...]
    block: int
    sparsity: float = 0.0

    def over(self, choice: Choice) -> Choice:
        codec = CodecSpec("masked", {"inner": choice.codec or RAW, "block": self.block})
        return replace(choice, codec=codec, sparsity=self.sparsity)

    def as_json(self) -> dict[str, Any]:
        return {"match": list(self.patterns), "block": self.block, "sparsity": self.sparsity}


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rules in order; what none of them matches is kept. `protect` puts the default rules before them."""

    name: str
    rules: tuple[Rule, ...] = ()
    protect: bool = False
    """Keep what is dense by default (embeddings, output head, norms, biases, vectors) whatever the rules say."""
    matrices_only: bool = False
    """Keep vectors, and nothing else, whatever the rules say."""
    masks: Masks | None = None
    gate: Gate | None = None
    """What the result may cost; None: what its forms ask for, if any does."""
    model: ModelTraits = UNKNOWN
    """What it is for, as far as rules ask."""
    notes: tuple[str, ...] = ()
    """What is to be said whenever it is used."""

    def choose(self, spec: TensorSpec, *names: str) -> Choice:
        vector = len(spec.shape) < 2
        if vector and (self.protect or self.matrices_only):
            return KEEP
        if self.protect and any(dense_by_default(name) for name in names):
            return KEEP
        chosen = next((rule.choice for rule in self.rules if rule.matches(self.model, *names)), KEEP).for_tensor(spec)
        if self.masks is not None and not vector and _matches(self.masks.patterns, names):
            return self.masks.over(chosen)
        return chosen

    def as_json(self) -> dict[str, Any]:
        rules = [rule.as_json() for rule in self.rules]
        masks = {"masks": self.masks.as_json()} if self.masks else {}
        gate = {"gate": self.gate.as_json()} if self.gate else {}
        notes = {"notes": list(self.notes)} if self.notes else {}
        return {"name": self.name, "protect": self.protect, "rules": rules} | masks | gate | notes


@dataclass(frozen=True, slots=True)
class ByName(Recipe):
    """A choice of its own for each tensor that is named; others are kept."""

    choices: Mapping[str, Choice] = field(default_factory=dict)

    def choose(self, spec: TensorSpec, *names: str) -> Choice:
        return next((self.choices[name] for name in names if name in self.choices), KEEP).for_tensor(spec)


def choice(
    codec: str,
    params: Mapping[str, Any] | None = None,
    quantizer: str | None = None,
    dtype: str | None = None,
    sparsity: float = 0.0,
    cosine: float | None = None,
    otherwise: Mapping[str, Any] | str | Sequence[Any] | None = None,
) -> Choice:
    """What a rule that says these things asks for."""
    drops_blocks = codec in CODECS and CODECS[codec].drops_blocks
    if sparsity and not (drops_blocks and type(sparsity) is float and 0 < sparsity < 1):
        raise UnsupportedError("sparsity must be between 0 and 1, and needs the codec 'masked'", code="E_RECIPE")
    if codec in ("keep", "dense"):
        if params or quantizer:
            raise UnsupportedError(f"'{codec}' takes no params and no quantizer", code="E_RECIPE")
        return Choice(None if codec == "keep" else DENSE.codec, dtype=as_dtype(dtype))
    if dtype:
        raise UnsupportedError(f"dtype is only for 'keep' and 'dense', not for codec '{codec}'", code="E_RECIPE")
    wish = _spec(codec, params or {})
    complete = codec_for(of_tensor(wish, _ANY))
    if not complete.encodes:
        raise UnsupportedError(f"codec '{codec}' can be decoded but not encoded", code="E_NO_ENCODER")
    if quantizer is not None and quantizer not in QUANTIZERS:
        raise UnsupportedError(
            f"no quantizer named '{quantizer}'", code="E_RECIPE", hint=f"known: {', '.join(QUANTIZERS.lines)}"
        )
    spec = _with_open(wish, complete.spec)
    if cosine is None and otherwise is not None:
        return Choice(spec, quantizer or "", sparsity=sparsity, otherwise=_others(otherwise))
    return Choice(spec, quantizer or "", sparsity=sparsity, floor=_floor(spec, cosine, otherwise))


def _with_open(wish: CodecSpec, complete: CodecSpec) -> CodecSpec:
    """The complete parameters, but ROW and STORED where a wish says so: what they are is another for every tensor."""
    said = {key: value for key, value in wish.params.items() if value in (ROW, STORED)}
    inside = {
        key: _with_open(value, inner)
        for key, value in wish.params.items()
        if isinstance(value, CodecSpec) and isinstance(inner := complete.params[key], CodecSpec)
    }
    return complete.with_params(**said, **inside)


def _others(otherwise: object) -> tuple[CodecSpec, ...]:
    """The codecs for a tensor whose rows the first does not fit: a name, a codec as a table, or several of these."""
    made = []
    wishes: Sequence[Any] = otherwise if isinstance(otherwise, list | tuple) else (otherwise,)
    for each in wishes:
        match each:
            case str(name) if name not in ("keep", "dense"):
                other = choice(name)
            case {"name": str(name), "params": dict(params), **rest} if not rest and name not in ("keep", "dense"):
                other = choice(name, params)
            case _:
                raise UnsupportedError(
                    "otherwise must be a codec for rows that the first does not fit, such as 'q5_0', or with cosine its params",
                    code="E_RECIPE",
                )
        assert other.codec is not None
        made.append(other.codec)
    return tuple(made)


def _spec(codec: str, params: Mapping[str, Any]) -> CodecSpec:
    if not isinstance(params, Mapping):
        raise UnsupportedError(f"params must be a table, such as {{ bits = 4 }}, not {params!r}", code="E_RECIPE")
    return CodecSpec.read({"name": codec, "params": dict(params)}, code="E_RECIPE")


def _floor(spec: CodecSpec, cosine: float | None, otherwise: object) -> Floor | None:
    if cosine is None and otherwise is None:
        return None
    if type(cosine) is not float or not 0 < cosine < 1 or not isinstance(otherwise, Mapping):
        raise UnsupportedError(
            "cosine must be between 0 and 1, and needs `otherwise`, the parameters of a tensor that does not reach it",
            code="E_RECIPE",
        )
    return Floor(cosine, codec_for(_spec(spec.name, spec.as_json()["params"] | dict(otherwise))).spec)
