#include "astc.hpp"

#include <cstring>

#include "astc_tables.hpp"

namespace flyweight {
namespace {

using Word = unsigned __int128;

uint32_t field(Word block, size_t at, size_t count) { return uint32_t(block >> at) & ((1u << count) - 1); }

Word lowest(Word block, size_t count) { return block & ((Word(1) << count) - 1); }

uint64_t reversed(uint64_t word) {
    constexpr uint64_t masks[] = {0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F};
    for (int step = 0; step < 3; ++step) word = (word >> (1 << step) & masks[step]) | (word & masks[step]) << (1 << step);
    return __builtin_bswap64(word);
}

// Integers that share digits: how many bits of these follow each, and the digits that the bits stand for. Without digits any
// number is a group; eight of eight bits fill a window.
template <int Base>
struct Group;
template <>
struct Group<1> {
    static constexpr uint8_t widths[8] = {};
    static const uint8_t* digits(size_t) { return widths; }
};
template <>
struct Group<3> {
    static constexpr uint8_t widths[5] = {2, 2, 1, 2, 1};
    static const uint8_t* digits(size_t packed) { return tables().trits[packed]; }
};
template <>
struct Group<5> {
    static constexpr uint8_t widths[3] = {3, 2, 2};
    static const uint8_t* digits(size_t packed) { return tables().quints[packed]; }
};

template <int Base>
void integers(Word stream, size_t bits, size_t count, const uint8_t* wide, uint8_t* out) {
    using Shared = Group<Base>;
    constexpr size_t group = sizeof Shared::widths;
    const size_t span = Range{Base, uint8_t(bits)}.size(group);
    const uint64_t mask = (uint64_t(1) << bits) - 1;
    for (size_t start = 0; start < count; start += group, stream >>= span) {
        uint64_t window = uint64_t(stream);
        uint8_t low[group];
        size_t packed = 0, at = 0;
        for (size_t i = 0; i < group; ++i) {
            low[i] = uint8_t(window & mask);
            window >>= bits;
            packed |= (window & ((1u << Shared::widths[i]) - 1)) << at;
            window >>= Shared::widths[i];
            at += Shared::widths[i];
        }
        const uint8_t* digits = Shared::digits(packed);
        for (size_t i = 0; i < group; ++i) out[start + i] = wide[size_t(digits[i]) << bits | low[i]];
    }
}

// `count` integers, widened; as many as a whole group has are written.
void integers(Word stream, Range range, size_t count, const uint8_t* wide, uint8_t* out) {
    stream = lowest(stream, range.size(count));
    if (range.base == 1) return integers<1>(stream, range.bits, count, wide, out);
    if (range.base == 3) return integers<3>(stream, range.bits, count, wide, out);
    integers<5>(stream, range.bits, count, wide, out);
}

struct Ends {
    int low, high;
};

int clamped(int colour) { return colour < 0 ? 0 : colour > 255 ? 255 : colour; }

// A bit of the offset goes to the base; the rest is signed.
struct Offset {
    int base, by;

    Offset(int first, int second) : base(first >> 1 | (second & 0x80)), by(((second >> 1 & 0x3F) ^ 0x20) - 0x20) {}
};

Ends red_ends(uint32_t cem, const uint8_t* v) {
    switch (cem) {
    case 1: {
        const int base = v[0] >> 2 | (v[1] & 0xC0);
        return {base, clamped(base + (v[1] & 0x3F))};
    }
    case 5: {
        const Offset red(v[0], v[1]);
        return {red.base, clamped(red.base + red.by)};
    }
    case 6:
    case 10:
        return {v[0] * v[3] >> 8, v[0]};
    case 8:
    case 12:
        if (v[1] + v[3] + v[5] < v[0] + v[2] + v[4]) return {(v[1] + v[5]) >> 1, (v[0] + v[4]) >> 1};
        return {v[0], v[1]};
    case 9:
    case 13: {
        const Offset red(v[0], v[1]), green(v[2], v[3]), blue(v[4], v[5]);
        if (red.by + green.by + blue.by < 0)
            return {clamped((red.base + red.by + blue.base + blue.by) >> 1), clamped((red.base + blue.base) >> 1)};
        return {red.base, clamped(red.base + red.by)};
    }
    default:
        return {v[0], v[1]};
    }
}

uint32_t hash(uint32_t seed) {
    seed ^= seed >> 15;
    seed -= seed << 17;
    seed += seed << 7;
    seed += seed << 4;
    seed ^= seed >> 5;
    seed += seed << 16;
    seed ^= seed >> 7;
    seed ^= seed >> 3;
    seed ^= seed << 6;
    return seed ^ seed >> 17;
}

class Footprint {
public:
    Footprint(size_t width, size_t height) : width_(width), height_(height) {}

