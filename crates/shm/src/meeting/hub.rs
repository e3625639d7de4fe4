//! Rank 0 in a meeting: collects the others, then gives all of them the world's memory and each other's lives.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use types::{Error, Rank, Result};

use super::{Company, Place, SLICE, Watch, no_socket, poll_in};
use crate::death::Life;
use crate::fork::Home;
use crate::socket::{Packet, accept_from, listen_at, own_user, peer_of, receive, send};
use crate::wire::{Address, Entry, Hello, LifeKind, MAX_NAMED, Malformed, Message, ROSTER_BATCH, Refusal, VERSION};
use crate::world::World;

/// How long a connection may stay silent.
const SILENCE_LIMIT: Duration = Duration::from_secs(5);
/// Pause between two tries to get the address, or to pass descriptors while too many are under way.
const PAUSE: Duration = Duration::from_millis(5);
/// Foreign things that are reported one by one.
const REPORTED: u64 = 8;

/// A rank that has said who it is.
struct Member {
    socket: OwnedFd,
    life: Life,
    process: u32,
    address: Address,
}

/// A connection that has not said anything yet.
struct Stranger {
    socket: OwnedFd,
    process: u32,
    since: Instant,
}

struct Hub<'a> {
    place: &'a Place<'a>,
    members: Vec<Option<Member>>,
    strangers: Vec<Stranger>,
    foreign: u64,
}

pub(super) fn gather(place: &Place<'_>, watch: &mut Watch<'_>, home: Home) -> Result<Company> {
    let mut hub = Hub { place, members: Vec::new(), strangers: Vec::new(), foreign: 0 };
    hub.members.resize_with(place.size, || None);
    let met = hub.collect(watch).and_then(|()| hub.welcome(watch, home));
    if let Err(error) = &met {
        hub.dismiss(error);
    }
    met
}

/// Takes the job's address; another job with the same key may just be leaving it.
fn open_door(place: &Place<'_>, watch: &mut Watch<'_>) -> Result<OwnedFd> {
    loop {
        watch.check()?;
        match listen_at(Some(&place.key.address()), place.size * 4) {
            Err(Errno::ADDRINUSE) if watch.time_is_up() => {
                let awaited = format!(
                    "leave the address of job '{}', which another process holds that is rank 0, too (are two jobs meeting under one key?)",
                    place.key.as_str()
                );
                return Err(watch.deadline(vec![Rank(0)], awaited));
            }
            Err(Errno::ADDRINUSE) => watch.pause(PAUSE),
            listener => return listener.map_err(no_socket),
        }
    }
}

