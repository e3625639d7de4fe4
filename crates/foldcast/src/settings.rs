//! What all ranks of a group must have in common beside the call itself: the version, and the product.
//!
//! The product is a setting of the process that may change between calls. Each call carries it, so that ranks with
//! different products get a mismatch that names them in the first call that all of them make. A call that a rank's own
//! product refuses is refused there before anything is sent.

use core::sync::atomic::{AtomicU64, Ordering};

use types::{DataType, OpKind, Product, Reduction, Result, digest};

use crate::group::GroupShared;

/// Digest of the version, which decides how the memory of a group is written.
pub(crate) fn version() -> u64 {
    Product::Host.into_settings(digest(1, env!("CARGO_PKG_VERSION").as_bytes()))
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
