//! Code that AVX2 and AVX-512 share, as macros: a function that is generic over the register type
//! cannot be compiled for the features that each type needs.
//!
//! A user of these macros imports the intrinsics of its width under their bare names (`add_epi16`
//! for `_mm256_add_epi16`).

/// The passes of the inverse cosine transform. The arithmetic equals that of
/// [`idct`](super::super::idct), step by step. Each 128-bit lane of a register holds a block.
///
/// `$Register` is the register type, `$Half` a register of half its width, `$Immediate` the type of
/// constants in its intrinsics; `halves` returns the first 64-bit halves of all lanes side by side,
/// and the second halves; `high_words` interleaves the high words of the integers of two registers.
macro_rules! passes {
    ($features:literal, $Register:ty, $Half:ty, $Immediate:ty) => {
        /// Rows or columns of blocks side by side.
        type Rows = [$Register; 8];

        /// Returns `x * a + y * b` for each pair `(x, y)` of neighbors.
        #[target_feature(enable = $features)]
        #[inline]
        fn dot(pairs: $Register, a: i16, b: i16) -> $Register {
            madd_epi16(pairs, set1_epi32(i32::from(b) << 16 | i32::from(a as u16)))
        }

        /// Returns `x << CONST_BITS` plus the rounding term, in half of the columns.
        #[target_feature(enable = $features)]
        #[inline]
        fn scale<const SHIFT: $Immediate>(
            x: $Register,
            pair: impl Fn($Register, $Register) -> $Register,
        ) -> $Register {
            /// The rounding term is the product of `ROUND` and `half`.
            const ROUND: i16 = 16;
            let half = (1i32 << (SHIFT - 1)) / i32::from(ROUND);
            dot(pair(x, set1_epi16(ROUND)), 1 << CONST_BITS, half as i16)
        }

        /// [`idct::pass`](super::idct) of half of the columns, before the right shift. `pair`
        /// interleaves these columns of two rows.
        ///
        /// Processes half of the columns at a time, because the sums of all columns do not fit into the registers.
        #[target_feature(enable = $features)]
        #[inline]
        fn half_pass<const SHIFT: $Immediate>(
            v: &Rows,
            pair: impl Fn($Register, $Register) -> $Register,
        ) -> Rows {
            let &[v0, v1, v2, v3, v4, v5, v6, v7] = v;
            let sum = scale::<SHIFT>(add_epi16(v0, v4), &pair);
            let difference = scale::<SHIFT>(sub_epi16(v0, v4), &pair);
            let v26 = pair(v2, v6);
            let even2 = dot(v26, C0_541, C0_541 - C1_847);
            let even3 = dot(v26, C0_541 + C0_765, C0_541);
            let even = [
                add_epi32(sum, even3),
                add_epi32(difference, even2),
                sub_epi32(difference, even2),
                sub_epi32(sum, even3),
            ];

            let z34 = pair(add_epi16(v7, v3), add_epi16(v5, v1));
            let s3 = dot(z34, C1_175 - C1_961, C1_175);
            let s4 = dot(z34, C1_175, C1_175 - C0_390);
            let (v71, v53) = (pair(v7, v1), pair(v5, v3));
            let odd = [
                add_epi32(dot(v71, -C0_899, C1_501 - C0_899), s4),
                add_epi32(dot(v53, -C2_562, C3_072 - C2_562), s3),
                add_epi32(dot(v53, C2_053 - C2_562, -C2_562), s4),
                add_epi32(dot(v71, C0_298 - C0_899, -C0_899), s3),
            ];

            sums_and_differences(even, odd)
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn sums_and_differences(even: [$Register; 4], odd: [$Register; 4]) -> Rows {
            [
                add_epi32(even[0], odd[0]),
                add_epi32(even[1], odd[1]),
                add_epi32(even[2], odd[2]),
                add_epi32(even[3], odd[3]),
                sub_epi32(even[3], odd[3]),
                sub_epi32(even[2], odd[2]),
                sub_epi32(even[1], odd[1]),
                sub_epi32(even[0], odd[0]),
            ]
        }

        /// [`half_pass`] where all but the first four values are zero, so the factors of each value are added up.
        #[target_feature(enable = $features)]
        #[inline]
        fn half_pass_of_four<const SHIFT: $Immediate>(
            &[v0, v1, v2, v3]: &[$Register; 4],
            pair: impl Fn($Register, $Register) -> $Register,
        ) -> Rows {
            let scaled = scale::<SHIFT>(v0, &pair);
            let v2 = pair(v2, zero());
            let even2 = dot(v2, C0_541, 0);
            let even3 = dot(v2, C0_541 + C0_765, 0);
            let even = [
                add_epi32(scaled, even3),
                add_epi32(scaled, even2),
                sub_epi32(scaled, even2),
                sub_epi32(scaled, even3),
            ];
            let v31 = pair(v3, v1);
            let odd = [
                dot(v31, C1_175, C1_501 - C0_899 + C1_175 - C0_390),
                dot(v31, C3_072 - C2_562 + C1_175 - C1_961, C1_175),
                dot(v31, C1_175 - C2_562, C1_175 - C0_390),
                dot(v31, C1_175 - C1_961, C1_175 - C0_899),
            ];
            sums_and_differences(even, odd)
        }

        /// The first pass: [`idct::pass`](super::idct) of all columns.
        #[target_feature(enable = $features)]
        #[inline]
        fn pass_columns(v: &Rows) -> Rows {
            const SHIFT: $Immediate = SHIFT_COLUMNS as $Immediate;
            let mut rows = half_pass::<SHIFT>(v, |x, y| unpacklo_epi16(x, y));
            let high = half_pass::<SHIFT>(v, |x, y| unpackhi_epi16(x, y));
            for (row, high) in rows.iter_mut().zip(high) {
                *row = packs_epi32(srai_epi32::<SHIFT>(*row), srai_epi32::<SHIFT>(high));
            }
            rows
        }

        /// The second pass: [`idct::pass`](super::idct) of all rows, which are transposed. The rows
        /// of the result are in the order 0, 4, 1, 5, 2, 6, 3, 7.
        #[target_feature(enable = $features)]
        #[inline]
        fn pass_rows(v: &Rows) -> Rows {
            const SHIFT: $Immediate = SHIFT_ROWS as $Immediate;
            let low = half_pass::<SHIFT>(v, |x, y| unpacklo_epi16(x, y));
            let high = half_pass::<SHIFT>(v, |x, y| unpackhi_epi16(x, y));
            shift_rows(low, high)
        }

        /// [`pass_rows`] where all but the first four columns are zero.
        #[target_feature(enable = $features)]
        #[inline]
        fn pass_rows_of_four(v: &[$Register; 4]) -> Rows {
            const SHIFT: $Immediate = SHIFT_ROWS as $Immediate;
            let low = half_pass_of_four::<SHIFT>(v, |x, y| unpacklo_epi16(x, y));
            let high = half_pass_of_four::<SHIFT>(v, |x, y| unpackhi_epi16(x, y));
            shift_rows(low, high)
        }

        #[target_feature(enable = $features)]
        #[inline]
        fn shift_rows(mut low: Rows, high: Rows) -> Rows {
            const SHIFT: $Immediate = SHIFT_ROWS as $Immediate;
            for (low, high) in low.iter_mut().zip(high) {
                // More than 16 bits are shifted out, so that nothing saturates.
                *low = srai_epi16::<{ SHIFT - 16 }>(high_words(*low, high));
            }
            low
        }

        /// Is not zero in blocks that [`left_columns`] cannot handle: those with coefficients in the last four
        /// columns, and those in which saturating and truncating in the first pass give different results. `all`
        /// is the bitwise OR of all rows, `first` is the first row times its quantization steps.
        #[target_feature(enable = $features)]
        #[inline]
        fn beyond_left(all: $Register, first: $Register) -> $Register {
            let right = unpacklo_epi64(zero(), set1_epi8(-1));
            let large = add_epi16(first, set1_epi16(1 << (15 - PASS1_BITS)));
            let large = and(large, set1_epi16(-1 << (16 - PASS1_BITS)));
            or(and(all, right), large)
        }

        /// Returns the transposed result of the first pass, where all but the first four columns are zero.
        #[target_feature(enable = $features)]
        #[inline]
        fn left_columns(v: &Rows) -> [$Register; 4] {
            const SHIFT: $Immediate = SHIFT_COLUMNS as $Immediate;
            let mut rows = half_pass::<SHIFT>(v, |x, y| unpacklo_epi16(x, y));
            for row in &mut rows {
                *row = srai_epi32::<SHIFT>(*row);
            }
            let four_rows = |i: usize| {
                let r01 = packs_epi32(rows[i], rows[i + 1]);
                let r23 = packs_epi32(rows[i + 2], rows[i + 3]);
                let (r02, r13) = (unpacklo_epi16(r01, r23), unpackhi_epi16(r01, r23));
                // Columns 0 and 1, and columns 2 and 3, of four rows.
                (unpacklo_epi16(r02, r13), unpackhi_epi16(r02, r13))
            };
            let (upper, lower) = (four_rows(0), four_rows(4));
            [
                unpacklo_epi64(upper.0, lower.0),
                unpackhi_epi64(upper.0, lower.0),
                unpacklo_epi64(upper.1, lower.1),
                unpackhi_epi64(upper.1, lower.1),
            ]
        }

        /// Transposes the blocks.
        #[target_feature(enable = $features)]
        #[inline]
        fn transpose(r: Rows) -> Rows {
            let a0 = unpacklo_epi16(r[0], r[1]);
            let a1 = unpackhi_epi16(r[0], r[1]);
            let a2 = unpacklo_epi16(r[2], r[3]);
            let a3 = unpackhi_epi16(r[2], r[3]);
            let a4 = unpacklo_epi16(r[4], r[5]);
            let a5 = unpackhi_epi16(r[4], r[5]);
            let a6 = unpacklo_epi16(r[6], r[7]);
            let a7 = unpackhi_epi16(r[6], r[7]);
            let b0 = unpacklo_epi32(a0, a2);
            let b1 = unpackhi_epi32(a0, a2);
            let b2 = unpacklo_epi32(a1, a3);
            let b3 = unpackhi_epi32(a1, a3);
            let b4 = unpacklo_epi32(a4, a6);
            let b5 = unpackhi_epi32(a4, a6);
            let b6 = unpacklo_epi32(a5, a7);
            let b7 = unpackhi_epi32(a5, a7);
            [
                unpacklo_epi64(b0, b4),
                unpackhi_epi64(b0, b4),
                unpacklo_epi64(b1, b5),
                unpackhi_epi64(b1, b5),
                unpacklo_epi64(b2, b6),
                unpackhi_epi64(b2, b6),
                unpacklo_epi64(b3, b7),
                unpackhi_epi64(b3, b7),
            ]
        }

        /// Converts columns of samples around zero, as [`pass_rows`] returns them, to rows of pixels.
        #[target_feature(enable = $features)]
        #[inline]
        fn to_pixels(columns: Rows) -> [$Half; 8] {
            // Bytes need half as many registers for the transpose; each holds two columns that are
            // 4 apart.
            let middle = set1_epi8(-128);
            let pack = |i: usize| xor(packs_epi16(columns[i], columns[i + 4]), middle);
            let (c04, c15, c26, c37) = (pack(0), pack(1), pack(2), pack(3));
            // `c01` holds columns 0 and 1 of all rows, and so on.
            let c01 = unpacklo_epi8(c04, c15);
            let c45 = unpackhi_epi8(c04, c15);
            let c23 = unpacklo_epi8(c26, c37);
            let c67 = unpackhi_epi8(c26, c37);
            let upper = (unpacklo_epi16(c01, c23), unpacklo_epi16(c45, c67));
            let lower = (unpackhi_epi16(c01, c23), unpackhi_epi16(c45, c67));
            // Each call gives two rows; the blocks' parts of a row are in the same half of all lanes.
            let [r0, r4] = halves(unpacklo_epi32(upper.0, upper.1));
            let [r1, r5] = halves(unpackhi_epi32(upper.0, upper.1));
            let [r2, r6] = halves(unpacklo_epi32(lower.0, lower.1));
            let [r3, r7] = halves(unpackhi_epi32(lower.0, lower.1));
            [r0, r1, r2, r3, r4, r5, r6, r7]
        }

        /// Returns blocks with only a DC coefficient, which is already multiplied by its quantization step.
        #[target_feature(enable = $features)]
        #[inline]
        fn flat(dc: $Register) -> [$Half; 8] {
            // The two passes for a single value: the second one is a rounding shift by 5.
            let between = slli_epi16::<{ PASS1_BITS as $Immediate }>(dc);
            let pixel = srai_epi16::<5>(adds_epi16(between, set1_epi16(16)));
            let pixel = xor(packs_epi16(pixel, pixel), set1_epi8(-128));
            let [row, _] = halves(shuffle_epi8(pixel, zero()));
            [row; 8]
        }
    };
}

/// Upsampling and color conversion. `load` expands `$SAMPLES` bytes to 16 bits each in a register,
/// and `store_in_turns` converts them back to bytes; `add_dot` adds the products of two neighbors
/// to an integer. Rows that are too short are passed to `$narrower`.
macro_rules! rows {
    ($features:literal, $Register:ty, $SAMPLES:expr, $narrower:ident) => {
        /// Chroma samples per step of upsampling.
        const SAMPLES: usize = $SAMPLES;

        #[target_feature(enable = $features)]
        pub(super) fn horizontal(row: &[u8], out: &mut [u8]) {
            let width = row.len();
            if width < SAMPLES + 2 {
                return $narrower::horizontal(row, out);
            }
            upsample::horizontal_in(row, 0..1, out);
            upsample::horizontal_in(row, width - 1..width, out);
            for at in steps(1, width - 1, SAMPLES) {
                let here = load(part(row, at));
                let near = add_epi16(here, add_epi16(here, here));
                let left = add_epi16(load(part(row, at - 1)), set1_epi16(1));
                let right = add_epi16(load(part(row, at + 1)), set1_epi16(2));
                let even = srli_epi16::<2>(add_epi16(near, left));
                let odd = srli_epi16::<2>(add_epi16(near, right));
                store_in_turns(even, odd, part_mut(out, 2 * at));
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn both(near: &[u8], far: &[u8], out: &mut [u8]) {
            let width = near.len();
            if width < SAMPLES + 2 {
                return $narrower::both(near, far, out);
            }
            upsample::both_in(near, far, 0..1, out);
            upsample::both_in(near, far, width - 1..width, out);
            for at in steps(1, width - 1, SAMPLES) {
                let left = column(near, far, at - 1);
                let here = column(near, far, at);
                let right = column(near, far, at + 1);
                let here = add_epi16(here, add_epi16(here, here));
                let left = add_epi16(left, set1_epi16(8));
                let right = add_epi16(right, set1_epi16(7));
                let even = srli_epi16::<4>(add_epi16(here, left));
                let odd = srli_epi16::<4>(add_epi16(here, right));
                store_in_turns(even, odd, part_mut(out, 2 * at));
            }
        }

        /// Returns three times the nearer sample plus the farther one.
        #[target_feature(enable = $features)]
        #[inline]
        fn column(near: &[u8], far: &[u8], at: usize) -> $Register {
            let near = load(part(near, at));
            let far = load(part(far, at));
            add_epi16(add_epi16(near, far), add_epi16(near, near))
        }

        /// Returns red, green and blue of samples in 16 bits, before saturation.
        ///
        /// Red and blue use one rounded product of 16 bits each, with factors that give the values
        /// of `color` for all chroma samples. Green adds two products before it rounds; its factors
        /// without the integer part of one (-1) fit into 16 bits.
        #[target_feature(enable = $features)]
        #[inline]
        fn mix(y: $Register, cb: $Register, cr: $Register) -> [$Register; 3] {
            let middle = set1_epi16(128);
            let cb = sub_epi16(cb, middle);
            let cr = sub_epi16(cr, middle);
            // 1.402 and 1.772 times 2^14.
            let red = mulhrs_epi16(add_epi16(cr, cr), set1_epi16(22_971));
            let blue = mulhrs_epi16(add_epi16(cb, cb), set1_epi16(29_033));
            let (red, blue) = (add_epi16(red, y), add_epi16(blue, y));
            let factors = set1_epi32(18_734 << 16 | i32::from(-22_554i16 as u16));
            let half = set1_epi32(1 << 15);
            let low = add_dot(half, unpacklo_epi16(cb, cr), factors);
            let high = add_dot(half, unpackhi_epi16(cb, cr), factors);
            let mix = packs_epi32(srai_epi32::<16>(low), srai_epi32::<16>(high));
            let green = add_epi16(mix, sub_epi16(y, cr));
            [red, green, blue]
        }
    };
}

pub(super) use {passes, rows};
