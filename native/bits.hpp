// Little-endian bit streams: element j is the `Bits` bits from bit j·Bits up.
//
// Eight codes fill exactly Bits bytes. They are spread from the low 8·Bits bits of a word to its
// eight bytes (or gathered back) in three steps, halving the distance each time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace {

template <int Bits>
struct Lanes {
    static constexpr uint64_t low(int bits) { return bits == 64 ? ~uint64_t(0) : (uint64_t(1) << bits) - 1; }
    static constexpr uint64_t in32 = low(4 * Bits);                              // four codes
    static constexpr uint64_t in16 = low(2 * Bits) * 0x0000000100000001u;        // two codes of each half
    static constexpr uint64_t in8 = low(Bits) * 0x0001000100010001u;             // the even codes
    static constexpr uint64_t all = low(Bits) * 0x0101010101010101u;             // every code, a byte each

    static uint64_t spread(uint64_t x) {
        x = (x & in32) | (x >> 4 * Bits & in32) << 32;
        x = (x & in16) | (x >> 2 * Bits & in16) << 16;
        return (x & in8) | (x >> Bits & in8) << 8;
    }

    static uint64_t gather(uint64_t x) {
        x &= all;
        x = (x & in8) | (x >> 8 & in8) << Bits;
        x = (x & in16) | (x >> 16 & in16) << 2 * Bits;
        return (x & in32) | (x >> 32 & in32) << 4 * Bits;
    }
};

inline uint64_t load_bytes(const uint8_t* at, size_t count) {
    uint64_t word = 0;
    for (size_t i = 0; i < count; ++i) word |= uint64_t(at[i]) << 8 * i;
    return word;
}

inline void store_bytes(uint8_t* at, size_t count, uint64_t word) {
    for (size_t i = 0; i < count; ++i) at[i] = uint8_t(word >> 8 * i);
}

// Eight codes from Bits bytes.
template <int Bits>
inline void unpack8(const uint8_t* packed, uint8_t* codes) {
    store_bytes(codes, 8, Lanes<Bits>::spread(load_bytes(packed, Bits)));
}

template <int Bits>
void unpack_rows(const uint8_t* __restrict packed, size_t rows, size_t nbytes, uint8_t* __restrict out, size_t count) {
    const size_t whole = count / 8, rest = count % 8;
    for (size_t row = 0; row < rows; ++row, packed += nbytes, out += count) {
        for (size_t i = 0; i < whole; ++i) unpack8<Bits>(packed + i * Bits, out + i * 8);
        if (rest) store_bytes(out + whole * 8, rest, Lanes<Bits>::spread(load_bytes(packed + whole * Bits, (rest * Bits + 7) / 8)));
    }
}

template <int Bits>
void pack_rows(const uint8_t* __restrict codes, size_t rows, size_t count, uint8_t* __restrict out, size_t nbytes) {
    const size_t whole = count / 8, rest = count % 8;
    const size_t used = (count * Bits + 7) / 8;
    for (size_t row = 0; row < rows; ++row, codes += count, out += nbytes) {
        for (size_t i = 0; i < whole; ++i) store_bytes(out + i * Bits, Bits, Lanes<Bits>::gather(load_bytes(codes + i * 8, 8)));
        if (rest) store_bytes(out + whole * Bits, used - whole * Bits, Lanes<Bits>::gather(load_bytes(codes + whole * 8, rest)));
        for (size_t i = used; i < nbytes; ++i) out[i] = 0;
    }
}

void unpack_bits(const uint8_t* packed, size_t rows, size_t nbytes, int bits, uint8_t* out, size_t count) {
    switch (bits) {
        case 1: return unpack_rows<1>(packed, rows, nbytes, out, count);
        case 2: return unpack_rows<2>(packed, rows, nbytes, out, count);
        case 3: return unpack_rows<3>(packed, rows, nbytes, out, count);
        case 4: return unpack_rows<4>(packed, rows, nbytes, out, count);
        case 5: return unpack_rows<5>(packed, rows, nbytes, out, count);
        case 6: return unpack_rows<6>(packed, rows, nbytes, out, count);
        case 7: return unpack_rows<7>(packed, rows, nbytes, out, count);
        default: return unpack_rows<8>(packed, rows, nbytes, out, count);
    }
}

void pack_bits(const uint8_t* codes, size_t rows, size_t count, int bits, uint8_t* out, size_t nbytes) {
    switch (bits) {
        case 1: return pack_rows<1>(codes, rows, count, out, nbytes);
        case 2: return pack_rows<2>(codes, rows, count, out, nbytes);
        case 3: return pack_rows<3>(codes, rows, count, out, nbytes);
        case 4: return pack_rows<4>(codes, rows, count, out, nbytes);
        case 5: return pack_rows<5>(codes, rows, count, out, nbytes);
        case 6: return pack_rows<6>(codes, rows, count, out, nbytes);
        case 7: return pack_rows<7>(codes, rows, count, out, nbytes);
        default: return pack_rows<8>(codes, rows, count, out, nbytes);
    }
}

}  // namespace
