//! A process's place in its job.

use std::sync::Arc;

use shm::Home;
use types::{Error, GroupName, Product, Rank, Result, WORLD_GROUP};

use crate::config::{Config, Timeout};
use crate::group::Group;
use crate::wait::Interrupt;
use crate::world::World;

/// What [`Communicator::init`] can be given.
#[derive(Clone, Copy, Default)]
pub struct InitOptions<'a> {
    /// How long the ranks may take to meet.
    pub timeout: Timeout,
    /// Asked while waiting: `true` ends the wait.
    pub interrupt: Option<Interrupt<'a>>,
}

impl core::fmt::Debug for InitOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("InitOptions").field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// A process's place in its job. Clones are handles of the same place; when the last is dropped, the process leaves in
/// order, as by [`shutdown`](Self::shutdown).
#[derive(Clone, Debug)]
pub struct Communicator {
    inner: Arc<Inner>,
}

struct Inner {
    world: Arc<World>,
}

impl core::fmt::Debug for Inner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Inner").field("config", self.world.config()).finish_non_exhaustive()
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.world.shut_down();
        self.world.forget_all();
    }
}

impl Communicator {
    /// Reads the environment and meets the other ranks of the job.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for variables that cannot be meant, [`Error::Deadline`] naming the ranks that did not
    /// come, [`Error::RankDied`] if one ended before, [`Error::Resource`].
    pub fn init(options: InitOptions<'_>) -> Result<Communicator> {
        Self::with_config(Config::from_env()?, options)
    }

    /// Meets the other ranks of the job that this configuration describes.
    ///
    /// # Errors
    /// As [`init`](Self::init).
    pub fn with_config(config: Config, options: InitOptions<'_>) -> Result<Communicator> {
        let rank = config.rank;
        let met = Home::here().and_then(|home| World::meet(config, home, options));
        let world = met.map_err(|error| error.met_by(rank))?;
        world.make_all()?;
        Ok(Communicator { inner: Arc::new(Inner { world }) })
    }

    pub(crate) fn shared_world(&self) -> &World {
        &self.inner.world
    }

    /// What the communicator was made with.
    #[must_use]
    pub fn config(&self) -> &Config {
        self.inner.world.config()
    }

    /// This process's rank: its place among the ranks that met, and its name in errors, for as long as the job lasts. Its
    /// place among those that are left after a [shrink](Group::shrink) is [`Group::rank`] of [`world`](Self::world).
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.inner.world.rank()
    }

    /// Number of ranks that met. How many are left after a [shrink](Group::shrink) is [`Group::size`] of
    /// [`world`](Self::world).
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.world.config().size
    }

    /// This process's rank among the ranks of its host.
    #[must_use]
    pub fn local_rank(&self) -> usize {
        self.inner.world.config().local_rank
    }

    /// Number of ranks on this host.
    #[must_use]
    pub fn local_size(&self) -> usize {
        // All ranks are on one host.
        self.size()
    }

    /// The group of all ranks; after a [shrink](Group::shrink) of it, of those that are left.
    #[must_use]
    pub fn world(&self) -> Group {
        self.inner.world.all()
    }

    /// The group of this name.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if this process knows none; [`Error::InvalidArgument`] for what cannot be a name.
    pub fn group(&self, name: &str) -> Result<Group> {
        self.inner.world.group(name, "allreduce")
    }

    /// Makes a group of these ranks. Nobody is asked and nobody waits: the members meet at first use. A process that is
    /// no member may make the group too; its calls are refused.
    ///
    /// Members that make and destroy several groups of the same name and ranks do so in the same order.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty list, a rank that does not exist or stands twice, a name that is no name
    /// or in use.
    pub fn new_group(&self, ranks: &[Rank], name: Option<&str>) -> Result<Group> {
        let world = &self.inner.world;
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let size = self.size();
        if sorted.is_empty() || sorted.len() != ranks.len() || sorted.iter().any(|rank| rank.index() >= size) {
            let numbers: Vec<_> = ranks.iter().map(|rank| rank.0).collect();
            return Err(Error::invalid(
                "ranks",
                format!("different ranks from 0 to {}", size - 1),
                format!("{numbers:?}"),
            ));
        }
        let name = match name {
            Some(WORLD_GROUP) => {
                return Err(Error::invalid(
                    "group",
                    "another name",
                    format!("{WORLD_GROUP:?}, the group of all ranks"),
                ));
            }
            Some(name) => GroupName::new(name)?,
            None => world.name_for(&sorted)?,
        };
        world.make_group(name, sorted)
    }

    /// Destroys this process's part of the group of this name.
    ///
    /// # Errors
    /// [`Error::NotInGroup`] if there is none; [`Error::InvalidArgument`] for the group of all ranks.
    pub fn destroy_group(&self, name: &str) -> Result<()> {
        self.inner.world.group(name, "destroy")?.destroy()
    }

    /// Refuses forked children of the process that made the communicator. A few ns.
    ///
    /// # Errors
    /// [`Error::ForkedProcess`].
    pub fn check_process(&self) -> Result<()> {
        self.inner.world.check_process()
    }

    /// The product whose limits hold for the calls of this process.
    #[must_use]
    pub fn product(&self) -> Product {
        self.inner.world.product()
    }

    /// Makes the limits of this product hold for the calls of this process from now on. All ranks do so at the same
    /// point of their programs: in a call in which their products differ they get [`Error::Mismatch`].
    pub fn set_product(&self, product: Product) {
        self.inner.world.set_product(product);
    }

    /// Ends the epoch of every group that this process knows, on all their members. Returns at once.
    pub fn abort(&self) {
        self.inner.world.abort();
    }

    /// Leaves in order: pending and later calls of this process fail with [`Error::Closed`], and peers that still need
    /// it learn that it left. Returns within a second, whatever the peers do. A second call does nothing.
    pub fn shutdown(&self) {
        self.inner.world.shut_down();
    }

    /// Whether [`shutdown`](Self::shutdown) was called.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.inner.world.is_shut_down()
    }
}
