//! Runs a fold among guard bytes.

use std::sync::atomic::{AtomicU8, Ordering};

use foldcast_kernels::{Fold, Hints, Level, SharedBytes, Source, finish_streaming};
use types::{Buffers, DataType, Reduction};

const GUARD: u8 = 0xa5;
const MARGIN: usize = 80;

/// The levels of this machine.
pub(crate) fn levels() -> impl Iterator<Item = Level> {
    Level::ALL.into_iter().filter(|level| level.is_available())
}

/// Bytes at a chosen distance from a cache line, between guards.
pub(crate) struct Private {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Private {
    pub(crate) fn new(content: &[u8], misalignment: usize) -> Private {
        let len = content.len();
        let mut bytes = vec![GUARD; len + 2 * MARGIN + 128];
        let start = bytes[MARGIN..].as_ptr().align_offset(64) + MARGIN + misalignment % 64;
        bytes[start..start + len].copy_from_slice(content);
        Private { bytes, start, len }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }

    pub(crate) fn check_guards(&self) {
        assert!(self.bytes[..self.start].iter().all(|&b| b == GUARD), "bytes in front were written");
        assert!(self.bytes[self.start + self.len..].iter().all(|&b| b == GUARD), "bytes behind were written");
    }
}

/// Shared bytes at a chosen distance from a cache line, between guards.
pub(crate) struct Common {
    bytes: Vec<AtomicU8>,
    start: usize,
    len: usize,
}

impl Common {
    pub(crate) fn new(content: &[u8], misalignment: usize) -> Common {
        let private = Private::new(content, 0);
        let bytes: Vec<_> = (0..private.bytes.len()).map(|_| AtomicU8::new(GUARD)).collect();
        let start = bytes[MARGIN..].as_ptr().align_offset(64) + MARGIN + misalignment % 64;
        for (to, from) in bytes[start..].iter().zip(content) {
            to.store(*from, Ordering::Relaxed);
        }
        Common { bytes, start, len: content.len() }
    }

    pub(crate) fn view(&self) -> SharedBytes<'_> {
        SharedBytes::from_atomics(&self.bytes).slice(self.start..self.start + self.len)
    }

    pub(crate) fn content(&self) -> Vec<u8> {
        self.bytes[self.start..self.start + self.len].iter().map(|b| b.load(Ordering::Relaxed)).collect()
    }

    pub(crate) fn check_guards(&self) {
        let guarded = |bytes: &[AtomicU8]| bytes.iter().all(|b| b.load(Ordering::Relaxed) == GUARD);
        assert!(guarded(&self.bytes[..self.start]), "shared bytes in front were written");
        assert!(guarded(&self.bytes[self.start + self.len..]), "shared bytes behind were written");
    }
}

/// How to fold; what to fold is given beside it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) level: Level,
    /// Which source is this rank's input; none if out of range.
    pub(crate) own: usize,
    pub(crate) in_place: bool,
    pub(crate) also: bool,
    pub(crate) hints: Hints,
    /// Distance of this rank's buffers from a cache line.
    pub(crate) input_misalignment: usize,
    pub(crate) output_misalignment: usize,
    pub(crate) shared_misalignment: usize,
}

impl Manner {
    pub(crate) fn plain(level: Level) -> Manner {
        Manner {
            level,
            own: 0,
            in_place: false,
            also: false,
            hints: Hints::default(),
            input_misalignment: 0,
            output_misalignment: 0,
            shared_misalignment: 0,
        }
    }
}

/// The output of a fold. Checks on the way that nothing else was written.
pub(crate) fn fold(dtype: DataType, reduction: Reduction, sources: &[Vec<u8>], manner: Manner) -> Vec<u8> {
    let len = sources[0].len();
    let fold = Fold::with_level(dtype, reduction, manner.level).unwrap();
    let own = sources.get(manner.own).unwrap_or(&sources[0]);
    let shared: Vec<_> = sources.iter().map(|s| Common::new(s, manner.shared_misalignment)).collect();
    let views: Vec<_> = shared
        .iter()
        .enumerate()
        .map(|(i, s)| if i == manner.own { Source::Own } else { Source::Shared(s.view()) })
        .collect();
    let also = Common::new(&vec![1; len], manner.shared_misalignment);
    let also_view = manner.also.then(|| also.view());

    let input = Private::new(own, manner.input_misalignment);
    let before = if manner.in_place { own.clone() } else { vec![2; len] };
    let mut output = Private::new(&before, manner.output_misalignment);
    let mut buffers = if manner.in_place {
        Buffers::InPlace(output.bytes_mut())
    } else {
        Buffers::Separate { input: input.bytes(), output: output.bytes_mut() }
    };
    fold.fold(&mut buffers, 0..len, &views, also_view, manner.hints);
    finish_streaming();

    output.check_guards();
    input.check_guards();
    assert_eq!(input.bytes(), own, "the input was written");
    for (common, source) in shared.iter().zip(sources) {
        common.check_guards();
        assert_eq!(&common.content(), source, "a source was written");
    }
    also.check_guards();
    if manner.also {
        assert_eq!(also.content(), output.bytes(), "the second output differs");
    }
    output.bytes().to_vec()
}
