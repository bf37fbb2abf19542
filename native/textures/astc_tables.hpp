// The tables of an ASTC decoder, computed when first asked for.
#pragma once

#include <cstddef>
#include <cstdint>

namespace {

constexpr size_t most_weights = 64, least_weight_bits = 24, most_weight_bits = 96, most_colours = 18, widest = 12, lanes = 16;

// Integers of digit · 2^bits + low bits, with a digit to the base 1 (none), 3 or 5.
struct Range {
    uint8_t base, bits;

    constexpr size_t size(size_t count) const {  // in bits
        return (base == 3 ? (8 * count + 4) / 5 : base == 5 ? (7 * count + 2) / 3 : 0) + bits * count;
    }
};

constexpr Range weight_ranges[] = {{1, 1}, {3, 0}, {1, 2}, {5, 0}, {3, 1}, {1, 3},
                                   {5, 1}, {3, 2}, {1, 4}, {5, 2}, {3, 3}, {1, 5}};
constexpr Range colour_ranges[] = {{3, 1}, {1, 3}, {5, 1}, {3, 2}, {1, 4}, {5, 2}, {3, 3}, {1, 5}, {5, 3},
                                   {3, 4}, {1, 6}, {5, 4}, {3, 5}, {1, 7}, {5, 5}, {3, 6}, {1, 8}};

// How an integer with a digit is widened: where its bits go, and what the digit counts. In the order of the ranges.
struct Spread {
    const char* pattern;
    int share;
};
constexpr Spread weight_spreads[] = {{"", 50}, {"", 28}, {"b000b0b", 23}, {"b0000b0", 13}, {"cb000cb", 11}};
constexpr Spread colour_spreads[] = {{"", 204},         {"", 113},         {"b000b0bb0", 93}, {"b0000bb00", 54},
                                     {"cb000cbcb", 44}, {"cb0000cbc", 26}, {"dcb000dcb", 22}, {"dcb0000dc", 13},
                                     {"edcb000ed", 11}, {"edcb0000e", 6},  {"fedcb000f", 5}};
constexpr uint8_t digit_alone[][5] = {{0, 32, 63}, {0, 16, 32, 47, 63}};

struct Pattern {
    const char* bits;  // 10 to 0
    uint8_t width, height;
};
constexpr Pattern patterns[] = {{"DPWWHHz00xy", 4, 2},  {"DPWWHHz01xy", 8, 2},  {"DPHHWWz10xy", 2, 8}, {"DP0HWWz11xy", 2, 6},
                                {"DP1WHHz11xy", 2, 2},  {"DP00HHzxy00", 12, 2}, {"DP01WWzxy00", 2, 12}, {"DP1100zxy00", 6, 10},
                                {"DP1101zxy00", 10, 6}, {"HH10WWzxy00", 6, 6}};

struct Mode {
    uint8_t width, height, range, planes, weight_bits;
    bool legal;
};

// Where the texels along a side lie in the grid: the cell, and how far in it, in sixteenths.
struct Places {
    uint8_t cell[lanes], part[lanes];
};

struct Tables {
    Mode modes[2048];
    uint8_t trits[256][5], quints[128][5];
    uint8_t weights[12][32], colours[17][256];
    int8_t colour_range[most_colours + 1][128];  // by integers and bits left; −1 where there is too little
    Places places[widest + 1][widest + 1] = {};  // by texels and grid

