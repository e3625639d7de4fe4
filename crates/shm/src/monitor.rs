//! The watch over the other processes of the host, run on one thread of its own: their ends, the launcher's notices, and
//! the requests for group memory and arenas.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use types::error::RankDied;
use types::transport::Fate;
use types::{Ending, Error, Rank, Result};

use crate::death::Life;
use crate::groups::{Answer, Ask, Wish};
use crate::launcher::{Client, die_with_launcher};
use crate::retry::retry;
use crate::socket::{Packet, accept_from, connect_to, own_user, peer_of, receive, send};
use crate::windows::GroupWindows;
use crate::wire::{MAX_NAMED, Message, Refusal, Shown};
use crate::world::World;

/// How long the reason of a death may take to become known; then the rank has died of nothing that is known.
const REASON_LIMIT: Duration = Duration::from_millis(30);
/// How often to look for it, and to repeat what the system had no room for.
const TICK: Duration = Duration::from_millis(2);
/// How long a connection may stay silent before it counts as foreign.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// How long to leave a process alone that did not take a request.
const RETRY: Duration = Duration::from_millis(10);
/// Connections served at once, for each rank. Those that are turned away come again.
const CALLERS_PER_RANK: usize = 32;
/// Descriptors kept so that there is one for a connection and one for the memory that comes or goes over it.
const SPARES: usize = 2;
/// Events taken at once.
const EVENTS: usize = 64;

const BELL: u64 = 0;
const LISTENER: u64 = 1;
const LAUNCHER: u64 = 2;
/// The lives of ranks have the keys from here on, the connections those after them.
const FIRST_LIFE: u64 = 3;

/// Somebody who asks this process for a group's memory, or its arena.
struct Caller {
    socket: OwnedFd,
    since: Instant,
    wants: Option<(u128, Rank)>,
}

/// A request of this process, on its way.
struct Asking {
    wish: Wish,
    /// `None` until it could be sent, and again when the connection was lost.
    socket: Option<OwnedFd>,
    /// When to try to send it.
    due: Instant,
}

/// A rank that is gone, of which it is not told yet.
struct Dying {
    rank: Rank,
    since: Instant,
    /// How it ended, once that is known.
    ending: Option<Ending>,
}

/// Watches the other processes of a world. [`run`](Monitor::run) it on a thread of its own from the beginning to the end of
/// the world: without it deaths go unnoticed and no group's memory is handed out.
pub struct Monitor {
    world: Arc<World>,
    epoll: OwnedFd,
    listener: Option<OwnedFd>,
    lives: Vec<Option<Life>>,
    /// Holds this process's end of the pipe that stands for its life, where there are no process handles.
    _anchor: Option<OwnedFd>,
    launcher: Option<Client>,
    /// What the launcher said.
    notices: BTreeMap<Rank, Ending>,
    /// Ranks that are gone, and since when; how they ended is not known yet.
    dying: Vec<Dying>,
    callers: HashMap<u64, Caller>,
    askings: HashMap<u64, Asking>,
    /// Places for descriptors: the program may have taken all others.
    spares: Vec<OwnedFd>,
    /// Somebody could not be answered for want of a descriptor or of room.
    busy: bool,
    next_key: u64,
    foreign: u64,
}

/// What a monitor is made of.
pub(crate) struct Parts {
    pub(crate) listener: Option<OwnedFd>,
    pub(crate) lives: Vec<Option<Life>>,
    pub(crate) anchor: Option<OwnedFd>,
    pub(crate) launcher: Option<Client>,
}

