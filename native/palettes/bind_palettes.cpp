// The bindings of palettes.
#include "binding.hpp"
#include "palettes/palettes.hpp"
#include "parallel.hpp"

namespace flyweight {
namespace {

void require_table(size_t entries) {
    require(entries >= 2 && entries <= 256 && !(entries & (entries - 1)), "a table has 2 to 256 entries, a power of two");
}

// Element i of `count` has table i % cycle / run; there are none that lack one.
void require_tables(size_t count, size_t run, size_t cycle, size_t tables) {
    require(!count || (run >= 1 && cycle >= 1 && divided_up(cycle, run) <= tables), "elements without a table");
}

constexpr size_t chunk = size_t(1) << 14;  // CLUSTER_CHUNK of kernels/palettes/clusters.py

struct Clusters {
    const float *points, *weights;
    size_t count, vector;
    const float* table;
    size_t entries;
    uint8_t* codes;
    double* sums;
};

struct Centres {
    const float *values, *weights;
    size_t count;
    uint64_t* order;
    double* workspace;
    int32_t* cuts;
    size_t clusters;
    double* out;
};

void require_points(const Floats& points, const Floats& table, size_t threads) {
    const size_t vector = points.shape(1);
    require(vector >= 1 && vector <= 16 && table.shape(1) == vector, "points and entries have the same 1 to 16 coordinates");
    require(table.shape(0) >= 1 && table.shape(0) <= 256, "a table of vectors has 1 to 256 entries");
    require(threads >= 1 && threads <= 256, "threads must be 1 to 256");
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

    define(module, "palette_nearest_vector", +[](Floats points, Floats table, size_t threads, BytesOut out) {
        require_points(points, table, threads);
        require_shape(out, points.shape(0), 1, "a point has one code");
        const Clusters all{points.data(), nullptr, points.shape(0), points.shape(1), table.data(), table.shape(0), out.data(), nullptr};
        const nb::gil_scoped_release release;
        over_rows(all.count, chunk, unsigned(threads), [](const void* what, size_t first, size_t last, unsigned) noexcept {
            const Clusters& own = *static_cast<const Clusters*>(what);
            active<Palettes>().palette_nearest_vector(own.points + first * own.vector, last - first, own.vector, own.table, own.entries,
                                                      own.codes + first);
        }, &all);
    }, "points", "table", "threads", "out");

    define(module, "palette_cluster_sums", +[](Floats points, Floats weights, Floats table, size_t threads, DoublesOut out) {
        require_points(points, table, threads);
        const size_t count = points.shape(0), blocks = divided_up(count, chunk);
        const bool weighted = weights.shape(1) != 0;
        require_shape(weights, 1, weighted ? count : 0, "a point has one weight");
        require_shape(out, blocks * table.shape(0), points.shape(1) + 2, "a block of sums belongs to each chunk of points");
        const Clusters all{points.data(), weighted ? weights.data() : nullptr, count, points.shape(1), table.data(), table.shape(0),
                           nullptr, out.data()};
        const nb::gil_scoped_release release;
        over_rows(blocks, 1, unsigned(threads), [](const void* what, size_t first, size_t last, unsigned) noexcept {
            const Clusters& own = *static_cast<const Clusters*>(what);
            for (size_t block = first; block < last; ++block) {
                const size_t start = block * chunk;
                active<Palettes>().palette_cluster_sums(
                    own.points + start * own.vector, own.weights ? own.weights + start : nullptr,
                    own.count - start < chunk ? own.count - start : chunk, own.vector, own.table, own.entries,
                    own.sums + block * own.entries * (own.vector + 2));
            }
        }, &all);
    }, "points", "weights", "table", "threads", "out");

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
        const size_t tables = values.shape(0), count = values.shape(1), clusters = out.shape(1), threads = order.shape(0);
        const bool weighted = weights.shape(0) != 0;
        require(clusters >= 1 && clusters <= 256 && count < size_t(1) << 31, "there are clusters, and points below 2^31");
        require(threads >= 1 && threads <= 256, "threads must be 1 to 256");
        require_shape(weights, weighted ? tables : 0, count);
        require_shape(order, threads, 2 * count);
        require_shape(workspace, threads, 6 * (count + 1));
        require_shape(cuts, threads, clusters * (count + 1));
        require_shape(out, tables, clusters);
        const Centres all{values.data(), weighted ? weights.data() : nullptr, count, order.data(), workspace.data(), cuts.data(),
                          clusters, out.data()};
        const nb::gil_scoped_release release;
        over_rows(tables, 1, unsigned(threads), [](const void* what, size_t first, size_t last, unsigned worker) noexcept {
            const Centres& own = *static_cast<const Centres*>(what);
            active<Palettes>().palette_centres(
                own.values + first * own.count, own.weights ? own.weights + first * own.count : nullptr, last - first, own.count,
                own.order + worker * 2 * own.count, own.workspace + worker * 6 * (own.count + 1),
                own.cuts + worker * own.clusters * (own.count + 1), own.clusters, own.out + first * own.clusters);
        }, &all);
    }, "values", "weights", "order", "workspace", "cuts", "out");
}

}  // namespace flyweight
