//! What is promised beside the numbers: which kernels run, the thread's floating-point settings, what is refused.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use foldcast_kernels::{Fold, Hints, Level, LevelError, SharedBytes, Source, dispatch, force};
use types::{Buffers, DataType, Reduction};

use crate::world::levels;

#[test]
fn the_best_level_of_this_machine_is_used() {
    let best = levels().last().unwrap();
    assert_eq!(dispatch(), best.name());
    for dtype in DataType::ALL {
        for reduction in Reduction::ALL {
            assert_eq!(Fold::new(dtype, reduction).level(), best);
        }
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        assert_ne!(best, Level::Portable);
    }
    // Once it is in use, it stays.
    assert_eq!(force(best), Ok(()));
    if best != Level::Portable {
        let refusal = LevelError::Chosen { asked: Level::Portable, chosen: best };
        assert_eq!(force(Level::Portable), Err(refusal));
        assert!(refusal.to_string().contains("choose before the first call"), "{refusal}");
    }
}

/// The best of some rounds, of folding a chunk that stays in the cache.
fn time(level: Level, ranks: usize) -> Duration {
    let fold = Fold::with_level(DataType::Float16, Reduction::Sum, level).unwrap();
    let len = 16 << 10;
    let input = vec![1; len];
    let mut output = vec![0; len];
    let peer: Vec<_> = (0..len).map(|_| AtomicU8::new(1)).collect();
    let mut sources = vec![Source::Shared(SharedBytes::from_atomics(&peer)); ranks];
    sources[0] = Source::Own;
    let mut buffers = Buffers::Separate { input: &input, output: &mut output };
    let mut once = || {
        let start = Instant::now();
        fold.fold(&mut buffers, 0..len, &sources, None, Hints::default());
        start.elapsed()
    };
    (0..50).map(|_| once()).min().unwrap()
}