impl Monitor {
    pub(crate) fn new(world: Arc<World>, parts: Parts) -> Result<Monitor> {
        let refused = |error: Errno| {
            Error::resource(
                "a watch over the other ranks (epoll)",
                error,
                "raise `ulimit -n` and fs.epoll.max_user_watches",
            )
        };
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(refused)?;
        let watch =
            |fd: &dyn AsFd, key| epoll::add(&epoll, fd.as_fd(), epoll::EventData::new_u64(key), epoll::EventFlags::IN);
        watch(&world.bell(), BELL).map_err(refused)?;
        if let Some(listener) = &parts.listener {
            watch(listener, LISTENER).map_err(refused)?;
        }
        if let Some(launcher) = &parts.launcher {
            watch(launcher, LAUNCHER).map_err(refused)?;
        }
        for (key, life) in (FIRST_LIFE..).zip(&parts.lives) {
            if let Some(life) = life {
                watch(&life.token, key).map_err(refused)?;
            }
        }
        let next_key = FIRST_LIFE + crate::layout::count(world.size());
        Ok(Monitor {
            world,
            epoll,
            listener: parts.listener,
            lives: parts.lives,
            _anchor: parts.anchor,
            launcher: parts.launcher,
            notices: BTreeMap::new(),
            dying: Vec::new(),
            callers: HashMap::new(),
            askings: HashMap::new(),
            spares: Vec::new(),
            busy: false,
            next_key,
            foreign: 0,
        })
    }

    /// Watches until [`World::stop_monitor`]. Then no more deaths are noticed, and requests still on their way end with
    /// [`Error::Closed`]. Ends the process if its launcher ends (see [`die_with_launcher`]).
    pub fn run(mut self) {
        self.keep_spares();
        while self.world.home().is_here() && !self.world.is_stopping() {
            self.step();
        }
        // No more will be told.
        self.world.set_dying(0);
        let left = self.world.desk().take_asks();
        for wish in left.iter().chain(self.askings.values().map(|asking| &asking.wish)) {
            if let Wish::Group(ask) = wish {
                ask.answer(&self.world, Err(Error::Closed { what: format!("group '{}'", ask.key.name()) }));
            }
        }
    }

