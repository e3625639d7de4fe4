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

#[allow(clippy::as_conversions, reason = "a cost: rounding does not matter")]
fn real(number: usize) -> f64 {
    number as f64
}

fn kib(bytes: usize) -> f64 {
    real(bytes) / 1024.0
}
