//! Runs plans over the transport traits: the state of a group's calls, driven from outside.
//!
//! Nothing here has a socket, a thread or a clock. A caller polls; what a poll cannot finish it says is
//! [`Poll::Pending`], and the caller waits in its own way and polls again, with `look` set once in a while, so
//! that deaths, aborts and deadlines are found without costing the fast path anything.
//!
//! * [`call`]: what one call is, and the cache of plans.
//! * [`execution`]: one call stepping through its plan: the header exchange, the mismatch verdict, the folds.
//! * [`lanes`]: one large call on several channels, so that several threads can work on it.
//! * [`life`]: the life of a group: live, then closed or aborted with its first cause.
//! * [`names`]: named calls: announcing, and the published order.
//! * `offers`: whether a call can read all ranks' buffers where they are.
//! * [`unnamed`] and [`named`]: the two lanes of a group, which own the queued calls of each kind.
#![forbid(unsafe_code)]

pub mod call;
pub mod claims;
pub mod execution;
pub mod lanes;
mod late;
pub mod life;
pub mod named;
pub mod names;
mod offers;
mod trouble;
pub mod unnamed;
mod work;

pub use call::{Call, Completion, Limits, OwnedBuffers, Preparer, Task, Terms};
pub use claims::{Claims, Contradiction};
pub use execution::{ChannelState, Execution};
pub use lanes::{Cut, Lane, Loan};
pub use life::Life;
pub use named::NamedLane;
pub use plan::Choice;
pub use trouble::{SETTLING, View};
pub use unnamed::UnnamedLane;
pub use work::Work;

pub use core::task::Poll;

use kernels::{ForeignBytes, Hints, SharedBytes, Source};
use types::transport::{Clock, Peers, Windows};
use types::{Buffers, DataType, Reduction};

/// Windows whose memory the kernels can fold.
pub trait SharedWindows: for<'a> Windows<View<'a> = SharedBytes<'a>, Foreign<'a> = ForeignBytes<'a>> + 'static {}

impl<T> SharedWindows for T where
    T: for<'a> Windows<View<'a> = SharedBytes<'a>, Foreign<'a> = ForeignBytes<'a>> + 'static
{
}

/// What a poll works with: the group as its members see it.
#[allow(missing_debug_implementations, reason = "a bundle of borrows")]
pub struct Ground<'a, W, P> {
    /// The time.
    pub clock: &'a dyn Clock,
    /// The group's shared memory.
    pub windows: &'a W,
    /// The processes behind the group's ranks.
    pub peers: &'a P,
    /// Whether the group still lives.
    pub life: &'a Life,
    /// Who we are.
    pub view: &'a View,
}

impl<W, P> Clone for Ground<'_, W, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W, P> Copy for Ground<'_, W, P> {}

impl<W: SharedWindows, P: Peers> Ground<'_, W, P> {
    /// Whether calls may begin: no rank of the group has ended its epoch. What another rank said is noted here.
    #[inline]
    pub fn is_live(self) -> bool {
        if let Some(cause) = self.windows.aborted() {
            self.life.end(&cause);
        }
        self.life.is_live()
    }

    /// The group's other ranks, as indices.
    fn others(self) -> impl Iterator<Item = usize> {
        let own = self.windows.rank();
        (0..self.windows.geometry().ranks).filter(move |other| *other != own)
    }
}

/// The all-reduce of a group of one: the fold of one contribution, with its NaNs made canonical.
fn alone(dtype: DataType, reduction: Reduction, buffers: &mut Buffers<'_>) {
    let all = 0..buffers.len();
    let hints = Hints { streaming: false, take_ownership: false };
    kernels::Fold::new(dtype, reduction).fold(buffers, all, &[Source::Own], None, hints);
}