    /// Waits for something to do, and does it.
    fn step(&mut self) {
        let mut events = Vec::with_capacity(EVENTS);
        let timeout =
            self.patience().map(|patience| Timespec::try_from(patience).expect("patience is seconds at most"));
        // Interrupted, or nothing: there is nothing to do then.
        let _ = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut events), timeout.as_ref());
        let lives = FIRST_LIFE..FIRST_LIFE + crate::layout::count(self.lives.len());
        for event in events {
            match event.data.u64() {
                BELL => self.quiet_bell(),
                LISTENER => self.accept(),
                LAUNCHER => self.hear_launcher(),
                key if lives.contains(&key) => self.see_death(crate::layout::index(key - FIRST_LIFE)),
                key if self.callers.contains_key(&key) => self.hear_caller(key),
                key => self.hear_answer(key),
            }
        }
        self.settle_deaths();
        self.send_asks();
        self.settle_asks();
        self.answer_callers();
        if !self.busy {
            self.keep_spares();
        }
    }

    /// Takes back the descriptors that were needed, if there are any to be had.
    fn keep_spares(&mut self) {
        let in_use = usize::from(self.askings.values().any(|asking| asking.socket.is_some()));
        while self.spares.len() + in_use < SPARES {
            let Ok(spare) = self.world.bell().try_clone_to_owned() else { return };
            self.spares.push(spare);
        }
    }

    /// A call that makes a descriptor, in the place of a spare one if there is no other.
    fn with_spare<T>(&mut self, call: impl Fn(&Monitor) -> rustix::io::Result<T>) -> rustix::io::Result<T> {
        match call(self) {
            Err(Errno::MFILE | Errno::NFILE) if self.spares.len() == SPARES => {
                drop(self.spares.pop());
                call(self)
            }
            made => made,
        }
    }

    /// How long nothing needs to be done if nothing happens.
    fn patience(&self) -> Option<Duration> {
        if self.busy || !self.dying.is_empty() {
            return Some(TICK);
        }
        if self.askings.values().any(|asking| asking.socket.is_none()) {
            return Some(RETRY);
        }
        self.callers.values().any(|caller| caller.wants.is_none()).then_some(SILENCE_LIMIT)
    }

    fn quiet_bell(&self) {
        let mut value = [0; 8];
        // Nothing to read means that it is quiet.
        let _ = retry(|| rustix::io::read(self.world.bell(), &mut value));
    }

    fn hear_launcher(&mut self) {
        let Some(launcher) = &mut self.launcher else { return };
        let heard = launcher.read_notices();
        self.notices.extend(heard.ended);
        if heard.launcher_gone {
            log::debug!("{}: the launcher is gone: this rank ends too", self.world.rank());
            die_with_launcher();
        }
    }

    fn see_death(&mut self, index: usize) {
        let Some(life) = self.lives.get(index).and_then(Option::as_ref) else { return };
        // It stays readable: once is enough.
        let _ = epoll::delete(&self.epoll, &life.token);
        self.dying.push(Dying { rank: Rank::from_index(index), since: Instant::now(), ending: None });
    }

    /// Records deaths as soon as it is known how, or has taken too long.
    fn settle_deaths(&mut self) {
        let mut dying = core::mem::take(&mut self.dying);
        let known = take_known(&mut dying, |rank, patient| self.ending_of(rank, patient));
        self.dying = dying;
        for (rank, ending) in known {
            self.world.record(rank, ending);
            self.lives[rank.index()] = None;
        }
        self.world.set_dying(self.dying.len());
    }

    fn ending_of(&self, rank: Rank, patient: bool) -> Option<Ending> {
        let left = self.world.left(rank).map(Ending::Left);
        let told = || self.lives[rank.index()].as_ref().and_then(|life| life.ending(patient));
        left.or_else(told).or_else(|| self.notices.get(&rank).copied())
    }

    fn watch(&mut self, socket: &OwnedFd) -> Option<u64> {
        let key = self.next_key;
        let data = epoll::EventData::new_u64(key);
        epoll::add(&self.epoll, socket, data, epoll::EventFlags::IN).ok()?;
        self.next_key += 1;
        Some(key)
    }

    fn accept(&mut self) {
        let accepted = self.with_spare(|monitor| match &monitor.listener {
            Some(listener) => accept_from(listener),
            None => Err(Errno::AGAIN),
        });
        let socket = match accepted {
            Ok(socket) => socket,
            Err(Errno::MFILE | Errno::NFILE) => return self.make_room(),
            Err(_) => return,
        };
        if self.callers.len() >= CALLERS_PER_RANK * self.world.size() {
            return;
        }
        if peer_of(&socket).map(|(user, _)| user) != Ok(own_user()) {
            return self.count_foreign();
        }
        if let Some(key) = self.watch(&socket) {
            self.callers.insert(key, Caller { socket, since: Instant::now(), wants: None });
        }
    }

    /// Without a descriptor for it, a connection would make the listener readable for ever.
    fn make_room(&mut self) {
        let silent = self.callers.iter().find(|(_, caller)| caller.wants.is_none()).map(|(key, _)| *key);
        match silent {
            Some(key) => drop(self.callers.remove(&key)),
            None => std::thread::sleep(TICK),
        }
    }

    fn count_foreign(&mut self) {
        self.foreign += 1;
        log::warn!(
            "{}: ignored something foreign on the socket for group memory ({} so far)",
            self.world.rank(),
            self.foreign
        );
    }

    fn hear_caller(&mut self, key: u64) {
        let Some(caller) = self.callers.get_mut(&key) else { return };
        let heard = match receive(&caller.socket) {
            Err(Errno::AGAIN) => return,
            Ok(Packet { bytes, .. }) if !bytes.is_empty() => Message::decode(&bytes).ok(),
            // The end: it has what it asked for, or is gone.
            Ok(_) | Err(_) => return drop(self.callers.remove(&key)),
        };
        match heard {
            Some(Message::Ask { key: group, rank }) if caller.wants.is_none() => {
                caller.wants = Some((group, Rank(rank)))
            }
            Some(Message::Look) => {
                if let Some(caller) = self.callers.remove(&key) {
                    self.show(&caller.socket);
                }
            }
            _ => {
                self.callers.remove(&key);
                self.count_foreign();
            }
        }
    }

    /// Gives what this rank knows of the job to a process of the same user.
    fn show(&self, socket: &OwnedFd) {
        let world = &self.world;
        let Some(shown) = world.shown() else { return };
        let ranks = (0..world.size()).map(Rank::from_index);
        let gone = ranks.filter_map(|rank| match world.fate(rank) {
            Fate::Gone(ending) => Some((rank, ending)),
            Fate::Alive => None,
        });
        let gone = gone.take(MAX_NAMED).collect();
        let answer = Message::Shown(Shown { rank: world.rank().0, job: shown.job.clone(), gone });
        // Whoever does not get it asks another rank.
        let _ = send(socket, &answer.encode(), &[shown.memory.as_fd()]);
    }

    fn answer_callers(&mut self) {
        let world = &self.world;
        if world.left(world.rank()).is_some() {
            // The end of the connection tells those who wait that this rank will make no memory any more.
            self.callers.clear();
            self.listener = None;
        }
        let mut busy = false;
        self.callers.retain(|_, caller| {
            let Some((group, rank)) = caller.wants else { return caller.since.elapsed() < SILENCE_LIMIT };
            let answer = world.desk().answer(group);
            match answer {
                Ok(Answer::NotYet) => true,
                Err(_) => {
                    busy = true;
                    true
                }
                Ok(Answer::Refused(why)) => {
                    let _ = send(&caller.socket, &Message::Withdrawn(why.unwrap_or_default()).encode(), &[]);
                    false
                }
                Ok(Answer::Granted(memory)) => {
                    match send(&caller.socket, &Message::Granted.encode(), &[memory.as_fd()]) {
                        Ok(()) => {
                            world.desk().served(group, rank);
                            false
                        }
                        Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOMEM | Errno::NOBUFS) => {
                            busy = true;
                            true
                        }
                        Err(_) => false,
                    }
                }
            }
        });
        self.busy = busy;
        if busy {
            // What was missing may be a descriptor.
            drop(self.spares.pop());
        }
    }

    /// Takes new requests from the desk, and sends those that could not be sent so far.
    fn send_asks(&mut self) {
        let new = self.world.desk().take_asks();
        for wish in new {
            let key = self.next_key;
            self.next_key += 1;
            self.askings.insert(key, Asking { wish, socket: None, due: Instant::now() });
        }
        let due = |asking: &Asking| asking.socket.is_none() && asking.due <= Instant::now();
        let keys: Vec<u64> = self.askings.iter().filter(|(_, asking)| due(asking)).map(|(key, _)| *key).collect();
        for key in keys {
            let Some(mut asking) = self.askings.remove(&key) else { continue };
            // Refused, or no room here: its end, if it is that, is told by its handle.
            let sent = self.with_spare(|monitor| monitor.send_ask(&asking.wish)).ok();
            let watched = sent.and_then(|socket| self.watch(&socket).map(|key| (key, socket)));
            let key = watched.as_ref().map_or(key, |(key, _)| *key);
            asking.due = Instant::now() + RETRY;
            asking.socket = watched.map(|(_, socket)| socket);
            self.askings.insert(key, asking);
        }
    }

    fn send_ask(&self, wish: &Wish) -> rustix::io::Result<OwnedFd> {
        let socket = connect_to(&self.world.addresses[wish.host().index()].0)?;
        if peer_of(&socket)?.0 != own_user() {
            return Err(Errno::PERM);
        }
        let message = Message::Ask { key: wish.identity(), rank: self.world.rank().0 };
        send(&socket, &message.encode(), &[])?;
        Ok(socket)
    }

    fn hear_answer(&mut self, key: u64) {
        let Some(asking) = self.askings.get_mut(&key) else { return };
        let Some(socket) = &asking.socket else { return };
        // For the memory that comes; it is closed again when it is mapped.
        drop(self.spares.pop());
        match receive(socket) {
            Err(Errno::AGAIN) => {}
            Ok(packet) if !packet.bytes.is_empty() => {
                match &asking.wish {
                    Wish::Group(ask) => ask.answer(&self.world, read_answer(&self.world, ask, packet)),
                    Wish::Arena(of) => self.world.take_arena(*of, read_arena(packet)),
                }
                self.askings.remove(&key);
            }
            // It is gone, which its handle tells soon, or had no room.
            Ok(_) | Err(_) => asking.socket = None,
        }
    }

    /// Ends the requests to processes that are gone, and forgets those that nobody wants any more.
    fn settle_asks(&mut self) {
        // What a process sent before it ended still counts.
        let gone = |asking: &Asking| self.world.fate(asking.wish.host()) != Fate::Alive;
        let keys: Vec<u64> = self.askings.iter().filter(|(_, asking)| gone(asking)).map(|(key, _)| *key).collect();
        for key in keys {
            self.hear_answer(key);
        }
        let world = &self.world;
        self.askings.retain(|_, asking| {
            match (world.fate(asking.wish.host()), &asking.wish) {
                (Fate::Alive, wish) => wish.is_wanted(),
                (Fate::Gone(ending), Wish::Group(ask)) => {
                    ask.answer(world, Err(lost(world, ask, ending)));
                    false
                }
                // Nobody will call with it any more.
                (Fate::Gone(_), Wish::Arena(_)) => false,
            }
        });
    }
}