    Tables() {
        for (size_t mode = 0; mode < 2048; ++mode) modes[mode] = mode_of(mode);
        for (int packed = 0; packed < 256; ++packed) unpack_trits(packed, trits[packed]);
        for (int packed = 0; packed < 128; ++packed) unpack_quints(packed, quints[packed]);
        widen(weight_ranges, weight_spreads, 6, weights);
        widen(colour_ranges, colour_spreads, 8, colours);
        for (auto& range : weights)
            for (auto& weight : range) weight += weight > 32;
        for (size_t count = 0; count <= most_colours; ++count)
            for (size_t left = 0; left < 128; ++left) {
                colour_range[count][left] = -1;
                for (const Range& range : colour_ranges) colour_range[count][left] += range.size(count) <= left;
            }
        for (size_t texels = 2; texels <= widest; ++texels)
            for (size_t grid = 2; grid <= widest; ++grid)
                for (size_t at = 0; at < texels; ++at) {
                    const size_t sixteenths = ((1024 + texels / 2) / (texels - 1) * at * (grid - 1) + 32) >> 6;
                    places[texels][grid].cell[at] = uint8_t(sixteenths >> 4);
                    places[texels][grid].part[at] = sixteenths & 15;
                }
    }

private:
    static Mode mode_of(size_t mode) {
        for (const Pattern& pattern : patterns) {
            size_t field[128] = {};
            bool matches = true;
            for (size_t at = 0; at < 11; ++at) {
                const size_t letter = size_t(pattern.bits[at]), bit = mode >> (10 - at) & 1;
                matches &= letter == '0' ? bit == 0 : letter != '1' || bit == 1;
                field[letter] = field[letter] * 2 + bit;
            }
            if (!matches || field['x'] + field['y'] == 0) continue;
            const size_t width = pattern.width + field['W'], height = pattern.height + field['H'], planes = 1 + field['D'];
            const size_t range = field['x'] * 4 + field['y'] * 2 + field['z'] - 2 + 6 * field['P'];
            const size_t count = width * height * planes, size = weight_ranges[range].size(count);
            if (count > most_weights || size < least_weight_bits || size > most_weight_bits) break;
            return {uint8_t(width), uint8_t(height), uint8_t(range), uint8_t(planes), uint8_t(size), true};
        }
        return {};
    }

    static uint8_t below_three(int pair) { return uint8_t(pair & 2 ? 2 : pair); }

    static void unpack_trits(int t, uint8_t* to) {
        int c = t & 31;
        if ((t >> 2 & 7) == 7) {
            c = t >> 5 << 2 | (t & 3);
            to[3] = to[4] = 2;
        } else if ((t >> 5 & 3) == 3) {
            to[3] = uint8_t(t >> 7);
            to[4] = 2;
        } else {
            to[3] = uint8_t(t >> 5 & 3);
            to[4] = uint8_t(t >> 7);
        }
        if ((c & 3) == 3) {
            to[0] = below_three(c >> 2 & 3);
            to[1] = uint8_t(c >> 4);
            to[2] = 2;
        } else if ((c >> 2 & 3) == 3) {
            to[0] = uint8_t(c & 3);
            to[1] = to[2] = 2;
        } else {
            to[0] = below_three(c & 3);
            to[1] = uint8_t(c >> 2 & 3);
            to[2] = uint8_t(c >> 4);
        }
    }

    static void unpack_quints(int q, uint8_t* to) {
        const int middle = q >> 3 & 3, top = q >> 5 & 3;
        const bool marked = (q >> 1 & 3) == 3;
        if (marked && top == 0) {
            to[0] = to[1] = 4;
            to[2] = uint8_t(q & 1 ? 4 : middle);
            return;
        }
        const int c = marked ? middle << 3 | (~top & 3) << 1 | (q & 1) : q & 31;
        to[2] = uint8_t(marked ? 4 : top);
        to[1] = uint8_t((c & 7) == 5 ? 4 : c >> 3);
        to[0] = uint8_t((c & 7) == 5 ? c >> 3 : c & 7);
    }

    // Bits alone repeat from the top; with a digit they are spread, and its share added.
    template <size_t Ranges, size_t Spreads, size_t Most>
    static void widen(const Range (&ranges)[Ranges], const Spread (&spreads)[Spreads], int width, uint8_t (&to)[Ranges][Most]) {
        const Spread* spread = spreads;
        for (size_t index = 0; index < Ranges; ++index) {
            const auto [base, bits] = ranges[index];
            for (int value = 0; value < base << bits; ++value) {
                int wide = 0;
                if (base == 1) {
                    for (int at = width - bits; at > -bits; at -= bits) wide |= at >= 0 ? value << at : value >> -at;
                } else if (bits == 0) {
                    wide = digit_alone[base == 5][value];
                } else {
                    for (const char* letter = spread->pattern; *letter; ++letter)
                        wide = wide << 1 | (*letter == '0' ? 0 : value >> (*letter - 'a') & 1);
                    const int flip = value & 1 ? (4 << (width - 1)) - 1 : 0;
                    wide = (flip & 1 << (width - 1)) | (((value >> bits) * spread->share + wide) ^ flip) >> 2;
                }
                to[index][value] = uint8_t(wide);
            }
            spread += base > 1 && bits > 0;
        }
    }
};

inline const Tables& tables() {
    static const Tables computed;
    return computed;
}

}  // namespace
