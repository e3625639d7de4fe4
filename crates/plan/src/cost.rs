/// What the parts of a call cost. Microseconds, and microseconds per KiB.
///
/// The defaults were measured on a two-core x86 server with 2 MiB of level-two cache a core. They decide between
/// algorithms, so all ranks of a group must use the same; they promise no time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Constants {
    /// Seeing one other rank's header or counter, from its publication on: microseconds per peer.
    pub signal_us: f64,
    /// Beginning and ending one round of a pipeline whose signals are already there: microseconds.
    pub round_us: f64,
    /// Copying a KiB between memory that this core has at hand: microseconds.
    pub copy_us_per_kib: f64,
    /// Folding a KiB of one source: microseconds.
    pub fold_us_per_kib: f64,
    /// Fetching a KiB that another core wrote: microseconds.
    pub transfer_us_per_kib: f64,
    /// What each KiB of input beyond the caches costs more: microseconds.
    pub memory_us_per_kib: f64,
    /// Bytes of input up to which input, output and staging stay in the caches.
    pub cached_bytes: usize,
}

impl Default for Constants {
    fn default() -> Constants {
        Constants {
            signal_us: 0.13,
            round_us: 0.1,
            copy_us_per_kib: 0.02,
            fold_us_per_kib: 0.014,
            transfer_us_per_kib: 0.03,
            memory_us_per_kib: 0.05,
            cached_bytes: 512 << 10,
        }
    }
}

impl Constants {
    /// The constants' names, in the order of [`values`](Self::values).
    pub const NAMES: [&str; 7] = [
        "signal_us",
        "round_us",
        "copy_us_per_kib",
        "fold_us_per_kib",
        "transfer_us_per_kib",
        "memory_us_per_kib",
        "cached_bytes",
    ];

    /// All constants as numbers.
    #[must_use]
    pub fn values(&self) -> [f64; 7] {
        let Constants {
            signal_us,
            round_us,
            copy_us_per_kib,
            fold_us_per_kib,
            transfer_us_per_kib,
            memory_us_per_kib,
            cached_bytes,
        } = *self;
        let cached_bytes = real(cached_bytes);
        [signal_us, round_us, copy_us_per_kib, fold_us_per_kib, transfer_us_per_kib, memory_us_per_kib, cached_bytes]
    }

    /// The constants of these [`values`](Self::values); `None` if one of them is not from 0 to 10,000 microseconds, or bytes that
    /// are no whole number up to 1 TiB.
    #[must_use]
    pub fn from_values(values: [f64; 7]) -> Option<Constants> {
        let [signal_us, round_us, copy_us_per_kib, fold_us_per_kib, transfer_us_per_kib, memory_us_per_kib, bytes] =
            values;
        let times_are_sane = values[..6].iter().all(|time| (0.0..=MAX_US).contains(time));
        let bytes_are_sane = (0.0..=MAX_CACHED_BYTES).contains(&bytes) && bytes.fract() == 0.0;
        #[allow(clippy::as_conversions, clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked")]
        let cached_bytes = bytes as usize;
        (times_are_sane && bytes_are_sane).then_some(Constants {
            signal_us,
            round_us,
            copy_us_per_kib,
            fold_us_per_kib,
            transfer_us_per_kib,
            memory_us_per_kib,
            cached_bytes,
        })
    }

    /// Time to wait for a signal of every one of `peers` ranks.
    pub(crate) fn signals(&self, peers: usize) -> f64 {
        self.signal_us * real(peers)
    }

    /// Time of `rounds` rounds.
    pub(crate) fn rounds(&self, rounds: u64) -> f64 {
        #[allow(clippy::as_conversions, reason = "a cost: rounding does not matter")]
        let rounds = rounds as f64;
        self.round_us * rounds
    }

    /// Time to copy this many bytes.
    pub(crate) fn copy(&self, bytes: usize) -> f64 {
        self.copy_us_per_kib * kib(bytes)
    }

    /// Time to fold `bytes` bytes of each of `sources` sources.
    pub(crate) fn fold(&self, bytes: usize, sources: usize) -> f64 {
        self.fold_us_per_kib * kib(bytes) * real(sources)
    }

    /// Time for this many bytes to change cores.
    pub(crate) fn transfer(&self, bytes: usize) -> f64 {
        self.transfer_us_per_kib * kib(bytes)
    }

    /// What input and output of this many bytes cost beyond the caches.
    pub(crate) fn memory(&self, bytes: usize) -> f64 {
        self.memory_us_per_kib * kib(bytes.saturating_sub(self.cached_bytes))
    }
}

/// No part of a call costs more than this, in microseconds: what is larger was not measured on a machine that works.
const MAX_US: f64 = 10_000.0;
/// No cache is larger than this.
const MAX_CACHED_BYTES: f64 = 1_099_511_627_776.0;

#[allow(clippy::as_conversions, reason = "a cost: rounding does not matter")]
fn real(number: usize) -> f64 {
    number as f64
}

fn kib(bytes: usize) -> f64 {
    real(bytes) / 1024.0
}
