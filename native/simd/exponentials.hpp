// exp and tanh of eight floats.
#pragma once

#include "simd/lanes8.hpp"

namespace {


// e^z for |z| ≤ 87, NaN for NaN: 2^n · e^r, |r| ≤ ln 2 / 2. Of e^r = 1 + r + r²·p(r), p has degree 4 and is fitted at Chebyshev's nodes: that is
// good to 2^-26, and with the roundings the result is within 2 units in the last place.
inline F32x8 exp8(F32x8 z) {
    const F32x8 magic = all8(0x1.8p23f), shifted = fused(z, all8(0x1.715476p0f), magic), n = shifted - magic;
    F32x8 r = fused(n, all8(-0x1.62e4p-1f), z);
    r = fused(n, all8(-0x1.7f7d1cp-20f), r);
    F32x8 p = all8(0x1.6d4328p-10f);
    p = fused(p, r, all8(0x1.120b74p-7f));
    p = fused(p, r, all8(0x1.5554eap-5f));
    p = fused(p, r, all8(0x1.5554dcp-3f));
    p = fused(p, r, all8(0.5f));
    // The low bits of `shifted` are n. Unsigned: the payload of a NaN may carry.
    const F32x8 scaled = F32x8((U32x8(shifted) << 23) + 0x3f800000);
    return fused(fused(p, r * r, r), scaled, scaled);
}

// e^x for x ≤ 0: 0 below −87, NaN for NaN.
inline F32x8 decay8(F32x8 x) {
    const F32x8 lowest = all8(-87.0f);
    const F32x8 clamped = greatest(lowest, x);  // NaN stays
    return F32x8(I32x8(exp8(clamped)) & ~I32x8(x < lowest));
}

// tanh within 6 units in the last place: x + x³·Q(x²) near zero, else (1 − e^−2|x|) / (1 + e^−2|x|).
inline F32x8 tanh8(F32x8 x) {
    const I32x8 sign = I32x8(x) & int32_t(0x80000000);
    const F32x8 a = F32x8(I32x8(x) ^ sign), e = decay8(all8(-2.0f) * a), square = a * a;
    F32x8 q = all8(-0x1.b1eeaep-8f);
    q = fused(q, square, all8(0x1.5d3e28p-6f));
    q = fused(q, square, all8(-0x1.b9a2eep-5f));
    q = fused(q, square, all8(0x1.110ff4p-3f));
    q = fused(q, square, all8(-0x1.555554p-2f));
    const F32x8 near = fused(q * square, a, a), far = (all8(1.0f) - e) / (all8(1.0f) + e);
    const I32x8 small = I32x8(a < all8(0.55f));
    return F32x8((I32x8(near) & small | I32x8(far) & ~small) | sign);
}

}  // namespace
