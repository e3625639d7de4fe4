//! The process's place in its job: the groups, the threads, and the end.

use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use engine::Choice;
use shm::{Crew, Home, JobKey, Mask, Meeting, Shield};
use types::error::NotInGroup;
use types::{Error, GroupName, Product, Rank, Result};

use crate::communicator::InitOptions;
use crate::config::Config;
use crate::costs;
use crate::dump::Dumps;
use crate::group::{Group, lock};
use crate::lanes::Helpers;
use crate::progress::Progress;
use crate::settings::Settings;
use crate::stage::Stages;

/// How long [`World::shut_down`] waits for its threads before it leaves them to end by themselves.
const FAREWELL: Duration = Duration::from_millis(700);

/// What all handles of a communicator and its groups share.
pub(crate) struct World {
    config: Config,
    settings: Settings,
    /// What decides between algorithms in groups whose first member this process is.
    choice: OnceLock<Choice>,
    home: Home,
    /// The other ranks of the host; `None` in a world of one.
    host: Option<Arc<shm::World>>,
    groups: Mutex<Groups>,
    /// The group of all ranks, or what became of it. A lock of its own, which is held for writing for a moment in a shrink of
    /// that group only: so a forked child does not find it locked by a thread that it has not got.
    all: RwLock<Option<Group>>,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    pub(crate) progress: Progress,
    pub(crate) stages: Stages,
    /// Threads that help with large calls.
    helpers: Helpers,
    pub(crate) dumps: Dumps,
}

#[derive(Default)]
struct Groups {
    by_name: HashMap<GroupName, Group>,
    /// How often a group of this name and these members was made before. Members make and destroy in the same order,
    /// so it is the same number on each.
    incarnations: HashMap<(GroupName, Vec<Rank>), u64>,
}

impl Groups {
    /// Whether this is the group of its name.
    fn has(&self, group: &Group) -> bool {
        self.by_name.get(group.name()).is_some_and(|known| Arc::ptr_eq(known.shared(), group.shared()))
    }
}

impl World {
    fn new(config: Config, home: Home, host: Option<Arc<shm::World>>) -> Arc<World> {
        Arc::new(World {
            settings: Settings::new(config.product),
            choice: OnceLock::new(),
            config,
            home,
            host,
            groups: Mutex::default(),
            all: RwLock::default(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
            progress: Progress::default(),
            stages: Stages::default(),
            helpers: Helpers::default(),
            dumps: Dumps::default(),
        })
    }

    /// Meets the other ranks of the job.
    pub(crate) fn meet(config: Config, home: Home, options: InitOptions<'_>) -> Result<Arc<World>> {
        let rank = config.rank;
        let launcher = shm::launcher::Client::connect(rank)?;
        if config.size == 1 && launcher.is_none() {
            return Ok(World::new(config, home, None));
        }
        let limit = options.timeout.limit(config.init_timeout);
        let job = JobKey::new(&config.job);
        let mut meeting = Meeting::new(&job, rank, config.size, limit);
        meeting.interrupted = options.interrupt;
        meeting.launcher = launcher;
        let (host, monitor) = meeting.meet()?;
        let world = World::new(config, home, Some(Arc::clone(&host)));
        // Before any call: who dies from now on is noticed. The others have met this rank: if it cannot go on, they must not
        // wait for it.
        world.spawn("foldcast-monitor", move |_| monitor.run()).inspect_err(|_| host.leave(0))?;
        Ok(world)
    }

    /// Whether this is the process that made it, and not a forked child.
    pub(crate) fn is_home(&self) -> bool {
        self.home.is_here()
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn rank(&self) -> Rank {
        self.config.rank
    }

    pub(crate) fn host(&self) -> Option<&Arc<shm::World>> {
        self.host.as_ref()
    }

    /// The settings that calls carry.
    #[inline]
    pub(crate) fn settings(&self) -> u64 {
        self.settings.word()
    }

    /// What decides between algorithms in groups whose first member this process is. The first time it may read a file.
    pub(crate) fn choice(&self) -> &Choice {
        self.choice.get_or_init(|| costs::choice(&self.config.costs, self.config.algorithm))
    }

    #[inline]
    pub(crate) fn product(&self) -> Product {
        self.settings.product()
    }

    pub(crate) fn set_product(&self, product: Product) {
        self.settings.set_product(product);
    }

    /// Whether these ranks are on more than one host. All ranks of a job are on one.
    #[allow(clippy::unused_self, reason = "the world is what will know")]
    pub(crate) fn spans_hosts(&self, _ranks: &[Rank]) -> bool {
        false
    }

    /// Refuses forked children.
    #[inline]
    pub(crate) fn check_process(&self) -> Result<()> {
        self.home.check()
    }

    /// Lets the process's waiting threads look again.
    pub(crate) fn ring_own(&self) {
        if let Some(host) = &self.host {
            host.ring_own();
        }
    }

    // ---- groups ----

    /// Makes a group. Nobody is asked: its members meet at first use.
    pub(crate) fn make_group(self: &Arc<World>, name: GroupName, ranks: Vec<Rank>) -> Result<Group> {
        self.check_process()?;
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed { what: "the communicator".into() });
        }
        let mut groups = lock(&self.groups);
        if groups.by_name.contains_key(&name) {
            let got = format!("'{name}', which {} is in already", self.rank());
            return Err(Error::invalid("group", "a name that is not in use: destroy the group first", got));
        }
        let incarnation = groups.incarnations.entry((name.clone(), ranks.clone())).or_insert(0);
        let group = Group::new(Arc::clone(self), name.clone(), ranks, *incarnation);
        *incarnation += 1;
        groups.by_name.insert(name, group.clone());
        Ok(group)
    }

