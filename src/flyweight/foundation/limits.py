"""Hard limits on what a file may claim, and sizes as people write them. Every limit is far above the largest real model.

Counts are checked against these *and* against the bytes that are left, before anything is
allocated.
"""

MAX_JSON_BYTES = 100_000_000
MAX_JSON_DEPTH = 64
MAX_TENSORS_PER_FILE = 1_000_000
MAX_TENSORS = 2_000_000
MAX_RANK = 8
MAX_NAME_BYTES = 1024
MAX_SIZE = 2**63 - 1
MAX_ELEMENTS = 2**59
"""Of a tensor: in whatever type they are decoded, their bytes are fewer than 2^63, also where a dimension is zero."""
MAX_STRING_BYTES = 64 * 2**20
MAX_METADATA_BYTES = 256 * 2**20
MAX_METADATA_KEYS = 100_000
MAX_ARRAY_ITEMS = 16 * 2**20
MAX_ARRAY_DEPTH = 4
MAX_CODEC_DEPTH = 4
MAX_CODEC_PARAMS = 64
MAX_CODEC_TEXT = 4096
"""Of the description of a codec: codecs within codecs, parameters in all of them, bytes of a name or a text."""
MAX_ALIGNMENT = 2**20
MAX_SHARDS = 10_000
MAX_ARCHIVE_BYTES = 2**31
MAX_PARSE_BYTES = 512 * 2**20
"""What one parse may allocate (see `cursor.Budget`)."""

_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def parse_size(size: int | str, name: str = "a size") -> int:
    """Bytes, from a positive integer or from text such as `500M`, `4G`, `2GiB`; TypeError or ValueError if it is neither."""
    if type(size) is int and 0 < size <= MAX_SIZE:
        return size
    if not isinstance(size, int | str) or isinstance(size, bool):
        raise TypeError(f"{name} must be a number of bytes or text such as '500M', not {type(size).__name__}")
    text = str(size).strip().upper().removesuffix("IB").removesuffix("B")
    unit = _UNITS.get(text[-1:], 1)
    try:
        number = float(text[:-1] if unit > 1 else text) * unit
    except (ValueError, OverflowError):
        number = 0.0
    if not 1 <= number <= MAX_SIZE:
        raise ValueError(f"{name} must be a number of bytes or text such as 500M or 4G, not {size!r}")
    return int(number)


def human_bytes(count: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.2f} TB"