/// Vector instructions in functions that are not inlined are slower than none. In float16 they are tens of times
/// faster when all is well, whatever the machine is doing beside.
#[test]
fn vector_kernels_are_inlined() {
    for level in levels().filter(|&level| level != Level::Portable) {
        for ranks in [2, 5, 8, 9] {
            let (plain, vector) = (time(Level::Portable, ranks), time(level, ranks));
            assert!(vector * 3 < plain, "{} with {ranks} ranks: {vector:?}, portable: {plain:?}", level.name());
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[cfg_attr(miri, ignore = "Miri runs no assembly")]
#[test]
fn the_threads_floating_point_settings_do_not_matter_and_come_back() {
    fn settings() -> u32 {
        let mut value = 0u32;
        // SAFETY: stores a register to a local.
        unsafe { core::arch::asm!("stmxcsr [{}]", in(reg) &raw mut value, options(nostack)) }
        value
    }
    fn set(value: u32) {
        // SAFETY: loads a register from a local, with no reserved bit set.
        unsafe { core::arch::asm!("ldmxcsr [{}]", in(reg) &raw const value, options(nostack)) }
    }
    // Flush to zero, denormals are zero, round towards zero.
    let changed = 0x1f80 | 1 << 15 | 1 << 6 | 3 << 13;
    for level in levels() {
        for (dtype, a, b, expected) in [
            // The smallest subnormal twice.
            (DataType::Float32, 1u64, 1, 2),
            (DataType::Float64, 1, 1, 2),
            (DataType::Bfloat16, 1, 1, 2),
            (DataType::Float16, 1, 1, 2),
            // One, and a little more than half of its last place.
            (DataType::Float32, 0x3f80_0000, 0x3380_0001, 0x3f80_0001),
            (DataType::Float16, 0x3c00, 0x1001, 0x3c01),
        ] {
            let bytes = |x: u64| x.to_le_bytes()[..dtype.size()].to_vec();
            let (input, mut output) = (bytes(a), bytes(0));
            let peer: Vec<_> = bytes(b).into_iter().map(AtomicU8::new).collect();
            let sources = [Source::Own, Source::Shared(SharedBytes::from_atomics(&peer))];
            let fold = Fold::with_level(dtype, Reduction::Sum, level).unwrap();
            let len = dtype.size();
            let before = settings();
            set(changed);
            let mut buffers = Buffers::Separate { input: &input, output: &mut output };
            fold.fold(&mut buffers, 0..len, &sources, None, Hints::default());
            let after = settings();
            set(before);
            assert_eq!(output, bytes(expected), "{dtype} on {}", level.name());
            assert_eq!(after & 0xffc0, changed & 0xffc0, "settings after {dtype} on {}", level.name());
        }
    }
}

/// The second output may be the very bytes of a source.
#[test]
fn a_source_may_be_the_second_output() {
    for level in levels() {
        for len in [1, 31, 64, 100, if cfg!(miri) { 200 } else { 5000 }] {
            let shared: Vec<_> = (0..len).map(|_| AtomicU8::new(1)).collect();
            let view = SharedBytes::from_atomics(&shared);
            let (input, mut output) = (vec![2; len], vec![0; len]);
            let mut buffers = Buffers::Separate { input: &input, output: &mut output };
            let fold = Fold::with_level(DataType::Int8, Reduction::Sum, level).unwrap();
            let sources = [Source::Own, Source::Shared(view), Source::Own];
            fold.fold(&mut buffers, 0..len, &sources, Some(view), Hints::default());
            assert_eq!(output, vec![5; len]);
            assert!(shared.into_iter().all(|b| b.into_inner() == 5));
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let shared: Vec<_> = (0..64).map(|_| AtomicU8::new(1)).collect();
    let view = SharedBytes::from_atomics(&shared);
    let fold = Fold::new(DataType::Float32, Reduction::Sum);
    let refused = |call: &dyn Fn(&mut Buffers<'_>)| {
        let mut bytes = [0; 64];
        let panic = catch_unwind(AssertUnwindSafe(|| call(&mut Buffers::InPlace(&mut bytes)))).unwrap_err();
        assert_eq!(bytes, [0; 64], "written before it was refused");
        panic.downcast_ref::<String>().cloned().or(panic.downcast_ref::<&str>().map(|&s| s.to_owned())).unwrap()
    };
    let own = [Source::Own];
    let plain = Hints::default();

    let none = refused(&|b| fold.fold(b, 0..8, &[], None, plain));
    assert!(none.contains("at least one source"), "{none}");
    let outside = refused(&|b| fold.fold(b, 60..68, &own, None, plain));
    assert!(outside.contains("60..68") && outside.contains("64"), "{outside}");
    let odd = refused(&|b| fold.fold(b, 0..6, &own, None, plain));
    assert!(odd.contains("6 bytes") && odd.contains("float32"), "{odd}");
    let short = refused(&|b| fold.fold(b, 0..8, &[Source::Own, Source::Shared(view.slice(0..4))], None, plain));
    assert!(short.contains("4 bytes") && short.contains('8'), "{short}");
    let also = refused(&|b| fold.fold(b, 0..8, &own, Some(view.slice(0..12)), plain));
    assert!(also.contains("12 bytes"), "{also}");
    let peer = refused(&|b| fold.fold_and_stage(b, 0..8, view.slice(0..4), true, None, plain));
    assert!(peer.contains("4 bytes"), "{peer}");
    let overlap = refused(&|b| {
        fold.fold_and_stage(b, 0..8, view.slice(0..8), true, Some((4..12, view.slice(8..16))), plain);
    });
    assert!(overlap.contains("4..12") && overlap.contains("0..8"), "{overlap}");
    let stage = refused(&|b| {
        fold.fold_and_stage(b, 0..8, view.slice(0..8), true, Some((8..16, view.slice(8..12))), plain);
    });
    assert!(stage.contains("4 bytes") && stage.contains("8..16"), "{stage}");
    assert!(catch_unwind(|| view.slice(60..65)).is_err());
    assert!(catch_unwind(|| foldcast_kernels::copy_in(view, &[0; 63])).is_err());
    assert!(catch_unwind(|| foldcast_kernels::copy_out(&mut [0; 63], view)).is_err());
    assert!(shared.into_iter().all(|b| b.into_inner() == 1));
}
