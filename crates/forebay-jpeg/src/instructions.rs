//! Instructions that a measurement leaves out.

use std::sync::OnceLock;

/// Returns whether code for AVX-512 may run: not if `FOREBAY_SIMD` is `avx2`, with which one processor shows how fast those without
/// AVX-512 are. The pixels are the same.
pub fn may_use_avx512() -> bool {
    static MAY: OnceLock<bool> = OnceLock::new();
    *MAY.get_or_init(|| std::env::var_os("FOREBAY_SIMD").is_none_or(|most| most != "avx2"))
}
