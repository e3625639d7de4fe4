//! A rank other than 0 in a meeting: finds the hub, says who it is, and waits to be welcomed.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use types::{Error, Rank, Result};

use super::{Company, Place, SLICE, Watch, no_socket, poll_in};
use crate::death::Life;
use crate::fork::Home;
use crate::segment::Segment;
use crate::socket::{Packet, connect_to, own_user, peer_of, receive, send};
use crate::wire::{Address, Entry, Hello, LifeKind, Malformed, Message, Refusal, VERSION};
use crate::world::World;

/// The longest pause between two tries to find the hub.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// How one try to meet ended, if not with success.
enum Failure {
    /// Another try may do better; this is why this one failed.
    Again(String),
    /// No try can do better.
    Final(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Final(error)
    }
}

pub(super) fn join(place: &Place<'_>, watch: &mut Watch<'_>, home: Home) -> Result<Company> {
    let mut pause = Duration::from_millis(1);
    loop {
        watch.check()?;
        let reason = match attempt(place, watch, home) {
            Ok(company) => return Ok(company),
            Err(Failure::Final(error)) => return Err(error),
            Err(Failure::Again(reason)) => reason,
        };
        if watch.time_is_up() {
            let awaited = format!("open job '{}', whose rank 0 was not found: {reason}", place.key.as_str());
            return Err(watch.deadline(vec![Rank(0)], awaited));
        }
        watch.pause(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn attempt(place: &Place<'_>, watch: &mut Watch<'_>, home: Home) -> Result<Company, Failure> {
    let again = |error: Errno| {
        Failure::Again(match error {
            Errno::CONNREFUSED => "nobody listens there (has it started?)".into(),
            Errno::AGAIN => "too many processes knock at its door at once".into(),
            Errno::PIPE | Errno::CONNRESET => "it closed the connection: its job was complete, or it ended".into(),
            error => error.to_string(),
        })
    };
    let hub = connect_to(&place.key.address()).map_err(again)?;
    let (user, _) = peer_of(&hub).map_err(again)?;
    if user != own_user() {
        let got = format!("user {user}, who listens for job '{}'", place.key.as_str());
        return Err(Failure::Final(watch.invalid("user", format!("user {} as rank 0", own_user()), got)));
    }
    let hello = Message::Hello(Hello {
        rank: place.rank.0,
        size: u32::try_from(place.size).unwrap_or(u32::MAX),
        process: std::process::id(),
        job: place.key.hash(),
        life: place.life.kind,
        address: place.address.clone(),
    });
    send(&hub, &hello.encode(), &[place.life.token.as_fd()]).map_err(again)?;
    let mut guest =
        Guest { place, hub, life: None, segment: None, addresses: vec![None; place.size], lives: Vec::new() };
    guest.lives.resize_with(place.size, || None);
    guest.listen(watch, home)
}

/// A rank that has said hello, and what it was told so far.
struct Guest<'a> {
    place: &'a Place<'a>,
    hub: OwnedFd,
    /// The hub's life, once it has accepted this rank.
    life: Option<Life>,
    segment: Option<(Segment, OwnedFd)>,
    addresses: Vec<Option<Address>>,
    lives: Vec<Option<Life>>,
}

impl Guest<'_> {
    fn listen(mut self, watch: &mut Watch<'_>, home: Home) -> Result<Company, Failure> {
        let heard = self.listen_to_all(watch, home);
        match (heard, self.segment) {
            (Ok(()), Some((segment, memory))) => {
                let addresses = self.addresses.into_iter().flatten().collect();
                Ok(Company { segment, memory, addresses, lives: self.lives })
            }
            (Ok(()), None) => Err(Failure::Final(no_socket(Errno::PROTO))),
            (Err(failure), segment) => {
                // For the others the world is complete.
                if let Some((segment, _)) = segment {
                    World::give_up(&segment, self.place.rank);
                }
                Err(failure)
            }
        }
    }

    fn listen_to_all(&mut self, watch: &mut Watch<'_>, home: Home) -> Result<(), Failure> {
        loop {
            watch.check()?;
            match receive(&self.hub) {
                Err(Errno::AGAIN) if watch.time_is_up() => {
                    let awaited = format!("complete job '{}': it has not said who is missing", self.place.key.as_str());
                    return Err(Failure::Final(watch.deadline(vec![Rank(0)], awaited)));
                }
                Err(Errno::AGAIN) => watch.wait(&mut [poll_in(&self.hub)], SLICE),
                Ok(packet) if !packet.bytes.is_empty() => self.hear(packet, watch, home)?,
                Ok(_) | Err(_) => return Err(self.lost(watch)),
            }
            if self.segment.is_some() && self.addresses.iter().all(Option::is_some) {
                return Ok(());
            }
        }
    }

    /// The hub closed the connection without a word.
    fn lost(&mut self, watch: &mut Watch<'_>) -> Failure {
        match self.life.take() {
            // It had this rank on its list: it has ended, or is about to.
            Some(life) => Failure::Final(watch.death_of(Rank(0), Some(&life))),
            None => Failure::Again("it closed the connection: its job was complete, or it ended".into()),
        }
    }

    fn hear(&mut self, packet: Packet, watch: &Watch<'_>, home: Home) -> Result<()> {
        let wrong =
            |got: String| watch.invalid("version", format!("protocol {VERSION}, as rank 0 must have, too"), got);
        if packet.lost_descriptors {
            return Err(Error::resource(
                format!("descriptors of the {} ranks", self.place.size),
                "some were lost: this process may open no more",
                "raise the limit on open files with `ulimit -n`",
            ));
        }
        let mut descriptors = packet.descriptors.into_iter();
        match Message::decode(&packet.bytes) {
            Ok(Message::Accepted(kind)) => {
                self.life = descriptors.next().map(|token| Life { kind, token });
                Ok(())
            }
            Ok(Message::Welcome(size)) if usize::try_from(size) == Ok(self.place.size) => {
                let memory = descriptors.next().ok_or_else(|| wrong("a welcome without memory".into()))?;
                let bytes = World::segment_bytes(self.place.size);
                self.segment = Some((Segment::attach("the job's ranks", &memory, bytes, home)?, memory));
                Ok(())
            }
            Ok(Message::Roster(entries)) if entries.len() == descriptors.len() => {
                for (Entry { rank, life, address }, token) in entries.into_iter().zip(descriptors) {
                    self.note(rank, life, address, token).ok_or_else(|| wrong(format!("a list with rank {rank}")))?;
                }
                Ok(())
            }
            Ok(Message::Refused(refusal)) => Err(self.refused(refusal, watch)),
            Err(Malformed::Version(version)) => Err(wrong(format!("protocol {version}"))),
            Ok(_) | Err(Malformed::Garbage) => Err(wrong("a packet of another kind".into())),
        }
    }

    fn note(&mut self, rank: u32, kind: LifeKind, address: Address, token: OwnedFd) -> Option<()> {
        let index = Rank(rank).index();
        *self.addresses.get_mut(index)? = Some(address);
        if Rank(rank) != self.place.rank {
            *self.lives.get_mut(index)? = Some(Life { kind, token });
        }
        Some(())
    }

    fn refused(&self, refusal: Refusal, watch: &Watch<'_>) -> Error {
        let Place { key, rank, size, .. } = self.place;
        let job = key.as_str();
        match refusal {
            Refusal::Version(version) => {
                watch.invalid("version", format!("protocol {version}, as rank 0 has"), format!("protocol {VERSION}"))
            }
            Refusal::Job => watch.invalid("job", "the same job as rank 0".into(), format!("'{job}'")),
            Refusal::Rank => watch.invalid("rank", "a rank of 1 or more and below the size".into(), rank.0.to_string()),
            Refusal::Size(hub) => watch.invalid("size", format!("{hub} ranks, as rank 0 says"), size.to_string()),
            Refusal::Duplicate(process) => watch.invalid(
                "rank",
                format!("a rank that no other process of job '{job}' has"),
                format!("{rank}, which process {process} is, too"),
            ),
            Refusal::Invalid([field, expected, got]) => watch.invalid(&field, expected, got),
            Refusal::Died(peer, ending) => watch.died(peer, ending),
            Refusal::Deadline(missing) => watch.deadline(
                missing.into_iter().map(Rank).collect(),
                format!("join job '{job}' in the time that rank 0 allows"),
            ),
            Refusal::Failed(why) => Error::resource(format!("a world of job '{job}'"), why, "see what rank 0 says"),
        }
    }
}