    /// Makes the group of all ranks.
    pub(crate) fn make_all(self: &Arc<World>) -> Result<()> {
        let ranks = (0..self.config.size).map(Rank::from_index).collect();
        let all = self.make_group(GroupName::world(), ranks)?;
        self.set_all(Some(all));
        Ok(())
    }

    fn set_all(&self, all: Option<Group>) {
        // What was there is dropped when the lock is free again: that may take longer than a moment.
        let _former = core::mem::replace(&mut *self.all.write().unwrap_or_else(PoisonError::into_inner), all);
    }

    /// The group of all ranks, or what became of it.
    pub(crate) fn all(&self) -> Group {
        let all = self.all.read().unwrap_or_else(PoisonError::into_inner);
        all.clone().expect("made with the communicator, and forgotten with the last handle of that")
    }

    /// Lets go of the group of all ranks, which holds the world as the world holds it.
    pub(crate) fn forget_all(&self) {
        self.set_all(None);
    }

    /// Whether this is the group of its name.
    pub(crate) fn knows(&self, group: &Group) -> bool {
        lock(&self.groups).has(group)
    }

    /// Puts a group in the place of another one, if that is still there.
    pub(crate) fn replace(&self, group: &Group, successor: &Group) -> bool {
        let mut groups = lock(&self.groups);
        if self.stopping.load(Ordering::Acquire) || !groups.has(group) {
            return false;
        }
        groups.by_name.insert(group.name().clone(), successor.clone());
        if group.name().is_world() {
            self.set_all(Some(successor.clone()));
        }
        true
    }

    /// A name for a group of these ranks that was given none: the same on each of its members.
    pub(crate) fn name_for(&self, ranks: &[Rank]) -> Result<GroupName> {
        let list: Vec<_> = ranks.iter().map(|rank| rank.0.to_string()).collect();
        let digest = types::digest(2, list.join(",").as_bytes());
        let groups = lock(&self.groups);
        let mut number = 0u32;
        loop {
            let name = GroupName::new(&format!("group-{digest:016x}-{number}"))?;
            if !groups.by_name.contains_key(&name) {
                return Ok(name);
            }
            number += 1;
        }
    }

    pub(crate) fn group(&self, name: &str, op: &'static str) -> Result<Group> {
        self.check_process()?;
        let name = GroupName::new(name)?;
        if let Some(group) = lock(&self.groups).by_name.get(&name) {
            return Ok(group.clone());
        }
        if self.stopping.load(Ordering::Acquire) {
            return Err(Error::Closed { what: "the communicator".into() });
        }
        let (rank, known) = (self.rank(), self.group_names());
        Err(Error::NotInGroup(Box::new(NotInGroup { rank, op, group: name, members: None, known })))
    }

    /// Names of the groups that this process knows, sorted.
    pub(crate) fn group_names(&self) -> Vec<GroupName> {
        let mut names: Vec<_> = lock(&self.groups).by_name.keys().cloned().collect();
        names.sort();
        names
    }

    /// Takes a group out of the list, if it is the one of its name there.
    pub(crate) fn forget(&self, group: &Group) {
        let mut groups = lock(&self.groups);
        if groups.has(group) {
            groups.by_name.remove(group.name());
        }
    }

    fn all_groups(&self) -> Vec<Group> {
        lock(&self.groups).by_name.values().cloned().collect()
    }

    /// Starts a thread that ends when the world stops. It takes no signals: the user's code on it runs within the mask that
    /// `body` gets, the calling thread's.
    pub(crate) fn spawn(&self, name: &str, body: impl FnOnce(Mask) + Send + 'static) -> Result<()> {
        let shield = Shield::raise();
        let users = shield.before();
        let spawned = std::thread::Builder::new().name(name.into()).spawn(move || body(users));
        drop(shield);
        let handle = spawned.map_err(|error| {
            let refused = Error::resource(
                format!("the thread {name}"),
                error,
                "raise the limit on processes (`ulimit -u`) or address space (`ulimit -v`)",
            );
            refused.met_by(self.rank())
        })?;
        let mut threads = lock(&self.threads);
        threads.retain(|thread| !thread.is_finished());
        threads.push(handle);
        Ok(())
    }

    pub(crate) const fn helpers(&self) -> &Helpers {
        &self.helpers
    }

    /// The threads that help with large calls; they are made when they are first asked for.
    pub(crate) fn crew(&self) -> &Crew {
        self.helpers.crew(self)
    }

    // ---- the end ----

    pub(crate) fn abort(&self) {
        for group in self.all_groups() {
            group.abort();
        }
    }

    /// Leaves in order: pending calls of this process end, peers learn that nothing more comes. At most a second.
    pub(crate) fn shut_down(&self) {
        if !self.home.is_here() || self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        let calls = self.group(types::WORLD_GROUP, "shutdown").map_or(0, |world| world.shared().calls());
        let groups = std::mem::take(&mut lock(&self.groups).by_name);
        for group in groups.values() {
            group.shared().close();
        }
        for destroyed in self.active_groups() {
            // What it had to tell, this process's leaving says.
            destroyed.joining.close();
        }
        if let Some(host) = &self.host {
            host.leave(calls);
            host.ring_own();
            self.end_rest();
            host.stop_monitor();
        }
        self.helpers.stop();
        let end = Instant::now() + FAREWELL;
        let me = std::thread::current().id();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            // A completion may shut down: its thread cannot wait for itself.
            while thread.thread().id() != me && !thread.is_finished() && Instant::now() < end {
                std::thread::sleep(Duration::from_micros(200));
            }
            // One that is stuck in the user's completion ends with the process.
            if thread.is_finished() && thread.join().is_err() {
                log::error!("{}: a thread of the communicator panicked", self.rank());
            }
        }
        self.run_completions();
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }
}
