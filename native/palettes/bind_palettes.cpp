// The bindings of palettes.
#include "binding.hpp"
#include "palettes/palettes.hpp"

namespace flyweight {
namespace {

void require_table(size_t entries) {
    require(entries >= 2 && entries <= 256 && !(entries & (entries - 1)), "a table has 2 to 256 entries, a power of two");
}

// Element i of `count` has table i % cycle / run; there are none that lack one.
void require_tables(size_t count, size_t run, size_t cycle, size_t tables) {
    require(!count || (run >= 1 && cycle >= 1 && divided_up(cycle, run) <= tables), "elements without a table");
}

}  // namespace

void bind_palettes(nb::module_& module) {
    define(module, "palette_decode", +[](Bytes codes, Floats tables, size_t vector, size_t run_length, size_t cycle, size_t start,
                                         FloatsOut out) {
        const size_t count = codes.shape(1), width = tables.shape(1);
        require_shape(codes, 1, count, "the codes are one row");
        require(vector >= 1 && width % vector == 0, "a table is whole vectors");
        require_table(width / vector);
        require(out.shape(0) == 1 && out.shape(1) / vector == count && out.shape(1) % vector == 0, "codes and values disagree");
        require_tables(count, run_length, cycle, tables.shape(0));
        run(&Palettes::palette_decode, codes.data(), count, tables.data(), width / vector, vector, run_length, cycle, start, out.data());
    }, "codes", "tables", "vector", "run", "cycle", "start", "out");

    define(module, "palette_nearest", +[](Floats values, Floats midpoints, size_t run_length, size_t cycle, size_t start, BytesOut out) {
        const size_t count = values.shape(1), steps = midpoints.shape(1);
        require_shape(values, 1, count, "the values are one row");
        require_shape(out, 1, count, "a value has one code");
        require_table(steps < 256 ? steps + 1 : 0);
        require_tables(count, run_length, cycle, midpoints.shape(0));
        run(&Palettes::palette_nearest, values.data(), count, midpoints.data(), steps, run_length, cycle, start, out.data());
    }, "values", "midpoints", "run", "cycle", "start", "out");

    define(module, "palette_nearest_vector", +[](Floats points, Floats table, BytesOut out) {
        const size_t count = points.shape(0), vector = points.shape(1), entries = table.shape(0);
        require(vector >= 1 && vector <= 16 && table.shape(1) == vector, "points and entries have the same 1 to 16 coordinates");
        require_table(entries);
        require_shape(out, count, 1, "a point has one code");
        run(&Palettes::palette_nearest_vector, points.data(), count, vector, table.data(), entries, out.data());
    }, "points", "table", "out");

    define(module, "palette_histogram", +[](Floats values, Floats weights, DoublesOut out) {
        const size_t count = values.shape(1);
        const bool weighted = weights.shape(1) != 0;
        require_shape(values, 1, count, "the values are one row");
        require_shape(weights, 1, weighted ? count : 0, "a value has one weight");
        require_shape(out, size_t(1) << 19, 2, "there are 2^19 bins of two sums");
        run(&Palettes::palette_histogram, values.data(), weighted ? weights.data() : nullptr, count, out.data());
    }, "values", "weights", "out");

    define(module, "palette_cuts", +[](Doubles mass, Doubles moment, DoublesOut best, Matrix<int32_t> out) {
        const size_t width = mass.shape(1), clusters = out.shape(0);
        require_shape(mass, 1, width);
        require_shape(moment, 1, width);
        require_shape(best, 2, width);
        require_shape(out, clusters, width);
        require(clusters >= 1 && width > clusters && width <= size_t(1) << 31, "there are more points than clusters, below 2^31");
        run(&Palettes::palette_cuts, mass.data(), moment.data(), width - 1, best.data(), out.data(), clusters);
    }, "mass", "moment", "best", "out");

    define(module, "palette_centres", +[](Floats values, Floats weights, Matrix<uint64_t> order, DoublesOut workspace,
                                          Matrix<int32_t> cuts, DoublesOut out) {
        const size_t tables = values.shape(0), count = values.shape(1), clusters = out.shape(1);
        const bool weighted = weights.shape(0) != 0;
        require_shape(weights, weighted ? tables : 0, count);
        require_shape(order, 2, count);
        require_shape(workspace, 6, count + 1);
        require_shape(cuts, clusters, count + 1);
        require_shape(out, tables, clusters);
        require(clusters >= 1 && count < size_t(1) << 31, "there are clusters, and points below 2^31");
        run(&Palettes::palette_centres, values.data(), weighted ? weights.data() : nullptr, tables, count, order.data(),
            workspace.data(), cuts.data(), clusters, out.data());
    }, "values", "weights", "order", "workspace", "cuts", "out");
}

}  // namespace flyweight
