"""Forms by the names the command line takes: those that Core ML packages can be quantized to (`coreml_presets`), and

    fp16     dense
    fp8      e4m3 with one scale for each output channel, which packages cannot hold yet
    auto     for each weight the smallest that streams (`form_choice`)

Scales and codebooks are f16, as the engine has them. Core ML's names are imported when a form is named: the pipeline knows this
module, and loads no container before its time.
"""

from __future__ import annotations

from flyweight.codecs import CODECS, codec_for, known
from flyweight.foundation.errors import ArgumentError, nearest
from flyweight.foundation.tensor import RAW, CodecSpec

AUTO, DENSE = "auto", "fp16"
CANDIDATES = ("sparse", "sparse-lut4", "lut2", "lut3", "lut4", "lut4-g16", "lut6", "int8", "lut8")
"""What `auto` tries."""
_OWN = {DENSE: RAW, "fp8": CodecSpec("fp8", {"format": "e4m3", "rows": 1, "columns": 0, "scale": "f16"})}


def forms() -> tuple[str, ...]:
    """Names of forms; the numbers in one may be others: lut4-g32, int8-b64."""
    from flyweight.containers.coreml.coreml_options import QUANTS
    from flyweight.containers.coreml.coreml_presets import codec_named

    return AUTO, *_OWN, *filter(codec_named, QUANTS)


def codec_of_form(name: str) -> CodecSpec:
    """The codec that a form's name means."""
    from flyweight.containers.coreml.coreml_presets import codec_named

    codec = _OWN.get(name) or codec_named(name)
    if codec is None:
        names = forms()
        raise ArgumentError(
            f"there is no form '{name}'{nearest(name, names)}", code="E_FORM", hint=f"known: {', '.join(names)}"
        )
    return _in_f16(codec)


def quantizer_of_form(name: str) -> str:
    """The quantizer that a conversion to the form uses."""
    from flyweight.containers.coreml.coreml_presets import preset

    found = None if name in _OWN else preset(name)
    asked = found.rules[0].quantizer if found and found.rules else ""
    return asked or codec_for(codec_of_form(name)).quantizer


def counts_zeros(codec: CodecSpec) -> bool:
    """Whether the size of a form depends on how many weights are not zero."""
    per_tensor = CODECS[codec.name].per_tensor if known(codec) else ()
    return "stored" in per_tensor


def _in_f16(codec: CodecSpec) -> CodecSpec:
    """With f16 where a preset says: the element type of the tensor."""
    nested = {key: _in_f16(value) for key, value in codec.params.items() if isinstance(value, CodecSpec)}
    own = {key: "f16" for key, value in codec.params.items() if value == "stored"}
    return codec.with_params(**own, **nested)
