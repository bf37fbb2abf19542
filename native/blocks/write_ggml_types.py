"""Prints the table of src/flyweight/foundation/ggml_types.py as a C++ header. The build runs it; it needs no package.

ggml::q4_0::elements, ggml::q4_0::bytes    of a block
FLYWEIGHT_GGML_DECODE(X, …)                X(type, …) for every type with that kind of kernel; so NEAREST, SEARCH and PRODUCT
"""

import runpy
import sys

table = runpy.run_path(sys.argv[1])
kinds = ("decode", "nearest", "search", "product")
lines = ["#pragma once", "#include <cstddef>", "namespace ggml {"]
lines += [
    f"struct {each.name} {{ static constexpr std::size_t elements = {each.elements}, bytes = {each.nbytes}; }};"
    for each in table["GGML_TYPES"].values()
]
lines.append("}")
for kind in kinds:
    calls = " ".join(f"X({name}, __VA_ARGS__)" for name in table["ggml_types_with"](kind))
    lines.append(f"#define FLYWEIGHT_GGML_{kind.upper()}(X, ...) {calls}")
sys.stdout.write("\n".join(lines) + "\n")
