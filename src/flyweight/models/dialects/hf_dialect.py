"""The dialect of Hugging Face directories, whose names and values are the canonical ones.

config.json holds the settings, in the spelling of transformers 4 (`rope_theta`, `rope_scaling`, `torch_dtype`) or of 5
(`rope_parameters`, `dtype`). The older one is canonical and is written: transformers 5 and MLX read it too.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from flyweight.foundation import strict_json
from flyweight.foundation.dtypes import DType
from flyweight.foundation.errors import MalformedError, UnsupportedError
from flyweight.foundation.manifest import DRAFT, Manifest, Typed
from flyweight.models.checked_record import Record
from flyweight.models.dialects.contract import Blueprint, Files, Read, Templates, Text, TokenizerTable, Translation
from flyweight.models.families import FAMILIES
from flyweight.models.family import UNTIED, Family
from flyweight.models.model_config import CONFIG_JSON, FULL, SLIDING, Config, read_config
from flyweight.models.rope_scaling import DIVISORS
from flyweight.models.tokenizers import tokenizer_files
from flyweight.models.tokenizers.tokenizer_files import Present, load
from flyweight.models.tokenizers.tokenizer_json import TOKENIZER_JSON
from flyweight.models.transform import Stored

GENERATION_CONFIG = "generation_config.json"
_TORCH_NAMES = {DType.F32: "float32", DType.F16: "float16", DType.BF16: "bfloat16", DType.F64: "float64"}
_SPELLING = "4.57.0"  # the transformers whose keys we write; without it version 5 suspects old Mistral files
_INV_FREQ = re.compile(r"model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")

_ROWS = "_mistralrs_qk_rope_layout"
"""How rows of q and k lie, in what mistral.rs made of llama.cpp's files."""

# Settings that are config anew for every target: they speak of the old file, not of the model.
_OF_THE_FILE = (
    "model_type", "architectures", "torch_dtype", "dtype", "quantization", "quantization_config", "auto_map",
    "transformers_version", "rope_parameters", _ROWS,
)  # fmt: skip
_PATTERNS = ("sliding_window_pattern", "_sliding_window_pattern", "layer_types")
_DROPPED = {"auto_map": "it refers to code that is not copied", "quantization_config": "the tensors describe themselves"}


class HuggingFace:
    name = "hf"
    embedding = "model.embed_tokens.weight"
    rows_of = ""

    def family_of(self, manifest: Manifest, read: Read) -> Family | None:
        if CONFIG_JSON not in manifest.files:
            return None
        model_type = load(_present(manifest.files, read), CONFIG_JSON).get("model_type")
        return FAMILIES[model_type] if isinstance(model_type, str) and model_type in FAMILIES else None

    def read_config(self, manifest: Manifest, read: Read) -> Config:
        if CONFIG_JSON not in manifest.files:
            raise UnsupportedError(
                f"there is no {CONFIG_JSON}, which has the model's settings",
                code="E_CONFIG",
                hint="give the model's directory instead of the file",
            )
        record = load(_present(manifest.files, read), CONFIG_JSON)
        family = self.family_of(manifest, read)
        if family is None:
            raise UnsupportedError(
                f"the model_type {str(record.get('model_type'))[:80]!r} is not supported",
                code="E_FAMILY",
                hint=f"supported: {', '.join(sorted(FAMILIES.lines))}",
            )
        config = read_config(_with_rope_settings(record), family, len(manifest.entries))
        kept = {key: value for key, value in config.settings.items() if key not in _OF_THE_FILE}
        return config._replace(settings=kept)

    def stored(self, name: str, config: Config) -> Stored:
        return Stored(name)

    def files_of_rows(self, manifest: Manifest, read: Read) -> Files:
        config = load(_present(manifest.files, read), CONFIG_JSON).everything()
        plain = {key: value for key, value in config.items() if key != _ROWS}
        return {**manifest.files, CONFIG_JSON: strict_json.dumps(plain, indent=2) + b"\n"}

    def reason_to_drop(self, name: str) -> str:
        if name.startswith(DRAFT):
            return "it belongs to a draft head, not to the model"
        return "derived from the RoPE settings" if _INV_FREQ.fullmatch(name) else ""

    def read_tokenizer(self, manifest: Manifest, read: Read, rows: int) -> TokenizerTable | None:
        present = _present(manifest.files, read)
        if TOKENIZER_JSON not in present:
            return None
        config = tokenizer_files.tokenizer_settings(present)
        roles = [
            token.get("content") if isinstance(token, dict) else token for token in map(config.get, ("bos_token", "eos_token"))
        ]
        bos, eos = (role if isinstance(role, str) else None for role in roles)
        given = [load(present, name).get("eos_token_id") for name in (GENERATION_CONFIG, CONFIG_JSON)]
        ends = [index for ids in given for index in (ids if isinstance(ids, list) else [ids]) if type(index) is int]
        text = present[TOKENIZER_JSON]()
        try:
            table = strict_json.loads(text, file=TOKENIZER_JSON)
        except MalformedError as error:
            error.code = "E_TOKENIZER"
            raise
        return TokenizerTable(table, bos, eos, ends, config.get("add_bos_token") is True)

    def read_templates(self, manifest: Manifest, read: Read) -> Templates:
        present = _present(manifest.files, read)
        return tokenizer_files.read_templates(present, load(present, tokenizer_files.TOKENIZER_CONFIG))

    def read_text(self, manifest: Manifest, read: Read, config: Config) -> Text:
        present = _present(manifest.files, read)
        words, templates, settings = tokenizer_files.from_files(present, config.dims.vocab)
        generation = load(present, GENERATION_CONFIG).everything() if GENERATION_CONFIG in present else None
        notes = [
            f"{key} of {CONFIG_JSON} is dropped: {why}" for key, why in _DROPPED.items() if key in load(present, CONFIG_JSON)
        ]
        repeated = [name for name in tokenizer_files.REPEATING_FILES if name in present]
        notes += [f"{name} is not copied: it repeats {TOKENIZER_JSON}" for name in repeated]
        read_files = {CONFIG_JSON, GENERATION_CONFIG, *tokenizer_files.READ_FILES, *repeated}
        others = {name: file for name, file in manifest.files.items() if name not in read_files}
        return Text(words, templates, settings, generation, files=others, notes=tuple(notes))

    def write(self, model: Blueprint, text: Text, dense: DType | None) -> Translation:
        words, config = text.vocabulary, _config_json(model, dense)
        files, notes = dict(text.files), () if words else ("the source has no tokenizer, so the directory has none",)
        if words is not None:
            files |= tokenizer_files.to_files(words, text.templates, text.tokenizer_settings, model.config.context)
        for role in ("bos_token", "eos_token", "pad_token"):  # null rather than absent: transformers would assume ids
            config.setdefault(f"{role}_id", words.special.get(role) if words else None)
        files[CONFIG_JSON] = strict_json.dumps(config | dict(text.kept), indent=2)
        files[GENERATION_CONFIG] = strict_json.dumps(text.generation or _generation(config, text), indent=2)
        return Translation({"format": Typed("str", "pt")}, files, notes=notes)