    size_t size() const { return width_ * height_; }

    // The red texels of a block, UNORM16; false if it is illegal.
    bool texels(Word block, uint16_t* to) const {
        const uint32_t number = field(block, 0, 11);
        if ((number & 0x1FF) == 0x1FC) return one_colour(block, to);
        const Mode mode = tables().modes[number];
        const size_t parts = field(block, 11, 2) + 1;
        if (!mode.legal || mode.width > width_ || mode.height > height_ || (mode.planes == 2 && parts == 4)) return false;

        const uint32_t selector = parts > 1 ? field(block, 23, 2) : 0;
        const size_t extra = selector ? 3 * parts - 4 : 0, start = parts > 1 ? 29 : 17;
        const size_t under = 128 - mode.weight_bits - extra;
        uint32_t cem[4];
        size_t count = 0;
        const uint32_t mixed = field(block, 25, 4) | field(block, under, extra) << 4;
        for (size_t part = 0; part < parts; ++part) {
            if (selector)
                cem[part] = 4 * (selector - 1 + (mixed >> part & 1)) + (mixed >> (parts + 2 * part) & 3);
            else
                cem[part] = field(block, parts > 1 ? 25 : 13, 4);
            if (hdr_modes >> cem[part] & 1) return false;
            count += (cem[part] / 4 + 1) * 2;
        }
        const size_t taken = start + 2 * (mode.planes - 1u);
        if (count > most_colours || under < taken) return false;
        const int range = tables().colour_range[count][under - taken];
        if (range < 0) return false;

        uint8_t colours[most_colours + 8];
        integers(block >> start, colour_ranges[range], count, tables().colours[range], colours);
        Ends ends[4];
        const uint8_t* of_part = colours;
        for (size_t part = 0; part < parts; ++part) {
            ends[part] = red_ends(cem[part], of_part);
            of_part += (cem[part] / 4 + 1) * 2;
        }

        uint8_t weights[widest * widest + lanes];
        const bool second = mode.planes == 2 && field(block, under - 2, 2) == 0;
        infill(block, mode, second, weights);
        if (parts == 1) {
            for (size_t at = 0; at < size(); ++at) to[at] = between(ends[0].low, ends[0].high, weights[at]);
            return true;
        }
        uint8_t owner[widest * widest] = {};
        owners(field(block, 13, 10), parts, owner);
        for (size_t at = 0; at < size(); ++at) to[at] = between(ends[owner[at]].low, ends[owner[at]].high, weights[at]);
        return true;
    }

private:
    static constexpr uint32_t hdr_modes = 1 << 2 | 1 << 3 | 1 << 7 | 1 << 11 | 1 << 14 | 1 << 15;

    bool one_colour(Word block, uint16_t* to) const {
        if (field(block, 9, 3) != 0b110) return false;
        const bool everywhere = (uint64_t(block) >> 12) == (uint64_t(1) << 52) - 1;
        const bool ordered = field(block, 12, 13) < field(block, 25, 13) && field(block, 38, 13) < field(block, 51, 13);
        if (!everywhere && !ordered) return false;
        for (size_t at = 0; at < size(); ++at) to[at] = uint16_t(field(block, 64, 16));
        return true;
    }

    static uint16_t between(int low, int high, int weight) {
        const auto mixed = uint16_t(low * (64 - weight) + high * weight);  // fits 16 bits, which lanes multiply best
        return uint16_t((uint32_t(mixed) * 257 + 32) >> 6);
    }

