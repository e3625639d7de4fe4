//! The process's place in its job: the groups, the threads, and the end.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Instant;

use engine::{Choice, Task};
use shm::{Crew, Home, JobKey, Mask, Meeting, Shield, Waiter, Woken};
use types::error::NotInGroup;
use types::{Error, GroupName, Product, Rank, Result};

use crate::communicator::InitOptions;
use crate::config::Config;
use crate::costs;
use crate::dump::Dumps;
use crate::group::{Group, GroupShared, lock};
use crate::lanes::Helpers;
use crate::settings::Settings;
use crate::stage::Stages;
use crate::wait::LOOK_EVERY;

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
    /// Groups with calls that the progress thread must run.
    active: Mutex<Vec<Arc<GroupShared>>>,
    /// Ended calls whose completions have not run.
    ended: Mutex<VecDeque<(Task, Result<()>)>>,
    stopping: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    progress_started: Mutex<bool>,
    /// Whose turn it is to make progress: a thread that waits in a completion hands it to the next.
    progress_turn: AtomicU64,
    pub(crate) stages: Stages,
    /// Threads that help with large calls.
    helpers: Helpers,
    pub(crate) dumps: Dumps,
}

thread_local! {
    /// The turn for which this thread was made to make progress; 0 on all other threads.
    static PROGRESS_TURN: Cell<u64> = const { Cell::new(0) };
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
            active: Mutex::default(),
            ended: Mutex::default(),
            stopping: AtomicBool::new(false),
            threads: Mutex::default(),
            progress_started: Mutex::default(),
            progress_turn: AtomicU64::new(1),
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

    // ---- progress ----

    /// Starts the progress thread if there is none yet.
    ///
    /// # Errors
    /// [`Error::Resource`] if there is no thread to be had.
    pub(crate) fn ensure_progress_thread(self: &Arc<World>) -> Result<()> {
        let mut started = lock(&self.progress_started);
        if !*started {
            self.start_progress_thread(self.progress_turn.load(Ordering::Acquire))?;
            *started = true;
        }
        Ok(())
    }

    fn start_progress_thread(self: &Arc<World>, turn: u64) -> Result<()> {
        let world = Arc::clone(self);
        self.spawn("foldcast-progress", move |users| {
            PROGRESS_TURN.set(turn);
            world.run_progress(turn, &users);
        })
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

    /// Puts a group on the progress thread's list.
    pub(crate) fn activate(&self, group: &Arc<GroupShared>) {
        let mut active = lock(&self.active);
        if !active.iter().any(|known| Arc::ptr_eq(known, group)) {
            active.push(Arc::clone(group));
        }
        drop(active);
        self.ring_own();
    }

    /// One round over all active groups; returns whether anything moved.
    fn progress(&self, look: bool) -> bool {
        let active = lock(&self.active).clone();
        let mut moved = false;
        for group in &active {
            moved |= group.progress(look);
        }
        moved |= self.helpers.visit();
        // Whoever submits counts first and then takes this lock.
        lock(&self.active).retain(|group| group.needs_progress());
        moved
    }

    /// Takes over ended calls, whose completions the progress thread runs.
    pub(crate) fn complete(&self, ended: Vec<(Task, Result<()>)>) {
        lock(&self.ended).extend(ended);
        self.ring_own();
    }

    fn has_completions(&self) -> bool {
        !lock(&self.ended).is_empty()
    }

    /// Runs the completions of ended calls; returns whether there were any.
    pub(crate) fn run_completions(&self) -> bool {
        let mut ran = false;
        loop {
            let next = lock(&self.ended).pop_front();
            let Some((task, result)) = next else { return ran };
            ran = true;
            // One user's mistake must not take everybody's progress with it.
            if std::panic::catch_unwind(AssertUnwindSafe(|| task.finish(result))).is_err() {
                log::error!("{}: a completion panicked; the calls go on", self.rank());
            }
            let turn = PROGRESS_TURN.get();
            if turn != 0 && turn != self.progress_turn.load(Ordering::Acquire) {
                // That completion waited, and another thread has taken over.
                return ran;
            }
        }
    }

    /// If this is the progress thread, about to wait in a completion: lets a new thread go on with the progress.
    pub(crate) fn hand_progress_over(self: &Arc<World>) {
        let turn = PROGRESS_TURN.get();
        if turn == 0 || turn != self.progress_turn.load(Ordering::Acquire) {
            return;
        }
        self.progress_turn.store(turn + 1, Ordering::Release);
        if let Err(error) = self.start_progress_thread(turn + 1) {
            log::error!("{}: a completion waits, and nothing else goes on meanwhile: {error}", self.rank());
            self.progress_turn.store(turn, Ordering::Release);
        }
    }

    fn run_progress(&self, turn: u64, users: &Mask) {
        let Some(host) = &self.host else { return };
        let ranks: Vec<_> = (0..host.size()).map(Rank::from_index).collect();
        let mut waiter = Waiter::new(host, &ranks);
        let (mut look, mut looked) = (false, Instant::now());
        loop {
            if look {
                looked = Instant::now();
            }
            let moved = self.progress(look);
            let moved = moved | (self.has_completions() && users.within(|| self.run_completions()));
            if self.progress_turn.load(Ordering::Acquire) != turn {
                return;
            }
            let busy = !lock(&self.active).is_empty();
            if self.stopping.load(Ordering::Acquire) && !busy {
                return;
            }
            if moved {
                waiter = Waiter::new(host, &ranks);
                // While one call goes on and on, the others are looked after all the same.
                look = looked.elapsed() >= LOOK_EVERY;
                continue;
            }
            let rechecked = Cell::new(false);
            let woken = waiter.pause(busy.then_some(LOOK_EVERY), &|| {
                rechecked.set(true);
                self.progress(true)
                    || self.has_completions()
                    || (!busy && !lock(&self.active).is_empty())
                    || self.stopping.load(Ordering::Acquire)
            });
            look = rechecked.get() || woken != Woken::Spun;
        }
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
        for destroyed in lock(&self.active).clone() {
            // What it had to tell, this process's leaving says.
            destroyed.joining.close();
        }
        if let Some(host) = &self.host {
            host.leave(calls);
            host.ring_own();
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
