//! What all ranks of a group must have in common beside the call itself: the version, the product, and what decides between
//! algorithms.
//!
//! The product is a setting of the process that may change between calls. Each call carries it, so that ranks with
//! different products get a mismatch that names them in the first call that all of them make. A call that a rank's own
//! product refuses is refused there before anything is sent.
//!
//! What decides between algorithms is the first member's, which hands it out with the group's memory: a rank's own file or
//! variable counts only in groups whose first member it is.

use core::sync::atomic::{AtomicU64, Ordering};

use plan::Choice;
use types::{DataType, OpKind, Product, Reduction, Result, digest};

use crate::group::GroupShared;

/// Digest of the version, which decides how the memory of a group is written.
pub(crate) fn version() -> u64 {
    Product::Host.into_settings(digest(1, env!("CARGO_PKG_VERSION").as_bytes()))
}

/// What the first member of a group hands out with the memory: the version, and what decides between algorithms.
pub(crate) fn handed_out(choice: &Choice) -> Vec<u8> {
    [&version().to_le_bytes()[..], &choice.encode()].concat()
}

/// What decides between algorithms, as the first member handed it out. From one of another version it may be anything:
/// then the default will do, since the first call finds that the versions differ.
pub(crate) fn taken_over(settings: &[u8]) -> Choice {
    settings.get(size_of::<u64>()..).and_then(Choice::decode).unwrap_or_default()
}

/// The settings of a process.
#[derive(Debug)]
pub(crate) struct Settings(AtomicU64);

impl Settings {
    pub(crate) fn new(product: Product) -> Settings {
        Settings(AtomicU64::new(product.into_settings(version())))
    }

    /// The settings as calls carry them.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        // Relaxed: whoever changes the product while calls are being made says himself that either will do.
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn product(&self) -> Product {
        Product::of_settings(self.word()).expect("only products are stored")
    }

    pub(crate) fn set_product(&self, product: Product) {
        self.0.store(product.into_settings(version()), Ordering::Relaxed);
    }
}

impl GroupShared {
    /// Refuses what the product's allreduce does not take.
    #[inline]
    pub(crate) fn check_product(&self, dtype: DataType, reduction: Reduction) -> Result<()> {
        match self.world.product() {
            Product::Host => Ok(()),
            product => self.check_limits(product, dtype, reduction),
        }
    }

    #[cold]
    fn check_limits(&self, product: Product, dtype: DataType, reduction: Reduction) -> Result<()> {
        let spans_hosts = self.world.spans_hosts(&self.view.ranks);
        product.check(dtype, reduction, spans_hosts).map_err(|unsupported| {
            let (field, expected, got) = (unsupported.field(), unsupported.expected(), unsupported.got());
            self.invalid(OpKind::AllReduce, field, expected, got)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handed_out_is_taken_over() {
        let choice = Choice { forced: Some("flat"), ..Choice::default() };
        assert_eq!(taken_over(&handed_out(&choice)), choice);
        assert_eq!(taken_over(b"short"), Choice::default());
        assert_eq!(taken_over(&[0xff; 200]), Choice::default());
    }
}
