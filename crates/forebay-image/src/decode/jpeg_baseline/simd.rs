//! The same code compiled twice: for any processor, and for those with AVX2 and BMI2, chosen at run time.
#![allow(unsafe_code)] // calling functions compiled for features, after checking for them

use super::Declined;
use super::entropy::Entropy;
use super::header::{Header, Tables, Window};
use super::region::{self, Planes};
use super::rows;
use crate::decode::{Canvas, Region};

#[cfg(target_arch = "x86_64")]
fn modern() -> bool {
    is_x86_feature_detected!("avx2")
        && is_x86_feature_detected!("bmi1")
        && is_x86_feature_detected!("bmi2")
        && is_x86_feature_detected!("lzcnt")
}

/// [`region::read`].
pub(super) fn read(
    tables: &Tables,
    entropy: &Entropy,
    header: &Header,
    window: &Window,
    planes: &mut Planes,
) -> Result<(), Declined> {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
        fn modern_read(
            t: &Tables,
            e: &Entropy,
            h: &Header,
            w: &Window,
            p: &mut Planes,
        ) -> Result<(), Declined> {
            region::read(t, e, h, w, p)
        }
        if modern() {
            // SAFETY: the features were just found.
            return unsafe { modern_read(tables, entropy, header, window, planes) };
        }
    }
    region::read(tables, entropy, header, window, planes)
}

/// [`rows::write`].
pub(super) fn write(
    header: &Header,
    window: &Window,
    region: &Region,
    planes: &Planes,
    scratch: &mut rows::Scratch,
    canvas: &mut Canvas,
) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt")]
        fn modern_write(
            h: &Header,
            w: &Window,
            r: &Region,
            p: &Planes,
            s: &mut rows::Scratch,
            c: &mut Canvas,
        ) {
            rows::write(h, w, r, p, s, c);
        }
        if modern() {
            // SAFETY: the features were just found.
            return unsafe { modern_write(header, window, region, planes, scratch, canvas) };
        }
    }
    rows::write(header, window, region, planes, scratch, canvas);
}
