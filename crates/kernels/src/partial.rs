//! Up to 16 bytes, without a loop and without touching a byte more.
//!
//! Two accesses that overlap in the middle cover any length between one and two times their size; where two reads
//! overlap they have the same bytes. (If a peer breaks the protocol and writes between the two, the value is some
//! mixture, which is no worse than either.)

/// The `len <= 16` bytes as two little-endian numbers, the rest zeros.
///
/// # Safety
/// The bytes are valid for reads.
#[inline(always)]
pub(crate) unsafe fn read(from: *const u8, len: usize) -> [u64; 2] {
    if len > 8 {
        // SAFETY: the first 8 of more than 8 bytes.
        let low = unsafe { read_8(from, 8) };
        // SAFETY: the bytes after those, at most 8.
        let high = unsafe { read_8(from.wrapping_add(8), len - 8) };
        [low, high]
    } else {
        // SAFETY: the caller's promise is the same.
        [unsafe { read_8(from, len) }, 0]
    }
}

/// Writes the first `len <= 16` bytes of two little-endian numbers.
///
/// # Safety
/// The bytes are valid for writes.
#[inline(always)]
pub(crate) unsafe fn write([low, high]: [u64; 2], to: *mut u8, len: usize) {
    if len > 8 {
        // SAFETY: the first 8 of more than 8 bytes.
        unsafe { write_8(low, to, 8) }
        // SAFETY: the bytes after those, at most 8.
        unsafe { write_8(high, to.wrapping_add(8), len - 8) }
    } else {
        // SAFETY: the caller's promise is the same.
        unsafe { write_8(low, to, len) }
    }
}

/// The `len <= 8` bytes as a little-endian number.
///
/// # Safety
/// The bytes are valid for reads.
#[inline(always)]
unsafe fn read_8(from: *const u8, len: usize) -> u64 {
    if len == 8 {
        // SAFETY: all 8 bytes.
        u64::from_le(unsafe { from.cast::<u64>().read_unaligned() })
    } else if len >= 4 {
        // SAFETY: the first 4 of at least 4 bytes.
        let low = unsafe { from.cast::<u32>().read_unaligned() };
        // SAFETY: the last 4 of at least 4 bytes.
        let high = unsafe { from.wrapping_add(len - 4).cast::<u32>().read_unaligned() };
        u64::from(u32::from_le(low)) | u64::from(u32::from_le(high)) << (8 * (len - 4))
    } else if len >= 2 {
        // SAFETY: the first 2 of at least 2 bytes.
        let low = unsafe { from.cast::<u16>().read_unaligned() };
        // SAFETY: the last 2 of at least 2 bytes.
        let high = unsafe { from.wrapping_add(len - 2).cast::<u16>().read_unaligned() };
        u64::from(u16::from_le(low)) | u64::from(u16::from_le(high)) << (8 * (len - 2))
    } else if len == 1 {
        // SAFETY: the only byte.
        u64::from(unsafe { from.read() })
    } else {
        0
    }
}

/// Writes the lowest `len <= 8` bytes of a number, little-endian.
///
/// # Safety
/// The bytes are valid for writes.
#[inline(always)]
#[allow(clippy::as_conversions, reason = "cuts a number into its bytes")]
unsafe fn write_8(value: u64, to: *mut u8, len: usize) {
    if len == 8 {
        // SAFETY: all 8 bytes.
        unsafe { to.cast::<u64>().write_unaligned(value.to_le()) }
    } else if len >= 4 {
        // SAFETY: the first 4 of at least 4 bytes.
        unsafe { to.cast::<u32>().write_unaligned((value as u32).to_le()) }
        let high = (value >> (8 * (len - 4))) as u32;
        // SAFETY: the last 4 of at least 4 bytes.
        unsafe { to.wrapping_add(len - 4).cast::<u32>().write_unaligned(high.to_le()) }
    } else if len >= 2 {
        // SAFETY: the first 2 of at least 2 bytes.
        unsafe { to.cast::<u16>().write_unaligned((value as u16).to_le()) }
        let high = (value >> (8 * (len - 2))) as u16;
        // SAFETY: the last 2 of at least 2 bytes.
        unsafe { to.wrapping_add(len - 2).cast::<u16>().write_unaligned(high.to_le()) }
    } else if len == 1 {
        // SAFETY: the only byte.
        unsafe { to.write(value as u8) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_round_trips_and_leaves_the_rest() {
        let from: [u8; 16] = core::array::from_fn(|i| u8::try_from(i + 1).unwrap());
        for len in 0..=16 {
            // SAFETY: `len` of 16 bytes.
            let [low, high] = unsafe { read(from.as_ptr(), len) };
            let mut expected = [0; 16];
            expected[..len].copy_from_slice(&from[..len]);
            assert_eq!([low.to_le_bytes(), high.to_le_bytes()].concat(), expected, "read {len}");

            let mut to = [0xee; 16];
            let [low, high] = [&from[..8], &from[8..]].map(|half| u64::from_le_bytes(half.try_into().unwrap()));
            // SAFETY: `len` of 16 bytes.
            unsafe { write([low, high], to.as_mut_ptr(), len) }
            let mut expected = [0xee; 16];
            expected[..len].copy_from_slice(&from[..len]);
            assert_eq!(to, expected, "write {len}");
        }
    }
}