impl Hub<'_> {
    fn missing(&self) -> Vec<Rank> {
        let absent = self.members.iter().enumerate().skip(1).filter(|(_, member)| member.is_none());
        absent.map(|(index, _)| Rank::from_index(index)).collect()
    }

    fn collect(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        // Dropped, and the address free again, when all are there or the meeting has failed.
        let listener = open_door(self.place, watch)?;
        loop {
            watch.check()?;
            self.accept(&listener)?;
            self.hear_strangers(watch)?;
            self.look_after_members(watch)?;
            let missing = self.missing();
            if missing.is_empty() {
                return Ok(());
            }
            if watch.time_is_up() {
                let foreign = match self.foreign {
                    0 => String::new(),
                    count => format!(" ({count} foreign packets or connections were ignored)"),
                };
                return Err(watch.deadline(missing, format!("join job '{}'{foreign}", self.place.key.as_str())));
            }
            // With no room for more, knocking is not heard until some have spoken or were silent for too long.
            let door = self.has_room().then_some(&listener).into_iter();
            let sockets = self.strangers.iter().map(|stranger| &stranger.socket);
            let members = self.members.iter().flatten().map(|member| &member.socket);
            let mut fds: Vec<PollFd<'_>> = door.chain(sockets).chain(members).map(poll_in).collect();
            watch.wait(&mut fds, SLICE);
        }
    }

    fn count_foreign(&mut self, what: &str) {
        self.foreign += 1;
        if self.foreign <= REPORTED {
            log::warn!("rank 0: ignored {what} on the socket of job '{}'", self.place.key.as_str());
        }
    }

    fn has_room(&self) -> bool {
        self.strangers.len() < 2 * self.place.size + 64
    }

    fn accept(&mut self, listener: &OwnedFd) -> Result<()> {
        self.strangers.retain(|stranger| stranger.since.elapsed() < SILENCE_LIMIT);
        while self.has_room() {
            let socket = match accept_from(listener) {
                Ok(socket) => socket,
                Err(error @ (Errno::MFILE | Errno::NFILE)) => return Err(no_socket(error)),
                // Nobody there, or gone again.
                Err(_) => return Ok(()),
            };
            match peer_of(&socket) {
                Ok((user, process)) if user == own_user() => {
                    self.strangers.push(Stranger { socket, process, since: Instant::now() });
                }
                Ok((user, _)) => {
                    refuse(
                        &socket,
                        Refusal::Failed(format!("rank 0 belongs to user {}, not to user {user}", own_user())),
                    );
                    self.count_foreign("a process of another user");
                }
                Err(_) => self.count_foreign("a connection of nobody"),
            }
        }
        Ok(())
    }

    fn hear_strangers(&mut self, watch: &Watch<'_>) -> Result<()> {
        for stranger in core::mem::take(&mut self.strangers) {
            match receive(&stranger.socket) {
                Err(Errno::AGAIN) => self.strangers.push(stranger),
                Ok(packet) if !packet.bytes.is_empty() => self.hear(stranger, packet, watch)?,
                // Gone without a word.
                Ok(_) | Err(_) => {}
            }
        }
        Ok(())
    }

    fn hear(&mut self, stranger: Stranger, packet: Packet, watch: &Watch<'_>) -> Result<()> {
        match Message::decode(&packet.bytes) {
            Ok(Message::Hello(_)) if packet.lost_descriptors => return Err(no_socket(Errno::MFILE)),
            Ok(Message::Hello(hello)) => match packet.descriptors.into_iter().next() {
                Some(token) => return self.admit(stranger.socket, hello, token, watch),
                None => self.count_foreign("a rank without a handle of its process"),
            },
            Err(Malformed::Version(version)) => {
                refuse(&stranger.socket, Refusal::Version(VERSION));
                let got = format!("protocol {version}, which process {} has", stranger.process);
                return Err(watch.invalid("version", format!("protocol {VERSION} on all ranks"), got));
            }
            Ok(_) | Err(Malformed::Garbage) => self.count_foreign("bytes that are no message"),
        }
        Ok(())
    }

    fn admit(&mut self, socket: OwnedFd, hello: Hello, token: OwnedFd, watch: &Watch<'_>) -> Result<()> {
        let Hello { rank, size, process, job, life, address } = hello;
        let job_name = self.place.key.as_str();
        if job != self.place.key.hash() {
            refuse(&socket, Refusal::Job);
            self.count_foreign("a rank of another job");
            return Ok(());
        }
        if usize::try_from(size) != Ok(self.place.size) {
            refuse(&socket, Refusal::Size(u32::try_from(self.place.size).unwrap_or(u32::MAX)));
            let got = format!("{size}, which rank {rank} (process {process}) says");
            return Err(watch.invalid(
                "size",
                format!("{} ranks on all ranks of job '{job_name}'", self.place.size),
                got,
            ));
        }
        let index = Rank(rank).index();
        if index == 0 || index >= self.place.size {
            refuse(&socket, Refusal::Rank);
            let got = format!("{rank}, which process {process} says");
            return Err(watch.invalid("rank", format!("1 to {} from the others", self.place.size - 1), got));
        }
        let other = self.members[index].as_ref().filter(|member| !member.life.is_over()).map(|member| member.process);
        if let Some(other) = other {
            refuse(&socket, Refusal::Duplicate(other));
            let got = format!("{} twice: processes {other} and {process}", Rank(rank));
            return Err(watch.invalid("rank", format!("each rank of job '{job_name}' once"), got));
        }
        let life = Life { kind: life, token };
        // Of a process that is gone the connection ends first: this is no handle of whoever holds the connection.
        if life.is_over() && matches!(receive(&socket), Err(Errno::AGAIN)) {
            self.count_foreign("a rank whose handle is of no process");
            return Ok(());
        }
        let own = self.place.life;
        // If it is gone already, `look_after_members` finds that.
        let _ = send(&socket, &Message::Accepted(own.kind).encode(), &[own.token.as_fd()]);
        self.members[index] = Some(Member { socket, life, process, address });
        Ok(())
    }

    /// A member whose connection has ended either gave up, and may come again, or is dead.
    fn look_after_members(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        for index in 1..self.members.len() {
            let Some(member) = &self.members[index] else { continue };
            if matches!(receive(&member.socket), Err(Errno::AGAIN)) {
                continue;
            }
            // Its last descriptors are closed a moment before its handle says so.
            let gone = (0..20).any(|_| {
                member.life.is_over() || {
                    std::thread::sleep(Duration::from_millis(1));
                    false
                }
            });
            let member = self.members[index].take();
            if gone {
                let rank = Rank::from_index(index);
                return Err(watch.death_of(rank, member.as_ref().map(|member| &member.life)));
            }
        }
        Ok(())
    }

    fn welcome(&mut self, watch: &mut Watch<'_>, home: Home) -> Result<Company> {
        let (segment, memory) = World::create_segment(self.place.size, home)?;
        // Some may have got all they need when this fails: they must not wait for this rank.
        self.hand_out(&memory, watch).inspect_err(|_| World::give_up(&segment, self.place.rank))?;
        let others = self.members.iter().flatten().map(|member| member.address.clone());
        let addresses = core::iter::once(self.place.address.clone()).chain(others).collect();
        let lives = self.members.iter_mut().map(|member| member.take().map(|member| member.life)).collect();
        Ok(Company { segment, memory, addresses, lives })
    }

    /// Gives all members the world's memory and each other's addresses and lives.
    fn hand_out(&self, memory: &OwnedFd, watch: &mut Watch<'_>) -> Result<()> {
        let own = (self.place.life.kind, self.place.life.token.as_fd(), &self.place.address);
        let others = self.members.iter().flatten();
        let roll: Vec<(LifeKind, BorrowedFd<'_>, &Address)> = core::iter::once(own)
            .chain(others.map(|member| (member.life.kind, member.life.token.as_fd(), &member.address)))
            .collect();
        let welcome = Message::Welcome(u32::try_from(self.place.size).unwrap_or(u32::MAX)).encode();
        let rosters: Vec<(Vec<u8>, Vec<BorrowedFd<'_>>)> =
            roll.chunks(ROSTER_BATCH).zip((0..roll.len()).step_by(ROSTER_BATCH)).map(roster).collect();
        for (member, rank) in self.members.iter().flatten().zip(1..) {
            deliver(&member.socket, Rank(rank), &welcome, &[memory.as_fd()], watch)?;
            for (packet, tokens) in &rosters {
                deliver(&member.socket, Rank(rank), packet, tokens, watch)?;
            }
        }
        Ok(())
    }

    /// Tells those who came why there will be no world.
    fn dismiss(&self, error: &Error) {
        let refusal = match error {
            Error::RankDied(died) => Refusal::Died(died.peer, died.ending),
            Error::Deadline(deadline) => {
                Refusal::Deadline(deadline.peers.iter().take(MAX_NAMED).map(|rank| rank.0).collect())
            }
            Error::InvalidArgument(wrong) => {
                Refusal::Invalid([wrong.field.clone(), wrong.expected.clone(), wrong.got.clone()])
            }
            error => Refusal::Failed(error.to_string()),
        };
        for member in self.members.iter().flatten() {
            refuse(&member.socket, refusal.clone());
        }
    }
}

fn roster<'a>((part, first): (&[(LifeKind, BorrowedFd<'a>, &Address)], usize)) -> (Vec<u8>, Vec<BorrowedFd<'a>>) {
    let entry = |(index, (life, _, address)): (usize, &(LifeKind, BorrowedFd<'a>, &Address))| Entry {
        rank: Rank::from_index(first + index).0,
        life: *life,
        address: (*address).clone(),
    };
    let entries = part.iter().enumerate().map(entry).collect();
    (Message::Roster(entries).encode(), part.iter().map(|(_, token, _)| *token).collect())
}

/// Sends a packet with descriptors, waiting for room. A rank that has died meanwhile is no failure of the meeting: the others
/// learn of it as of any death.
fn deliver(socket: &OwnedFd, rank: Rank, packet: &[u8], fds: &[BorrowedFd<'_>], watch: &mut Watch<'_>) -> Result<()> {
    loop {
        match send(socket, packet, fds) {
            Ok(()) | Err(Errno::PIPE | Errno::CONNRESET) => return Ok(()),
            Err(error @ (Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOMEM | Errno::NOBUFS)) => {
                if watch.time_is_up() {
                    return Err(watch.deadline(vec![rank], format!("take the world's descriptors ({error})")));
                }
                watch.check()?;
                match error {
                    Errno::AGAIN => watch.wait(&mut [PollFd::new(socket, PollFlags::OUT)], SLICE),
                    // Too many descriptors of this user are under way: they arrive when the others read.
                    _ => watch.pause(PAUSE),
                }
            }
            Err(error) => return Err(no_socket(error)),
        }
    }
}

fn refuse(socket: &OwnedFd, refusal: Refusal) {
    // Whoever is no longer there needs no refusal.
    let _ = send(socket, &Message::Refused(refusal).encode(), &[]);
}
