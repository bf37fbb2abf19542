// 32 codes of a little stream (streams/bits.hpp), one to a byte: element j is the Bits bits from bit j·Bits up.
#pragma once

#include "streams/bits.hpp"

namespace {

#ifdef __AVX2__

// The bytes that hold a code are moved to a word of its own, even codes apart from odd ones, and multiplied until the code is where it
// is wanted: uppermost, and then down, or from bit 8 up. Each half of a register takes sixteen codes out of sixteen bytes.
template <int Bits>
struct StreamOf32 {
    static constexpr int nbytes = 4 * Bits, second = nbytes > 16 ? nbytes - 16 : 0;  // where the bytes of the second half begin
    alignas(32) uint8_t from[2][32];
    alignas(32) uint16_t times[2][16];

    constexpr StreamOf32() : from(), times() {
        for (int code = 0; code < 32; ++code) {
            const int odd = code % 2, word = code / 2, bit = code * Bits % 8, byte = code * Bits / 8 - (code < 16 ? 0 : second);
            from[odd][2 * word] = uint8_t(byte);
            from[odd][2 * word + 1] = uint8_t(byte + 1 < nbytes - second ? byte + 1 : byte);
            times[odd][word] = uint16_t(1 << (odd ? 8 - bit : 16 - Bits - bit));
        }
    }

    static __m256i loaded(const uint8_t* at) {
        if constexpr (nbytes > 16) return _mm256_loadu2_m128i(reinterpret_cast<const __m128i*>(at + second), reinterpret_cast<const __m128i*>(at));
        return _mm256_broadcastsi128_si256(__m128i(U64x2{load_as<uint64_t>(at), load_bytes(at + 8, nbytes - 8)}));
    }

    I8x32 operator()(const uint8_t* at) const {
        const __m256i bytes = loaded(at);
        const auto moved = [&](int odd) {
            const __m256i words = _mm256_shuffle_epi8(bytes, _mm256_load_si256(reinterpret_cast<const __m256i*>(from[odd])));
            return _mm256_mullo_epi16(words, _mm256_load_si256(reinterpret_cast<const __m256i*>(times[odd])));
        };
        const __m256i mask = _mm256_set1_epi16(((1 << Bits) - 1) << 8);
        return I8x32(_mm256_or_si256(_mm256_srli_epi16(moved(0), 16 - Bits), _mm256_and_si256(moved(1), mask)));
    }
};

template <int Bits>
constexpr StreamOf32<Bits> stream_of_32;

template <int Bits>
inline I8x32 stream_codes(const uint8_t* at) { return stream_of_32<Bits>(at); }

#else

template <int Bits>
inline I8x32 stream_codes(const uint8_t* at) {
    U64x4 codes;
    for (int i = 0; i < 4; ++i) codes[i] = Lanes<Bits>::spread(load_bytes(at + i * Bits, Bits));
    return I8x32(codes);
}

#endif

}  // namespace