class Interleaved(HuggingFace):
    """What mistral.rs makes of llama.cpp's files: all is as above, but the rows of q and k lie as they did there."""

    name = "hf_adjacent"
    rows_of = "hf"

    def stored(self, name: str, config: Config) -> Stored:
        module = name.split(".")[-2]
        return Stored(name, {"q_proj": config.dims.heads, "k_proj": config.dims.kv_heads}.get(module, 0))


HF = HuggingFace()
ADJACENT = Interleaved()


def _present(files: Files, read: Read) -> Present:
    def content(name: str) -> bytes:
        file = files[name]
        return file if isinstance(file, bytes) else bytes(read(file))

    return {name: partial(content, name) for name in files}


def _with_rope_settings(config: Record) -> Record:
    """config.json with what transformers 5 has in `rope_parameters` where transformers 4 had it.

    Gemma 3 has one set of parameters for each kind of layer; scaling is only for the global ones.
    """
    parameters = config.table("rope_parameters")
    if parameters is None:
        return config
    local = parameters.table(SLIDING) if FULL in parameters else None
    parameters = parameters.table(FULL) or parameters
    settings = {key: parameters.get(key) for key in ("rope_theta", "partial_rotary_factor") if key in parameters}
    if local is not None and "rope_theta" in local:
        settings["rope_local_base_freq"] = local.get("rope_theta")
    if local is not None and local.get("rope_type") not in (None, "default"):
        local.fail("rope_type", f"'default' in '{SLIDING}': layers with a window are not scaled")
    if "rope_scaling" not in config:
        settings["rope_scaling"] = parameters.everything()
    return config.extended(settings)


def _config_json(model: Blueprint, dense: DType | None) -> dict[str, Any]:
    config, family, dims = model.config, model.config.family, model.config.dims
    switch = family.window.switch if family.window else ""
    table: dict[str, Any] = {switch: config.settings.get(switch, config.values[switch])} if switch else {}
    table |= {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "transformers_version": _SPELLING,
        **{key: value for key, value in config.values.items() if key != switch},
        **{key: state for key, state in model.switches.items() if key != UNTIED},
        "vocab_size": dims.vocab,
        "tie_word_embeddings": config.tied,
    }
    if config.spelled_head_dim or family.head_dim or dims.head * dims.heads != dims.hidden:
        table["head_dim"] = dims.head
    if config.rotary != dims.head:
        table["partial_rotary_factor"] = config.rotary / dims.head
    table["rope_scaling"] = _rope_scaling(config)
    if config.period:
        table["sliding_window_pattern"] = config.period
    if family.window and family.window.period:
        table["layer_types"] = [SLIDING if window else FULL for window in config.windows]
    if family.score_scalar:
        table["query_pre_attn_scalar"] = config.settings.get("query_pre_attn_scalar", config.score_scalar)
    if dense in _TORCH_NAMES:
        table["torch_dtype"] = _TORCH_NAMES[dense]
    others = {key: value for key, value in config.settings.items() if key not in table}
    return table | {key: value for key, value in others.items() if key not in (*_OF_THE_FILE, *_PATTERNS)}


def _rope_scaling(config: Config) -> dict[str, Any] | None:
    """With both spellings of its kind; for longrope only the older one is allowed."""
    if config.scaling is None:
        return None
    kind = config.scaling["rope_type"]
    if kind == DIVISORS:
        raise UnsupportedError(
            f"the RoPE frequencies are not a llama3 scaling of a context of 8192, the only kind that {CONFIG_JSON} can express",
            code="E_ROPE",
        )
    table = config.scaling | {"type": kind}
    return {key: value for key, value in table.items() if key != "rope_type"} if kind == "longrope" else table


def _generation(config: dict[str, Any], text: Text) -> dict[str, Any]:
    """generation_config.json with every token that ends an answer."""
    table = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id") if config.get(key) is not None}
    ends = list(dict.fromkeys(text.ends))
    return {"_from_model_config": True} | table | ({"eos_token_id": ends} if len(ends) > 1 else {})
