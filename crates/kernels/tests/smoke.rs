//! The fold of float32 in its simplest use.

use std::sync::atomic::AtomicU8;

use foldcast_kernels::{Fold, Hints, SharedBytes, Source};
use types::{Buffers, DataType, Reduction};

#[test]
fn two_ranks_add() {
    let bytes = |values: &[f32]| values.iter().flat_map(|v| v.to_ne_bytes()).collect::<Vec<_>>();
    for n in 0..100u8 {
        let own: Vec<f32> = (0..n).map(f32::from).collect();
        let peer: Vec<AtomicU8> = bytes(&own).into_iter().map(AtomicU8::new).collect();
        let expected = bytes(&own.iter().map(|x| x + x).collect::<Vec<_>>());
        let mut in_place = bytes(&own);
        let len = in_place.len();
        let sources = [Source::Own, Source::Shared(SharedBytes::from_atomics(&peer))];
        Fold::new(DataType::Float32, Reduction::Sum).fold(
            &mut Buffers::InPlace(&mut in_place),
            0..len,
            &sources,
            None,
            Hints::default(),
        );
        assert_eq!(in_place, expected);
    }
}