    // The weight at every texel, between those of the grid; behind the last `to` has space for a row of `lanes`.
    void infill(Word block, Mode mode, bool second, uint8_t* to) const {
        // Zeros behind the grid: a neighbour beyond it counts nothing.
        uint8_t stored[most_weights + 8 + 2 * (widest + 2)] = {};
        const size_t grid = mode.width, count = grid * mode.height;
        const Word stream = Word(reversed(uint64_t(block))) << 64 | reversed(uint64_t(block >> 64));
        integers(stream, weight_ranges[mode.range], count * mode.planes, tables().weights[mode.range], stored);
        if (mode.planes == 2)
            for (size_t at = 0; at < count; ++at) stored[at] = stored[2 * at + second];
        if (grid == width_ && mode.height == height_) {
            std::memcpy(to, stored, count);
            return;
        }
        // The weights left and right of each texel along a row of the grid, then such rows mixed: the mixing has no gathers.
        const Places &across = tables().places[width_][grid], &down = tables().places[height_][mode.height];
        uint8_t left[widest + 1][lanes] = {}, right[widest + 1][lanes] = {};
        for (size_t row = 0; row < mode.height; ++row)
            for (size_t x = 0; x < width_; ++x) {
                left[row][x] = stored[row * grid + across.cell[x]];
                right[row][x] = stored[row * grid + across.cell[x] + 1];
            }
        for (size_t y = 0; y < height_; ++y, to += width_) {  // each row runs on into the next, which comes later
            const size_t row = down.cell[y];
            const uint16_t fy = down.part[y];
            for (size_t x = 0; x < lanes; ++x) {
                const uint16_t fx = across.part[x], both = uint16_t(fx * fy + 8) >> 4;
                const auto upper = uint16_t(left[row][x] * (16 - fx - fy + both) + right[row][x] * (fx - both));
                const auto lower = uint16_t(left[row + 1][x] * (fy - both) + right[row + 1][x] * both);
                to[x] = uint8_t(uint16_t(upper + lower + 8) >> 4);
            }
        }
    }

    // Every partition is a tilted plane over the block; a texel belongs to the highest, the first of equals.
    void owners(uint32_t pattern, size_t parts, uint8_t* to) const {
        const uint32_t seed = pattern + uint32_t(parts - 1) * 1024, mixed = hash(seed);
        const uint32_t steep = seed & 2 ? 4 : 5, flat = parts == 3 ? 6 : 5;
        const uint32_t shift_x = seed & 1 ? steep : flat, shift_y = seed & 1 ? flat : steep;
        const uint32_t doubled = size() < 31 ? 2 : 1;
        uint8_t highest[widest * widest] = {};
        for (size_t part = 0; part < parts; ++part) {
            const uint32_t to_x = mixed >> 8 * part & 15, to_y = mixed >> (8 * part + 4) & 15;
            const auto slope_x = uint8_t((to_x * to_x >> shift_x) * doubled);
            const auto slope_y = uint8_t((to_y * to_y >> shift_y) * doubled);
            auto left = uint8_t(mixed >> (14 - 4 * part));
            for (size_t at = 0; at < size(); left = uint8_t(left + slope_y)) {
                uint8_t height = left;
                for (size_t x = 0; x < width_; ++x, ++at, height = uint8_t(height + slope_x)) {
                    const bool higher = (height & 63) > highest[at];
                    highest[at] = higher ? height & 63 : highest[at];
                    to[at] = higher ? uint8_t(part) : to[at];
                }
            }
        }
    }

    size_t width_, height_;
};

}  // namespace

void astc_decode(const uint8_t* blocks, size_t width, size_t height, float scale, float zero, Image out, uint8_t* illegal) {
    const Footprint footprint(width, height);
    for (size_t top = 0; top < out.rows; top += height)
        for (size_t left = 0; left < out.columns; left += width, blocks += 16) {
            uint64_t halves[2];
            std::memcpy(halves, blocks, sizeof halves);
            uint16_t texels[widest * widest];
            float values[widest * widest];
            *illegal = !footprint.texels(Word(halves[1]) << 64 | halves[0], texels);
            if (*illegal++) std::memset(texels, 0, sizeof texels);
            for (size_t at = 0; at < footprint.size(); ++at) values[at] = zero + scale * (float(texels[at]) / 65535.0f);
            const size_t down = out.rows - top < height ? out.rows - top : height;
            const size_t across = out.columns - left < width ? out.columns - left : width;
            for (size_t y = 0; y < down; ++y)
                std::memcpy(out.values + (top + y) * out.columns + left, values + y * width, across * sizeof(float));
        }
}

}  // namespace flyweight
