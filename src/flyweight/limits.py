"""Hard limits on what a file may claim. Every one is far above the largest real model.

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
MAX_STRING_BYTES = 64 * 2**20
MAX_METADATA_BYTES = 256 * 2**20
MAX_METADATA_KEYS = 100_000
MAX_ARRAY_ITEMS = 16 * 2**20
MAX_ARRAY_DEPTH = 4
MAX_ALIGNMENT = 2**20
MAX_SHARDS = 10_000
MAX_ARCHIVE_BYTES = 2**31
