// exp and tanh of eight floats.
#pragma once

#include "simd/lanes8.hpp"

namespace {

using I32x8 = int32_t __attribute__((vector_size(32)));

// e^z for |z| ≤ 87, NaN for NaN: 2^n · e^r, |r| ≤ ln 2 / 2. Of e^r = 1 + r + r²·p(r), p has degree 4 and is fitted at Chebyshev's nodes: that is
// good to 2^-26, and with the roundings the result is within 2 units in the last place.
inline F8 exp8(F8 z) {
    const F8 magic = all8(0x1.8p23f), shifted = fused(z, all8(0x1.715476p0f), magic), n = shifted - magic;
    F8 r = fused(n, all8(-0x1.62e4p-1f), z);
    r = fused(n, all8(-0x1.7f7d1cp-20f), r);
    F8 p = all8(0x1.6d4328p-10f);
    p = fused(p, r, all8(0x1.120b74p-7f));
    p = fused(p, r, all8(0x1.5554eap-5f));
    p = fused(p, r, all8(0x1.5554dcp-3f));
    p = fused(p, r, all8(0.5f));
    using Words = uint32_t __attribute__((vector_size(32)));  // unsigned: the payload of a NaN may carry
    const F8 scaled = F8((Words(shifted) << 23) + 0x3f800000);  // the low bits of `shifted` are n
    return fused(fused(p, r * r, r), scaled, scaled);
}

// e^x for x ≤ 0: 0 below −87, NaN for NaN.
inline F8 decay8(F8 x) {
    const F8 lowest = all8(-87.0f);
    const F8 clamped = F8(greatest(Eight(lowest), Eight(x)));  // NaN stays
    return F8(I32x8(exp8(clamped)) & ~I32x8(x < lowest));
}

// tanh within 6 units in the last place: x + x³·Q(x²) near zero, else (1 − e^−2|x|) / (1 + e^−2|x|).
inline F8 tanh8(F8 x) {
    const I32x8 sign = I32x8(x) & int32_t(0x80000000);
    const F8 a = F8(I32x8(x) ^ sign), e = decay8(all8(-2.0f) * a), square = a * a;
    F8 q = all8(-0x1.b1eeaep-8f);
    q = fused(q, square, all8(0x1.5d3e28p-6f));
    q = fused(q, square, all8(-0x1.b9a2eep-5f));
    q = fused(q, square, all8(0x1.110ff4p-3f));
    q = fused(q, square, all8(-0x1.555554p-2f));
    const F8 near = fused(q * square, a, a), far = (all8(1.0f) - e) / (all8(1.0f) + e);
    const I32x8 small = I32x8(a < all8(0.55f));
    return F8((I32x8(near) & small | I32x8(far) & ~small) | sign);
}

}  // namespace