/// Takes those of these deaths that are to be told now: in the order in which they were seen, since later ones may be because of
/// earlier ones. `ending` says how a rank ended, as far as can be known; the patient would rather wait for a better reason.
fn take_known(dying: &mut Vec<Dying>, ending: impl Fn(Rank, bool) -> Option<Ending>) -> Vec<(Rank, Ending)> {
    // All are asked after: what the kernel tells of a process it tells until its parent has heard of it.
    for each in dying.iter_mut() {
        let patient = each.since.elapsed() < REASON_LIMIT;
        each.ending =
            each.ending.or_else(|| ending(each.rank, patient)).or_else(|| (!patient).then_some(Ending::Unknown));
    }
    let known: Vec<_> = dying.iter().map_while(|each| Some((each.rank, each.ending?))).collect();
    dying.drain(..known.len());
    known
}

fn lost(world: &World, ask: &Ask, ending: Ending) -> Error {
    let site = ask.key.site(world.rank());
    Error::RankDied(Box::new(RankDied { site, peer: ask.host(), ending, elapsed: ask.since.elapsed() }))
}

fn read_answer(world: &Arc<World>, ask: &Ask, packet: Packet) -> Result<GroupWindows> {
    let wanted = || format!("the memory of group '{}' from {}", ask.key.name(), ask.host());
    match Message::decode(&packet.bytes) {
        Ok(Message::Granted) => match packet.descriptors.first() {
            Some(memory) => GroupWindows::attach(world, &ask.key, memory).inspect_err(|error| {
                // The others must not wait for this rank.
                if let Err(why) = GroupWindows::give_up(world, &ask.key, memory) {
                    log::error!(
                        "{}: the members of group '{}' cannot be told that it failed ({error}): {why}",
                        world.rank(),
                        ask.key.name()
                    );
                }
            }),
            None => Err(Error::resource(
                wanted(),
                "its descriptor was lost",
                "raise the limit on open files with `ulimit -n`",
            )),
        },
        // Its first member has destroyed the group: it will take no part in it.
        Ok(Message::Withdrawn(why)) if why.is_empty() => Err(lost(world, ask, Ending::Left(0))),
        Ok(Message::Withdrawn(why)) => Err(Error::resource(wanted(), why, "see what is said there")),
        Ok(Message::Refused(Refusal::Failed(why))) => Err(Error::resource(wanted(), why, "see what is said there")),
        Ok(_) | Err(_) => {
            Err(Error::resource(wanted(), "an answer of another kind", "see that all ranks run the same version"))
        }
    }
}

/// The arena in an answer, or why there is none.
fn read_arena(packet: Packet) -> core::result::Result<OwnedFd, String> {
    match Message::decode(&packet.bytes) {
        Ok(Message::Granted) => packet.descriptors.into_iter().next().ok_or_else(|| "its descriptor was lost".into()),
        _ => Err("an answer of another kind".into()),
    }
}

#[cfg(test)]
mod tests;
